"""Run third-party environments regardless of the caller's dtype promotion settings."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def standard_dtype_promotion() -> Iterator[None]:
    """Trace with JAX's standard dtype and rank promotion.

    Most of gymnax adds booleans to floats, which `jax_numpy_dtype_promotion=strict` rejects. Its
    code is traced in this context; the caller's settings are unchanged outside it.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
