"""Hashable descriptions of observation spaces, and features of observations.

Leading axes are arbitrary (none, `[B]`, `[B, T]`).
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gtrxl_jax.specs.spaces import (
    aligned,
    bounds_of,
    describe,
    dtype_of,
    kind_of,
    map_leaves,
    shape_of,
)
from gtrxl_jax.validation import check_choice

# Integers with more values than this are quantities rather than categories, except in a Discrete.
MAX_BOX_CATEGORIES = 32
MAX_DISCRETE_CATEGORIES = 4096
# Arrays of bytes with shorter sides are grids of cells rather than images.
MIN_IMAGE_SIDE = 8
# Added to the standard deviation of an image, of which 1 is the range: noise is not amplified.
MIN_CONTRAST = 0.01

IMAGE_AXES = ("auto", "hwc", "chw")
"""Where the channels of images are: last, first, or recognized, see `image_axes`."""

_MOVES = {"chw": (1, 2, 0), "fhwc": (1, 2, 0, 3), "fchw": (2, 3, 0, 1)}
"""The axes in the order [H, W, C] or [H, W, F, C], whose last two are joined."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """One array of an observation, and its conversion to network features.

    Attributes:
      shape: shape of one observation, without leading axes.
      dtype: name of the observation's dtype: "float32", "uint8", "bool", ...
      scale: factor that scales the values to about 1; unused with categories.
      categories: number of values of each element, which is encoded one-hot; None for quantities.
        A tuple has a number for each entry of the last axis, or for each entry of the array, and
        None for those entries that are quantities.
      low: the smallest category; a tuple if `categories` is one.
      axes: the axes of an image that is not `[H, W, C]` as it comes: "chw", or "fhwc" and "fchw"
        for a stack of frames; empty for any other array.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    categories: int | tuple[int | None, ...] | None = None
    low: int | tuple[int, ...] = 0
    axes: str = ""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape with the axes of an image in the order `[H, W, C]`; other shapes unchanged."""
        if not self.axes:
            return self.shape
        height, width, *channels = (self.shape[axis] for axis in _MOVES[self.axes])
        return height, width, math.prod(channels)

    @property
    def is_image(self) -> bool:
        """Whether these are pixels, uint8 from 0 to 255: `[H, W, C]`, or `[H, W]` for grey ones."""
        is_bytes, shape = self.dtype == "uint8" and self.scale == 1 / 255, self.image_shape
        return is_bytes and len(shape) in (2, 3) and min(shape[:2]) >= MIN_IMAGE_SIDE

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one observation's features; one-hot encoding widens the last axis.

        Entries with numbers of categories of their own, other than by the last axis, are flattened.
        """
        if self.categories is None:
            return self.image_shape
        *rest, last = self.image_shape or (1,)
        if isinstance(self.categories, int):
            return (*rest, last * self.categories)
        width = len(self._entries[0])
        return (*rest, width) if len(self.categories) == last else (width,)

    @functools.cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The entry, the category and whether it is one, of each feature `[F]` of entries `[E]`."""
        assert isinstance(self.categories, tuple)
        assert isinstance(self.low, tuple)
        sizes_E = [size or 1 for size in self.categories]
        entry_F = np.repeat(np.arange(len(sizes_E)), sizes_E)
        category_F = np.concatenate(
            [low + np.arange(size) for low, size in zip(self.low, sizes_E, strict=True)]
        )
        return entry_F, category_F, np.array(self.categories, object)[entry_F] != None  # noqa: E711

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
        if self.axes:
            axes = [len(lead) + axis for axis in _MOVES[self.axes]]
            x = x.transpose(*range(len(lead)), *axes).reshape(*lead, *self.image_shape)
        if self.is_image:
            wide = np.promote_types(dtype, np.float32)
            pixels = x.astype(wide) * self.scale
            return _standardised(pixels, len(self.image_shape)).astype(dtype)
        if self.categories is None:
            return self._scaled(x.astype(dtype))
        if isinstance(self.categories, tuple):
            entry_F, category_F, is_category_F = self._entries
            x_F = x.reshape(*lead, *self.feature_shape[:-1], -1)[..., entry_F]
            one_hot_F = (x_F == aligned(category_F, x_F)).astype(dtype)
            quantity_F = self._scaled(x_F.astype(dtype))
            return jnp.where(aligned(is_category_F, x_F, bool), one_hot_F, quantity_F)
        assert isinstance(self.low, int)
        index = x.astype(jnp.int32) - self.low
        return jax.nn.one_hot(index, self.categories, dtype=dtype).reshape(
            *lead, *self.feature_shape
        )

    def _scaled(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x if self.scale == 1 else x * self.scale


def _standardised(pixels: Float[Array, "..."], rank: int) -> Float[Array, "..."]:
    """Subtract the mean of each image, its last `rank` axes, and divide by the deviation."""
    axes = tuple(range(-rank, 0))
    pixels = pixels - jnp.mean(pixels, axes, keepdims=True)
    variance = jnp.mean(jnp.square(pixels), axes, keepdims=True)
    return pixels * jax.lax.rsqrt(variance + MIN_CONTRAST**2)


def leading_axes(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return all but the last `rank` axes."""
    return shape[: max(len(shape) - rank, 0)]


def image_axes(shape: tuple[int, ...], channels: str = "auto") -> str:
    """Return the axes of an array as in `ArraySpec.axes`.

    Arrays `[_, _, _]` are images, and arrays of four axes are stacks of them, whose frames become
    channels. "auto" takes the first axis of an image for its channels if it is shorter than the
    other two, these have at least `MIN_IMAGE_SIDE` elements, and they are equal or there are at
    most 4 channels; otherwise the last axis.

    Args:
      shape: shape of one observation.
      channels: one of `IMAGE_AXES`.
    """
    if len(shape) not in (3, 4):
        return ""
    first, *sides = shape[-3:]
    is_square = sides[0] == sides[1]
    channels_first = first < min(sides) >= MIN_IMAGE_SIDE and (is_square or first <= 4)
    if channels == "auto":
        channels = "chw" if channels_first else "hwc"
        if len(shape) == 4 and channels == "hwc" and min(shape[1:3]) < MIN_IMAGE_SIDE:
            return ""
    if len(shape) == 4:
        return f"f{channels}"
    return "chw" if channels == "chw" else ""


def observation_spec(
    space: Any, field: str = "observation_space", *, channels: str = "auto"
) -> Any:
    """Return the `ArraySpec` of an observation space, or a dict or a tuple of them.

    Booleans and floats are used unchanged, and so are entries of 0 or 1. Discrete, MultiDiscrete,
    the tokens of a Text, and integer boxes of 3 to `MAX_BOX_CATEGORIES` values are encoded one-hot;
    other integers are divided by the largest magnitude of the box. In a box whose entries have
    bounds of their own, those with at most `MAX_BOX_CATEGORIES` values are one-hot and the others
    are quantities. Images, uint8 of 0 .. 255, are standardised: see `ArraySpec.features`.

    Args:
      space: a gymnax or gymnasium space of any kind in `specs.spaces`; or arrays (or
        `jax.ShapeDtypeStruct`) of the shape of one observation, whose range is known only for
        uint8.
      field: name of the space in error messages.
      channels: where the channels of images are, one of `IMAGE_AXES`; see `image_axes`.

    Raises:
      TypeError: if the space is not supported.
      ValueError: if a choice is too large for one-hot encoding, or `channels` is unknown.
    """
    check_choice("image_axes", channels, IMAGE_AXES)

    def array_spec(leaf: Any, field: str) -> ArraySpec:
        spec = _array_spec(leaf, field)
        return dataclasses.replace(spec, axes=image_axes(spec.shape, channels))

    return map_leaves(array_spec, space, field=field)


def _array_spec(leaf: Any, field: str) -> ArraySpec:
    kind = kind_of(leaf)
    if not kind:
        raise TypeError(
            f"{field} is a {type(leaf).__name__}; use a Box, Discrete, MultiDiscrete, MultiBinary "
            "or Text, a Dict or Tuple of them, or arrays"
        )
    shape, dtype = shape_of(leaf), dtype_of(leaf)
    if kind == "array":
        return ArraySpec(shape, dtype.name, 1 / 255 if dtype == np.uint8 else 1.0)
    if not np.issubdtype(dtype, np.integer):
        return ArraySpec(shape, dtype.name)
    low, high = bounds_of(leaf)
    size, lowest = int(np.max(high)) - int(np.min(low)) + 1, int(np.min(low))
    if kind in ("discrete", "multi-discrete", "text"):
        sizes = np.asarray(high - low + 1)
        if np.max(sizes) > MAX_DISCRETE_CATEGORIES:
            raise ValueError(
                f"{field} is {describe(leaf)}, too many for one-hot (at most "
                f"{MAX_DISCRETE_CATEGORIES}): declare it as a Box, or pass a custom encoder"
            )
        if np.all(low == lowest) and np.all(sizes == size):
            return ArraySpec(shape, dtype.name, categories=size, low=lowest)
        return _of_entries(shape, dtype.name, low, high, MAX_DISCRETE_CATEGORIES)
    if 3 <= size <= MAX_BOX_CATEGORIES:
        return ArraySpec(shape, dtype.name, categories=size, low=lowest)
    if low.ndim or high.ndim:
        return _of_entries(shape, dtype.name, low, high, MAX_BOX_CATEGORIES)
    return ArraySpec(shape, dtype.name, scale=_scale(low, high))


def _scale(*bounds: np.ndarray) -> float:
    """Return the factor that scales integers within bounds to about 1."""
    greatest = max((abs(int(x)) for bound in bounds for x in bound.flat), default=0)
    return 1 / greatest if 1 < greatest < np.iinfo(np.int32).max else 1.0


def _of_entries(
    shape: tuple[int, ...], dtype: str, low: np.ndarray, high: np.ndarray, most: int
) -> ArraySpec:
    """Return the spec of integers of which each entry has bounds of its own.

    Entries of at most `most` values are categories, the others quantities.
    """
    low, high = (np.broadcast_to(bound, shape).reshape(-1, shape[-1]) for bound in (low, high))
    if (low == low[0]).all() and (high == high[0]).all():
        low, high = low[0], high[0]
    bounds = [(int(a), int(b)) for a, b in zip(low.flat, high.flat, strict=True)]
    sizes = [b - a + 1 if b - a < most else None for a, b in bounds]
    quantities = [pair for pair, size in zip(bounds, sizes, strict=True) if size is None]
    if len(quantities) == len(sizes):
        return ArraySpec(shape, dtype, _scale(low, high))
    return ArraySpec(
        shape,
        dtype,
        _scale(np.array(quantities, object)),
        categories=tuple(sizes),
        low=tuple(0 if size is None else a for (a, _), size in zip(bounds, sizes, strict=True)),
    )
