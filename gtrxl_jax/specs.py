"""Hashable descriptions of observation and action spaces, from which networks are built.

Spaces of gymnax and gymnasium are supported. Leading axes are arbitrary (none, `[B]`, `[B, T]`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gymnasium
from gymnax.environments import spaces as gymnax
from jaxtyping import Array, Float, Int

# Typed as Any: the two libraries share no base class, only the attributes used here.
BOX: Any = (gymnax.Box, gymnasium.Box)
DISCRETE: Any = (gymnax.Discrete, gymnasium.Discrete)
DICT: Any = (gymnax.Dict, gymnasium.Dict)
TUPLE: Any = (gymnax.Tuple, gymnasium.Tuple)
SPACE: Any = (gymnax.Space, gymnasium.Space)

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


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The actions of an environment, in the layout of the samples of a policy's distribution:

      one discrete part     int32 `[...]`
      continuous only       float `[..., C]`
      otherwise             {"continuous": float `[..., C]`, "discrete": int32 `[..., K]`}, without
                            absent parts

    Attributes:
      continuous: (low, high) of each of the C continuous dimensions, infinite where unbounded.
      discrete: number of choices of each of the K discrete dimensions.
    """

    continuous: tuple[tuple[float, float], ...] = ()
    discrete: tuple[int, ...] = ()

    @property
    def num_continuous(self) -> int:
        """The number of continuous dimensions, C."""
        return len(self.continuous)

    @property
    def is_hybrid(self) -> bool:
        """Whether actions are dicts."""
        return bool(self.continuous and self.discrete) or len(self.discrete) > 1

    @property
    def num_features(self) -> int:
        """The size of the last axis of `features`, F."""
        return self.num_continuous + sum(self.discrete)

    def centre_and_half_width(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the centre and half-width of each continuous range; 0 and 1 where unbounded."""
        bounds = np.array(self.continuous, np.float64).reshape(-1, 2)
        bounded = np.all(np.isfinite(bounds), axis=1)
        low, high = np.where(bounded[:, None], bounds, [-1.0, 1.0]).T
        return (low + high) / 2, (high - low) / 2

    def range_of(self, x: Float[Array, "... C"]) -> tuple[Array, Array]:
        """Return `centre_and_half_width` with the dtype and the rank of actions `[..., C]`."""
        centre, half = (_aligned(z, x) for z in self.centre_and_half_width())
        return centre, half

    def zeros(self, *lead: int) -> Any:
        """Return an action of zeros with the given leading axes, as on an episode's first step."""
        return self._joined(
            jnp.zeros((*lead, self.num_continuous), jnp.float32),
            jnp.zeros((*lead, len(self.discrete)), jnp.int32),
        )

    def sample(self, key: Array, *lead: int) -> Any:
        """Return uniformly random actions with the given leading axes; ranges must be bounded."""
        key_continuous, key_discrete = jax.random.split(key)
        shape = (*lead, self.num_continuous)
        unit = jax.random.uniform(key_continuous, shape, jnp.float32, -1, 1)
        centre, half = self.range_of(unit)
        shape = (*lead, len(self.discrete))
        sizes = jnp.asarray(self.discrete, jnp.int32).reshape(*(1,) * len(lead), -1)
        choices = jax.random.randint(key_discrete, shape, 0, sizes, jnp.int32)
        return self._joined(centre + half * unit, choices)

    def _joined(self, continuous: Float[Array, "... C"], discrete: Int[Array, "... K"]) -> Any:
        """Return an action from its parts, which have an axis of size 0 if absent."""
        if self.is_hybrid:
            parts = {"continuous": continuous, "discrete": discrete}
            return {name: x for name, x in parts.items() if x.shape[-1]}
        return continuous if self.continuous else discrete[..., 0]

    def clip(self, action: Any) -> Any:
        """Return the action with its continuous dimensions clipped to their bounds."""
        if not self.continuous:
            return action
        low, high = np.array(self.continuous).T

        def clipped(x: Float[Array, "... C"]) -> Float[Array, "... C"]:
            return jnp.clip(x, _aligned(low, x), _aligned(high, x))

        if self.is_hybrid:
            return {**action, "continuous": clipped(action["continuous"])}
        return clipped(action)

    def features(self, action: Any, dtype: Any) -> Float[Array, "... F"]:
        """Convert actions to network inputs: ranges scaled to [-1, 1], choices one-hot.

        Raises:
          ValueError: if the action does not have the layout above.
        """
        parts = self._parts(action)
        features = []
        if self.continuous:
            x = parts["continuous"].astype(dtype)
            centre, half = self.range_of(x)
            features.append((x - centre) / half)
        features += [
            jax.nn.one_hot(parts["discrete"][..., k], size, dtype=dtype)
            for k, size in enumerate(self.discrete)
        ]
        return jnp.concatenate(features, axis=-1)

    def _parts(self, action: Any) -> dict[str, Array]:
        """Return the continuous part `[..., C]` and the discrete part `[..., K]`, if present."""
        widths = {"continuous": self.num_continuous, "discrete": len(self.discrete)}
        widths = {name: width for name, width in widths.items() if width}
        parts: dict[str, Array] = {}
        if self.is_hybrid and isinstance(action, Mapping):
            parts = dict(action)
        elif not self.is_hybrid and hasattr(action, "shape"):
            parts = {"continuous": action} if self.continuous else {"discrete": action[..., None]}
        found = {name: x.shape[-1:] for name, x in parts.items()}
        if found != {name: (width,) for name, width in widths.items()}:
            raise ValueError(
                f"action has shapes {jax.tree.map(jnp.shape, action)}, but the last axes of its "
                f"space are {widths}: use the layout of the policy's samples"
            )
        return parts


def _aligned(vector: np.ndarray, x: Float[Array, "... C"]) -> Float[Array, "... C"]:
    """Return a vector `[C]` with the dtype and the rank of x."""
    return jnp.asarray(vector, x.dtype).reshape(*(1,) * (x.ndim - 1), -1)


def action_spec(space: Any) -> ActionSpec:
    """Return the `ActionSpec` of an action space.

    Supported are: `Discrete`; `Box` of floats `[C]`; several discrete choices (a MultiDiscrete, or
    a Tuple of Discrete); and a Dict with "continuous", a Box, and "discrete", one or several
    choices (or a Tuple of the two, in this order).

    Raises:
      TypeError: if the type of space is not supported.
      ValueError: if the type is supported, but no policy fits the space.
    """
    if isinstance(space, DISCRETE):
        return ActionSpec(discrete=_choices(space))
    if isinstance(space, BOX):
        return ActionSpec(continuous=_bounds(space))
    if isinstance(space, DICT):
        if sorted(space.spaces) != ["continuous", "discrete"]:
            raise ValueError(
                f"action_space is a Dict of {sorted(space.spaces)}; its parts must be named "
                "'continuous' (a Box) and 'discrete' (one Discrete or several)"
            )
        parts = space.spaces
        return ActionSpec(_bounds(parts["continuous"]), _choices(parts["discrete"]))
    if isinstance(space, TUPLE) and len(space.spaces) == 2 and isinstance(space.spaces[0], BOX):
        return ActionSpec(_bounds(space.spaces[0]), _choices(space.spaces[1]))
    sizes = _choices(space)
    if len(sizes) < 2:
        raise ValueError(f"action_space is {space}: use Discrete for a single choice")
    return ActionSpec(discrete=sizes)


def _choices(space: Any) -> tuple[int, ...]:
    """Return the number of choices of one Discrete, or of each of several."""
    children = space.spaces if isinstance(space, TUPLE) else [space]
    if all(isinstance(child, DISCRETE) for child in children):
        sizes = [int(child.n) for child in children]
        starts = [int(getattr(child, "start", 0)) for child in children]
    elif isinstance(space, gymnasium.MultiDiscrete) and len(space.shape) == 1:
        sizes, starts = space.nvec.tolist(), space.start.tolist()
    else:
        raise TypeError(
            f"action_space contains {space}, which no policy supports: use Discrete, a Box [C], "
            "several Discrete, or a Dict with 'continuous' and 'discrete'"
        )
    if min(sizes, default=0) < 1 or any(starts):
        raise ValueError(f"action_space contains {space}: choices must be 0 .. n - 1, n at least 1")
    return tuple(sizes)


def _bounds(space: Any) -> tuple[tuple[float, float], ...]:
    """Return (low, high) of each dimension of a Box `[C]` of floats."""
    if not isinstance(space, BOX):
        raise TypeError(f"the continuous part of action_space is {space}; it must be a Box [C]")
    if len(space.shape) != 1 or space.shape[0] < 1:
        raise ValueError(f"action_space contains {space}: a Box of actions must have one axis, [C]")
    if not np.issubdtype(np.dtype(space.dtype), np.floating):
        raise ValueError(f"action_space contains {space}: a Box of actions must have a float dtype")
    low, high = (
        np.broadcast_to(np.asarray(z, np.float64), space.shape) for z in (space.low, space.high)
    )
    if not np.all(low < high):
        raise ValueError(
            f"action_space contains {space}: low must be below high in every dimension"
        )
    # Some environments use the largest float for infinity.
    infinity = float(np.finfo(np.float32).max)
    low, high = np.where(low <= -infinity, -np.inf, low), np.where(high >= infinity, np.inf, high)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def environment_action(space: Any, action: Any) -> Any:
    """Convert a policy's action to the environment's: within bounds, in the layout of its space.

    A Gaussian is unbounded, so its samples may lie outside a Box. They are clipped where they enter
    an environment, and nowhere else; log-probabilities are computed for the unclipped action.

    Layouts differ only for spaces with several parts; for example, {"discrete": `[..., K]`} becomes
    a tuple of `[...]` for a Tuple of K Discrete.

    Args:
      space: the environment's action space.
      action: an action in the layout of `ActionSpec`.
    """
    spec = action_spec(space)
    action = spec.clip(action)
    if not spec.is_hybrid:
        return action
    if not spec.continuous:
        return _split(space, action["discrete"])
    is_dict = isinstance(space, DICT)
    choices = space.spaces["discrete" if is_dict else 1]
    parts = {**action, "discrete": _split(choices, action["discrete"])}
    return parts if is_dict else (parts["continuous"], parts["discrete"])


def _split(space: Any, choices: Array) -> Any:
    if isinstance(space, DISCRETE):
        return choices[..., 0]
    if isinstance(space, TUPLE):
        return tuple(choices[..., k] for k in range(choices.shape[-1]))
    return choices
