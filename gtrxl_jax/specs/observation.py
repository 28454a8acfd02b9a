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
from jaxtyping import Array, Float, Int, Shaped

from gtrxl_jax.specs.spaces import (
    align,
    bounds_of,
    describe,
    dtype_of,
    kind_of,
    map_leaves,
    shape_of,
)
from gtrxl_jax.validation import require_choice

AnyArray = Array | np.ndarray

# Integers with more values than this are quantities rather than categories, except in a Discrete.
MAX_BOX_CATEGORIES = 32
MAX_DISCRETE_CATEGORIES = 4096
# Floats with a deviation of a third to 3 are not scaled.
FLOAT_TOLERANCE = 3.0
# Arrays of bytes with shorter sides are grids of cells rather than images.
MIN_IMAGE_SIDE = 8
# Large images have at least this side; smaller ones may be grids of cells.
LARGE_IMAGE_SIDE = 32

QUANTITY, FLAG = -1, -2
"""What a feature is that belongs to no choice, see `ArraySpec.feature_groups`."""

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
      range: the lowest and the highest integer that the space declares; None if unbounded, or for
        floats, whose declared bounds are often wrong.
      categories: number of values of each element, which is encoded one-hot; None for quantities.
        A tuple has a number for each entry of the last axis of `image_shape`, or for each entry of
        the array in this order, and None for those entries that are quantities.
      low: the smallest category; a tuple if `categories` is one.
      axes: the axes of an image that is not `[H, W, C]` as it comes: "chw", or "fhwc" and "fchw"
        for a stack of frames; empty for any other array.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    range: tuple[int, int] | None = None
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

    def channels_last(self, x: Shaped[AnyArray, "..."]) -> Any:
        """Return arrays `[..., *shape]` with the axes in order, `[..., *image_shape]`."""
        if not self.axes:
            return x
        lead = leading_axes(x.shape, len(self.shape))
        axes = [len(lead) + axis for axis in _MOVES[self.axes]]
        return x.transpose(*range(len(lead)), *axes).reshape(*lead, *self.image_shape)

    @property
    def is_image(self) -> bool:
        """Whether these are pixels, `[H, W, C]`, or `[H, W]` for grey ones.

        Arrays of bytes are from a side of `MIN_IMAGE_SIDE` on, others from `LARGE_IMAGE_SIDE` on:
        smaller ones are grids of cells.
        """
        is_bytes, shape = self.dtype == "uint8" and self.range == (0, 255), self.image_shape
        if self.categories is not None or self.has_flags or len(shape) not in (2, 3):
            return False
        return min(shape[:2]) >= (MIN_IMAGE_SIDE if is_bytes else LARGE_IMAGE_SIDE)

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

    @property
    def image_feature_shape(self) -> tuple[int, ...]:
        """The shape of the features of an image or a grid: `[H, W, C]`, C = 1 for grey images."""
        return (*self.feature_shape, 1)[:3]

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

    @property
    def has_flags(self) -> bool:
        """Whether the values are 0 or 1."""
        return self.categories is None and (self.dtype == "bool" or self.range == (0, 1))

    @property
    def feature_groups(self) -> Int[np.ndarray, " F"]:
        """What each of the flattened features is: `QUANTITY`, `FLAG`, or the number of a choice.

        The one-hot features of a choice have the same number.
        """
        size = math.prod(self.feature_shape)
        if isinstance(self.categories, int):
            return np.arange(size) // self.categories
        if self.categories is None:
            return np.full(size, FLAG if self.has_flags else QUANTITY)
        entry_F, _, is_category_F = self._entries
        rows = np.arange(size // len(entry_F))[:, None] * len(self.categories)
        return np.where(is_category_F, entry_F + rows, QUANTITY).reshape(-1)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """The shape of the statistics by which features are normalized.

        The cells of images, and of grids of numbers `[..., H, W, C]`, share the statistics of their
        channel; other arrays have one for each element, and choices for each category.
        """
        shape = self.feature_shape
        if self.is_image and len(shape) == 2:
            return ()
        return shape[-1:] if len(shape) > 2 and self.categories is None else shape

    @property
    def declared_moments(self) -> tuple[Any, Any]:
        """The mean and the deviation to assume before the first observation: of a uniform one.

        Numbers; or, if only some features are quantities, arrays `[F]`. Choices and flags have 0
        and 1, and thus stay as they are.
        """
        if self.range is None or self.has_flags:
            return 0.0, 1.0
        low, high = self.range
        mean, deviation = (low + high) / 2, max((high - low) / math.sqrt(12), 1.0)
        if not isinstance(self.categories, tuple):
            return mean, deviation
        is_category_F = self._entries[2]
        return np.where(is_category_F, 0.0, mean), np.where(is_category_F, 1.0, deviation)

    @property
    def tolerance(self) -> float:
        """How far from 1 the deviation of features may be, see `nn.normalizer.Normalizer`.

        Pixels, integers, choices and flags are normalized exactly; of floats, most spaces are
        ordinary as they are.
        """
        is_float = jnp.issubdtype(np.dtype(self.dtype), jnp.floating)
        return FLOAT_TOLERANCE if is_float and not self.is_image else 1.0

    def features(self, x: Array, dtype: Any) -> Float[Array, "..."]:
        """Convert observations `[..., *shape]` to features `[..., *feature_shape]` of `dtype`.

        Categories become one-hot; nothing is normalized yet.

        Raises:
          ValueError: if the last axes of x differ from `shape`.
        """
        lead, shape = leading_axes(x.shape, len(self.shape)), self.shape
        if x.shape != (*lead, *shape):
            raise ValueError(
                f"observation has shape {x.shape}, but one observation of its space has {shape}: "
                "only leading axes [B] or [B, T] may be added"
            )
        x = self.channels_last(x)
        if self.categories is None:
            return x.astype(dtype)
        if isinstance(self.categories, tuple):
            entry_F, category_F, is_category_F = self._entries
            x_F = x.reshape(*lead, *self.feature_shape[:-1], -1)[..., entry_F]
            # The dtype of x may be too narrow for the categories.
            one_hot_F = (x_F.astype(jnp.int32) == align(category_F, x_F, np.int32)).astype(dtype)
            return jnp.where(align(is_category_F, x_F, bool), one_hot_F, x_F.astype(dtype))
        assert isinstance(self.low, int)
        index = x.astype(jnp.int32) - self.low
        return jax.nn.one_hot(index, self.categories, dtype=dtype).reshape(
            *lead, *self.feature_shape
        )


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

    Discrete, MultiDiscrete, the tokens of a Text, and integer boxes of 3 to `MAX_BOX_CATEGORIES`
    values are encoded one-hot. Booleans and entries of 0 or 1 are flags, other integers and floats
    are quantities. Networks normalize all of them by what they have seen, see
    `gtrxl_jax.nn.normalizer`. In a box whose entries have bounds of their own, those with at most
    `MAX_BOX_CATEGORIES` values are one-hot and the others are quantities.

    Args:
      space: a gymnax or gymnasium space of any kind in `specs.spaces`; or arrays (or
        `jax.ShapeDtypeStruct`) of the shape of one observation, whose range is known only for
        uint8.
      field: name of the space in error messages.
      channels: where the channels of images are, one of `IMAGE_AXES`; see `image_axes`.

    Raises:
      TypeError: if the space is not supported.
      ValueError: if a choice is too large for one-hot encoding, an array has no entries, or
        `channels` is unknown.
    """
    require_choice("image_axes", channels, IMAGE_AXES)
    return map_leaves(functools.partial(_array_spec, channels), space, field=field)


def _array_spec(channels: str, leaf: Any, field: str) -> ArraySpec:
    kind = kind_of(leaf)
    if not kind:
        raise TypeError(
            f"{field} is a {type(leaf).__name__}; use a Box, Discrete, MultiDiscrete, MultiBinary "
            "or Text, a Dict or Tuple of them, or arrays"
        )
    shape, dtype = shape_of(leaf), dtype_of(leaf)
    if 0 in shape:
        raise ValueError(f"{field} has the shape {shape}, without entries: leave it out")
    spec = ArraySpec(shape, dtype.name, axes=image_axes(shape, channels))
    if kind == "array":
        return dataclasses.replace(spec, range=(0, 255) if dtype == np.uint8 else None)
    if not np.issubdtype(dtype, np.integer):
        return spec
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
            return dataclasses.replace(spec, categories=size, low=lowest)
        return _of_entries(spec, low, high, MAX_DISCRETE_CATEGORIES)
    if 3 <= size <= MAX_BOX_CATEGORIES:
        return dataclasses.replace(spec, categories=size, low=lowest)
    if low.ndim or high.ndim:
        return _of_entries(spec, low, high, MAX_BOX_CATEGORIES)
    return dataclasses.replace(spec, range=_range([(int(low), int(high))]))


def _range(bounds: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the lowest and the highest of integers within bounds; None if that says nothing."""
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return (low, high) if max(abs(low), abs(high)) < np.iinfo(np.int32).max else None


def _of_entries(spec: ArraySpec, low: np.ndarray, high: np.ndarray, most: int) -> ArraySpec:
    """Return the spec of integers of which each entry of the array has bounds of its own.

    Entries of at most `most` values are categories, the others quantities.
    """
    low, high = (spec.channels_last(np.broadcast_to(bound, spec.shape)) for bound in (low, high))
    low, high = (bound.reshape(-1, spec.image_shape[-1]) for bound in (low, high))
    if (low == low[0]).all() and (high == high[0]).all():
        low, high = low[0], high[0]
    bounds = [(int(a), int(b)) for a, b in zip(low.flat, high.flat, strict=True)]
    sizes = [b - a + 1 if b - a < most else None for a, b in bounds]
    quantities = [pair for pair, size in zip(bounds, sizes, strict=True) if size is None]
    if len(quantities) == len(sizes):
        return dataclasses.replace(spec, range=_range(bounds))
    return dataclasses.replace(
        spec,
        range=_range(quantities) if quantities else None,
        categories=tuple(sizes),
        low=tuple(0 if size is None else a for (a, _), size in zip(bounds, sizes, strict=True)),
    )
