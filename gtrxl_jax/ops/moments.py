"""Running mean and variance of arrays, merged batch by batch.

Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance": the moments of a union
follow from the moments of its parts, without cancellation where the mean is far from zero.

Arrays hold the global batch: under `jax.jit` a sharded batch needs no special handling.
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

# A deviation below this share of the mean is rounding in float32.
ROUNDING = 1e-6


@struct.dataclass
class Moments:
    """Mean and variance of `count` samples.

    Attributes:
      count: the number of samples.
      mean: the mean; with a count of 0, what is assumed before the first sample.
      variance: the variance (divided by the count); see `mean`.
    """

    count: Float[Array, ""]
    mean: Float[Array, "..."]
    variance: Float[Array, "..."]

    @property
    def deviation(self) -> Float[Array, "..."]:
        """The standard deviation; 1 where it is zero, up to rounding."""
        deviation = jnp.sqrt(self.variance)
        varies = deviation > ROUNDING * jnp.abs(self.mean)
        return jnp.where(varies, deviation, jnp.ones_like(deviation))


def moments_of(
    x: Float[Array, "..."], rank: int, where: Bool[Array, "..."] | None = None
) -> Moments:
    """Compute the moments of a batch.

    Args:
      x: samples, with the axes of the moments last.
      rank: the number of these axes; all axes before them are axes of samples.
      where: samples that count, an array of the leading axes of x; all if None. Values elsewhere
        may be anything, NaN too.

    Returns:
      The moments, with the last `rank` axes of x; a count, mean and variance of 0 without samples.
    """
    lead = x.ndim - rank
    axes = tuple(range(lead))
    number = np.prod(x.shape[:lead], dtype=int)
    if where is None:
        count = jnp.asarray(number, x.dtype)
    else:
        count = jnp.sum(where, dtype=x.dtype)
        where = where.reshape(*where.shape, *(1,) * rank)
        x = jnp.where(where, x, jnp.zeros_like(x))
    at_least_one = jnp.maximum(count, 1)
    mean = jnp.sum(x, axes) / at_least_one
    residual = x - jnp.expand_dims(mean, axes)
    if where is not None:
        residual = jnp.where(where, residual, jnp.zeros_like(residual))
    return Moments(count, mean, jnp.sum(jnp.square(residual), axes) / at_least_one)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of the samples of both; `b` if `a` has none."""
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    shift = b.mean - a.mean
    return Moments(
        count=count,
        mean=a.mean + share * shift,
        variance=(1 - share) * a.variance
        + share * b.variance
        + share * (1 - share) * jnp.square(shift),
    )
