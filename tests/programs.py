"""Runs that share compiled programs, where compilation is not what a test is about."""

import contextlib
import functools

import pytest

from gtrxl_jax.runs import loop
from gtrxl_jax.runs.programs import Programs


@contextlib.contextmanager
def compiled_once():
    """Within the context, all runs of a trainer share their programs."""
    programs_of = functools.cache(Programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Programs", lambda trainer, compiling: programs_of(trainer))
        yield
