"""The distracting component of RATE's vector observations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def draw_noise(key: jax.Array) -> Int[Array, ""]:
    """Uniform in {-1, 0, 1}, int32.

    A remainder of 32 random bits, whose bias of 2^-32 nobody will see, costs a third of
    `jax.random.randint`.
    """
    return (jax.random.bits(key, dtype=jnp.uint32) % 3).astype(jnp.int32) - 1
