"""The distractor component of RATE's vector observations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def draw_noise(key: jax.Array) -> Int[Array, ""]:
    """Draw uniformly from {-1, 0, 1}, as int32.

    The remainder of 32 random bits has a negligible bias of 2^-32, at a third of the cost of
    `jax.random.randint`.
    """
    return (jax.random.bits(key, dtype=jnp.uint32) % 3).astype(jnp.int32) - 1
