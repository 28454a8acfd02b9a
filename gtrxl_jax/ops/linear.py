"""Products of a batch of vectors with a matrix."""

from typing import Any

import jax
from jaxtyping import Array, Float


def multiply(
    x: Float[Array, "... I"], matrix_IO: Float[Array, "I O"], **settings: Any
) -> Float[Array, "... O"]:
    """Return x @ matrix, with the leading axes of x joined into one.

    With more of them, XLA computes the matrix's gradient on CPUs from a transposed copy of the
    output's gradient, which takes two to three times as long.

    Args:
      x: any number of leading axes.
      matrix_IO: the matrix.
      **settings: those of `jax.lax.dot_general`, such as `precision`.
    """
    joined = x.reshape(-1, x.shape[-1])
    product = jax.lax.dot_general(joined, matrix_IO, (((1,), (0,)), ((), ())), **settings)
    return product.reshape(*x.shape[:-1], matrix_IO.shape[1])
