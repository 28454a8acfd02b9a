"""Running environments that others wrote under whatever promotion rules the caller has set."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def standard_dtype_promotion() -> Iterator[None]:
    """Trace with JAX's ordinary dtype and rank promotion.

    Most of gymnax and xminigrid adds booleans to floats, which `jax_numpy_dtype_promotion=strict`
    refuses. The setting of the program around them is its own business, so their code is traced in
    this context, which changes nothing outside it.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
