"""Linear maps."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.ops.linear import multiply


def _last_axis(x: Array, kernel: Array, dimension_numbers: Any, **settings: Any) -> Array:
    del dimension_numbers  # nn.Dense always contracts the last axis with the first
    return multiply(x, kernel, **settings)


class Dense(nn.Dense):
    """`nn.Dense` that computes with `ops.linear.multiply`."""

    dot_general: Any = _last_axis


def square_products(
    x: Float[Array, "... D"], count: int, name: str, **precision: Any
) -> list[Float[Array, "... D"]]:
    """Return `count` products of x with square matrices, computed as one multiplication.

    Called in a compact method, it makes a submodule `name`; `precision` are `nn.Dense`'s dtypes.
    """
    dense = Dense(count * x.shape[-1], use_bias=False, name=name, **precision)
    return jnp.split(dense(x), count, axis=-1)
