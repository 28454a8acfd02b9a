"""Linear maps."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.ops.linear import by_rows


class Dense(nn.Dense):
    """`nn.Dense` that computes by rows, see `ops.linear`."""

    def __call__(self, inputs: Float[Array, "... I"]) -> Float[Array, "... O"]:
        return by_rows(super().__call__, inputs)


def square_products(
    x: Float[Array, "... D"], count: int, name: str, **precision: Any
) -> list[Float[Array, "... D"]]:
    """Return `count` products of x with square matrices, computed as one multiplication.

    Called in a compact method, it makes a submodule `name`; `precision` are `nn.Dense`'s dtypes.
    """
    dense = Dense(count * x.shape[-1], use_bias=False, name=name, **precision)
    return jnp.split(dense(x), count, axis=-1)
