"""Hashable descriptions of action spaces, features of actions, and the environment's layout.

Leading axes are arbitrary (none, `[B]`, `[B, T]`).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gtrxl_jax.specs.observation import QUANTITY
from gtrxl_jax.specs.spaces import (
    align,
    bounds_of,
    describe,
    dtype_of,
    kind_of,
    leaves_of,
    map_leaves,
    shape_of,
)

AnyArray = Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The actions of an environment, in the layout of the samples of a policy's distribution:

      one discrete part     int32 `[...]`
      continuous only       float `[..., C]`
      otherwise             {"continuous": float `[..., C]`, "discrete": int32 `[..., K]`}, without
                            absent parts

    Choices count from 0, whatever the space starts from. `environment_action` converts actions to
    the layout of the space, and `agent_action` converts them back.

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

    @property
    def feature_groups(self) -> Int[np.ndarray, " F"]:
        """What each feature is, see `ArraySpec.feature_groups`."""
        choices = np.repeat(np.arange(len(self.discrete)), self.discrete)
        return np.concatenate([np.full(self.num_continuous, QUANTITY), choices]).astype(int)

    def center_and_half_width(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the center and half-width of each continuous range; 0 and 1 where unbounded."""
        bounds = np.array(self.continuous, np.float64).reshape(-1, 2)
        bounded = np.all(np.isfinite(bounds), axis=1)
        low, high = np.where(bounded[:, None], bounds, [-1.0, 1.0]).T
        return (low + high) / 2, (high - low) / 2

    def range_of(self, x: Float[Array, "... C"]) -> tuple[Any, Any]:
        """Return `center_and_half_width` with the dtype and the rank of actions `[..., C]`."""
        center, half = (align(z, x) for z in self.center_and_half_width())
        return center, half

    def zeros(self, *lead: int) -> Any:
        """Return an action of zeros with the given leading axes, as on an episode's first step."""
        return self.join(
            jnp.zeros((*lead, self.num_continuous), jnp.float32),
            jnp.zeros((*lead, len(self.discrete)), jnp.int32),
        )

    def sample(self, key: Array, *lead: int) -> Any:
        """Return uniformly random actions with the given leading axes; ranges must be bounded."""
        key_continuous, key_discrete = jax.random.split(key)
        shape = (*lead, self.num_continuous)
        unit = jax.random.uniform(key_continuous, shape, jnp.float32, -1, 1)
        center, half = self.range_of(unit)
        shape = (*lead, len(self.discrete))
        sizes = jnp.asarray(self.discrete, jnp.int32).reshape(*(1,) * len(lead), -1)
        choices = jax.random.randint(key_discrete, shape, 0, sizes, jnp.int32)
        return self.join(center + half * unit, choices)

    def join(self, continuous: Float[AnyArray, "... C"], discrete: Int[AnyArray, "... K"]) -> Any:
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

        def clip_continuous(x: Float[AnyArray, "... C"]) -> Float[AnyArray, "... C"]:
            return x.__array_namespace__().clip(x, align(low, x), align(high, x))

        if self.is_hybrid:
            return {**action, "continuous": clip_continuous(action["continuous"])}
        return clip_continuous(action)

    def features(self, action: Any, dtype: Any) -> Float[Array, "... F"]:
        """Convert actions to network inputs: ranges scaled to [-1, 1], choices one-hot.

        Raises:
          ValueError: if the action does not have the layout above.
        """
        parts = self.parts(action)
        features = []
        if self.continuous:
            # Cast last: a narrow range far from zero would vanish in bfloat16.
            x = jnp.asarray(parts["continuous"], np.promote_types(dtype, np.float32))
            center, half = self.range_of(x)
            features.append(((x - center) / half).astype(dtype))
        features += [
            jax.nn.one_hot(parts["discrete"][..., k], size, dtype=dtype)
            for k, size in enumerate(self.discrete)
        ]
        return jnp.concatenate(features, axis=-1)

    def parts(self, action: Any) -> dict[str, AnyArray]:
        """Return the continuous part `[..., C]` and the discrete part `[..., K]`, if present.

        Raises:
          ValueError: if the action does not have the layout above.
        """
        widths = {"continuous": self.num_continuous, "discrete": len(self.discrete)}
        widths = {name: width for name, width in widths.items() if width}
        parts: dict[str, AnyArray] = {}
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


def action_spec(space: Any) -> ActionSpec:
    """Return the `ActionSpec` of an action space.

    Supported are Discrete, MultiDiscrete and MultiBinary, boxes of floats, and any nesting of them
    in a Dict or a Tuple. The dimensions are in the order of the leaves, with sorted keys.

    Raises:
      TypeError: if the type of a space is not supported.
      ValueError: if the type is supported, but no policy fits the space.
    """
    continuous: list[tuple[float, float]] = []
    discrete: list[int] = []
    for field, leaf in leaves_of(space, "action_space"):
        match kind_of(leaf):
            case "box":
                continuous += _ranges(leaf, field)
            case "discrete" | "multi-discrete" | "multi-binary":
                low, high = (np.broadcast_to(z, shape_of(leaf)) for z in bounds_of(leaf))
                discrete += [int(size) for size in (high - low + 1).flat]
            case _:
                raise TypeError(
                    f"{field} is a {type(leaf).__name__}, which no policy supports: use a Box of "
                    "floats, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
                )
    if min(discrete, default=1) < 1 or not continuous and not discrete:
        raise ValueError(f"action_space {space} leaves no choice: give every part at least one")
    return ActionSpec(tuple(continuous), tuple(discrete))


def _ranges(leaf: Any, field: str) -> list[tuple[float, float]]:
    """Return (low, high) of each entry of a Box of floats."""
    if not np.issubdtype(dtype_of(leaf), np.floating):
        raise ValueError(
            f"{field} is {describe(leaf)}: a Box of actions must have a float dtype; use a "
            "MultiDiscrete for choices"
        )
    low, high = (
        np.broadcast_to(bound, shape_of(leaf)).astype(np.float64).reshape(-1)
        for bound in bounds_of(leaf)
    )
    if not np.all(low < high):
        raise ValueError(f"{field} is {describe(leaf)}: low must be below high in every dimension")
    # Some environments use the largest float for infinity.
    infinity = float(np.finfo(np.float32).max)
    low, high = np.where(low <= -infinity, -np.inf, low), np.where(high >= infinity, np.inf, high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def environment_action(space: Any, action: Any) -> Any:
    """Convert a policy's action to the environment's: within bounds, in the layout of its space.

    A Gaussian is unbounded, so its samples may lie outside a Box. They are clipped where they enter
    an environment, and nowhere else; log-probabilities are computed for the unclipped action.

    Args:
      space: the environment's action space.
      action: an action in the layout of `ActionSpec`.

    Returns:
      An array for each part of the space, in dicts and tuples nested as the space is.

    Raises:
      ValueError: if the action does not have that layout.
    """
    spec = action_spec(space)
    parts = spec.parts(spec.clip(action))
    taken = dict.fromkeys(parts, 0)

    def part_of(leaf: Any, field: str) -> Any:
        kind, shape = "continuous" if kind_of(leaf) == "box" else "discrete", shape_of(leaf)
        begin, taken[kind] = taken[kind], taken[kind] + math.prod(shape)
        part = parts[kind][..., begin : taken[kind]]
        if kind == "discrete":
            part = part + _starts(leaf, part)
        return part.reshape((*part.shape[:-1], *shape))

    return map_leaves(part_of, space, field="action")


def agent_action(space: Any, action: Any) -> Any:
    """Convert an environment's action, as in a data set, to the layout of `ActionSpec`.

    The inverse of `environment_action`; nothing is clipped. NumPy arrays stay on the host.

    Args:
      space: the environment's action space.
      action: an action of it, with leading axes.

    Raises:
      ValueError: if the action is not nested as the space is.
    """
    parts: dict[str, list[Any]] = {"continuous": [], "discrete": []}

    def add(leaf: Any, x: Any, field: str) -> None:
        shape = shape_of(leaf)
        x = x.reshape(*x.shape[: x.ndim - len(shape)], math.prod(shape))
        if kind_of(leaf) == "box":
            parts["continuous"].append(x)
        else:
            x = x.astype(np.int32)
            parts["discrete"].append(x - _starts(leaf, x))

    map_leaves(add, space, action, field="action")
    first = (parts["continuous"] or parts["discrete"])[0]
    xp = first.__array_namespace__()
    for kind, dtype in (("continuous", np.float32), ("discrete", np.int32)):
        parts[kind] = parts[kind] or [xp.zeros((*first.shape[:-1], 0), dtype=dtype)]

    def join(arrays: list[Any]) -> Any:
        dtype = np.result_type(*(x.dtype for x in arrays))
        return xp.concat([x.astype(dtype) for x in arrays], axis=-1)

    return action_spec(space).join(join(parts["continuous"]), join(parts["discrete"]))


def _starts(leaf: Any, x: Any) -> np.ndarray:
    """Return the first choice of each entry, int32, with the rank of choices `[..., K]`."""
    low, _ = bounds_of(leaf)
    return align(np.broadcast_to(low, shape_of(leaf)), x, np.int32)
