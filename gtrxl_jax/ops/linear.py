"""Linear maps of arrays with any leading axes."""

from collections.abc import Callable

from jaxtyping import Array, Float


def by_rows(
    linear: Callable[[Float[Array, "R I"]], Float[Array, "R O"]], x: Float[Array, "... I"]
) -> Float[Array, "... O"]:
    """Apply a linear map to x with its leading axes joined into one, R.

    With more axes, XLA computes the gradient of a matrix on CPUs from a transposed copy of the
    output's gradient, which takes two to three times as long, and does not fuse the addition of a
    bias into the matrix product.

    Args:
      linear: the map.
      x: any number of leading axes.
    """
    y = linear(x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], y.shape[-1])
