"""Hashable descriptions of observation spaces, and features of observations.

Leading axes are arbitrary (none, `[B]`, `[B, T]`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gtrxl_jax.specs.spaces import BOX, DICT, DISCRETE, SPACE

# Integers with more values than this are quantities rather than categories, except in a Discrete.
MAX_BOX_CATEGORIES = 32
MAX_DISCRETE_CATEGORIES = 4096
# Arrays of bytes with shorter sides are grids of cells rather than images.
MIN_IMAGE_SIDE = 8
# Added to the standard deviation of an image, of which 1 is the range: noise is not amplified.
MIN_CONTRAST = 0.01


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """One array of an observation, and its conversion to network features.

    Attributes:
      shape: shape of one observation, without leading axes.
      dtype: name of the observation's dtype: "float32", "uint8", "bool", ...
      scale: factor that scales the values to about 1; unused with categories.
      categories: number of values of each element, which is encoded one-hot; None for quantities.
      low: the smallest category.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    categories: int | None = None
    low: int = 0

    @property
    def is_image(self) -> bool:
        """Whether these are pixels, uint8 from 0 to 255: `[H, W, C]`, or `[H, W]` for grey ones."""
        is_bytes = self.dtype == "uint8" and self.scale == 1 / 255
        return is_bytes and len(self.shape) in (2, 3) and min(self.shape[:2]) >= MIN_IMAGE_SIDE

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one observation's features; one-hot encoding widens the last axis."""
        if self.categories is None:
            return self.shape
        *rest, last = self.shape or (1,)
        return (*rest, last * self.categories)

    def features(self, x: Array, dtype: Any) -> Float[Array, "..."]:
        """Convert observations `[..., *shape]` to features `[..., *feature_shape]` of `dtype`.

        Images are standardised: each has mean 0 and variance 1 over its pixels and channels. What
        most images have in common, such as the brightness of the walls, would otherwise drive
        ReLUs to be inactive for all of them, and hide small differences.

        Raises:
          ValueError: if the last axes of x differ from `shape`.
        """
        lead, shape = leading_axes(x.shape, len(self.shape)), self.shape
        if x.shape != (*lead, *shape):
            raise ValueError(
                f"observation has shape {x.shape}, but one observation of its space has {shape}: "
                "only leading axes [B] or [B, T] may be added"
            )
        if self.is_image:
            wide = np.promote_types(dtype, np.float32)
            return _standardised(x.astype(wide) * self.scale, len(shape)).astype(dtype)
        if self.categories is None:
            features = x.astype(dtype)
            return features if self.scale == 1 else features * self.scale
        index = x.astype(jnp.int32) - self.low
        return jax.nn.one_hot(index, self.categories, dtype=dtype).reshape(
            *lead, *self.feature_shape
        )


def _standardised(pixels: Float[Array, "..."], rank: int) -> Float[Array, "..."]:
    """Subtract the mean of each image, its last `rank` axes, and divide by the deviation."""
    axes = tuple(range(-rank, 0))
    pixels = pixels - jnp.mean(pixels, axes, keepdims=True)
    variance = jnp.mean(jnp.square(pixels), axes, keepdims=True)
    return pixels * jax.lax.rsqrt(variance + MIN_CONTRAST**2)


def leading_axes(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return all but the last `rank` axes."""
    return shape[: max(len(shape) - rank, 0)]


def observation_spec(space: Any, field: str = "observation_space") -> Any:
    """Return the `ArraySpec` of an observation space, or a dict of them for a Dict space.

    Booleans and floats are used unchanged. `Discrete` and integer boxes of 3 to
    `MAX_BOX_CATEGORIES` values are encoded one-hot; other integers are divided by the largest
    magnitude of the box. Images, uint8 of 0 .. 255, are standardised: see `ArraySpec.features`.

    Args:
      space: a gymnax or gymnasium space; or arrays (or `jax.ShapeDtypeStruct`) of the shape of one
        observation, whose range is known only for uint8.
      field: name of the space in error messages.

    Raises:
      TypeError: if the space is not supported.
      ValueError: if a Discrete space is too large for one-hot encoding.
    """
    if isinstance(space, (*DICT, Mapping)):
        children: Any = getattr(space, "spaces", space)
        return {k: observation_spec(children[k], f"{field}[{k!r}]") for k in sorted(children)}
    if isinstance(space, DISCRETE):
        if space.n > MAX_DISCRETE_CATEGORIES:
            raise ValueError(
                f"{field} is Discrete({space.n}), too many for one-hot (at most "
                f"{MAX_DISCRETE_CATEGORIES}): declare it as a Box, or pass a custom encoder"
            )
        start = int(getattr(space, "start", 0))
        return ArraySpec((), np.dtype(space.dtype).name, categories=int(space.n), low=start)
    if isinstance(space, BOX):
        low, high = float(np.min(np.asarray(space.low))), float(np.max(np.asarray(space.high)))
    elif isinstance(space, SPACE) or not (hasattr(space, "shape") and hasattr(space, "dtype")):
        raise TypeError(
            f"{field} is a {type(space).__name__}; use a Box, a Discrete, a Dict of them, or arrays"
        )
    else:
        low, high = (0.0, 255.0) if space.dtype == np.uint8 else (-np.inf, np.inf)
    shape, dtype = tuple(map(int, space.shape)), np.dtype(space.dtype)
    if not np.issubdtype(dtype, np.integer):
        return ArraySpec(shape, dtype.name)
    if 3 <= high - low + 1 <= MAX_BOX_CATEGORIES:
        return ArraySpec(shape, dtype.name, categories=int(high - low) + 1, low=int(low))
    greatest = max(abs(low), abs(high))
    bounded = greatest < np.iinfo(np.int32).max
    return ArraySpec(shape, dtype.name, scale=1 / greatest if bounded and greatest > 1 else 1.0)
