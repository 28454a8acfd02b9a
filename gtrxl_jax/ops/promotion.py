"""Dtype promotion: to float32 or wider, and in third-party code, whatever the caller's settings."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.typing import DTypeLike


def at_least_float32(dtype: DTypeLike) -> np.dtype:
    """Return a floating dtype, or float32 if it is narrower."""
    return np.promote_types(dtype, np.float32)


@contextlib.contextmanager
def standard_dtype_promotion() -> Iterator[None]:
    """Trace with JAX's standard dtype and rank promotion.

    Most of gymnax, and some of optax, relies on implicit promotion, which
    `jax_numpy_dtype_promotion=strict` rejects. Their code is traced in this context; the caller's
    settings are unchanged outside it.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
