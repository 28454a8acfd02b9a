"""Runs that share compiled programs, where compilation is not what a test is about."""

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.host import HostPrograms, HostTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.programs import Programs


@contextlib.contextmanager
def compiled_once(key: Callable[[Any], Hashable] = lambda trainer: trainer) -> Iterator[None]:
    """Within the context, runs of a trainer share their programs.

    So do runs of trainers with an equal `key`, which may differ in the number of iterations only.
    """
    made: dict[Hashable, Programs] = {}
    make = {OnlineTrainer: Programs, OfflineTrainer: Programs, HostTrainer: HostPrograms}

    def programs(trainer: Any, compiling: Any = None, devices: Any = None) -> Programs:
        is_new = key(trainer) not in made
        own = make[type(trainer)](trainer) if is_new else copy.copy(made[key(trainer)])
        own._trainer = trainer
        made[key(trainer)] = own
        return own

    with pytest.MonkeyPatch.context() as patch:
        for kind in make:
            patch.setattr(kind, "programs", programs)
        yield
