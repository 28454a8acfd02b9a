"""Hashable descriptions of action spaces, features of actions, and the environment's layout.

Leading axes are arbitrary (none, `[B]`, `[B, T]`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gymnasium
from jaxtyping import Array, Float, Int

from gtrxl_jax.specs.spaces import BOX, DICT, DISCRETE, TUPLE


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
