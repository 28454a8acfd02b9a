"""Complete episodes as padded arrays, and what is done with whole sets of them.

Dimensions in names: E episodes, T the most actions of any of them.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from gtrxl_jax.data.spaces import Spaces

# Numpy's on the host, where sets are read, joined and split; jax's once put on a device.
AnyArray = Array | np.ndarray


@struct.dataclass
class Trajectories:
    """E complete episodes. Entries past an episode's end are padding and mean nothing.

    A pytree: put it on a device, pass it to jitted functions. It is never changed in place.

    Attributes:
      observations: pytree `[E, T+1, ...]`: o_0 .. o_n of an episode of n actions, so the final
        observation is there, too.
      actions: `[E, T]` int32 or `[E, T, C]` floats; action t was chosen on observation t.
      rewards: r of each action, undiscounted.
      length: n, the number of actions of each episode, at least 1.
      terminated: whether the episode came to an end of its own; else it was truncated.
      spaces: of one observation and one action. Static.
    """

    observations: Any
    actions: Any
    rewards: Float[AnyArray, "E T"]
    length: Int[AnyArray, " E"]
    terminated: Bool[AnyArray, " E"]
    spaces: Spaces = struct.field(pytree_node=False)

    @property
    def num_episodes(self) -> int:
        """E."""
        return self.length.shape[0]

    @property
    def max_length(self) -> int:
        """T."""
        return self.rewards.shape[1]


def returns_to_go(
    rewards: Float[AnyArray, "E T"], length: Int[AnyArray, " E"]
) -> Float[Array, "E T"]:
    """The sum of this and all later rewards of the episode, undiscounted; 0 in the padding.

    The return-to-go of Chen et al. (2021), "Decision Transformer", equation 2, in rewards' units.
    """
    rewards_ET = jnp.asarray(rewards)
    steps_T = jnp.arange(rewards_ET.shape[1], dtype=jnp.int32)
    real_ET = steps_T[None] < jnp.asarray(length, jnp.int32)[:, None]
    rewards_ET = jnp.where(real_ET, rewards_ET, jnp.zeros((), rewards_ET.dtype))
    return jnp.where(
        real_ET, jax.lax.cumsum(rewards_ET, axis=1, reverse=True), jnp.zeros((), rewards_ET.dtype)
    )


def select(trajectories: Trajectories, index: Any) -> Trajectories:
    """The episodes of that index: whole numbers `[F]`, truth values `[E]`, or a slice."""
    return jax.tree.map(lambda x: x[index], trajectories)


def concatenate(sets: Sequence[Trajectories]) -> Trajectories:
    """All episodes of several sets in one, on the host, padded with zeros to the longest.

    Raises:
      ValueError: there is no set, or two have different spaces.
    """
    if not sets:
        raise ValueError("there are no trajectories to concatenate: give at least one set")
    for other in sets[1:]:
        if other.spaces != sets[0].spaces:
            raise ValueError(
                "only trajectories of the same spaces can be concatenated: "
                f"{sets[0].spaces} and {other.spaces}"
            )
    episodes = sum(one.num_episodes for one in sets)
    longest = max(one.max_length for one in sets)

    def joined(*parts: Any, steps: int = 0) -> np.ndarray:
        first = np.asarray(parts[0])
        if not steps:
            return np.concatenate([np.asarray(part) for part in parts])
        # Filled part by part: the sets may be most of the memory.
        result, row = np.zeros((episodes, steps, *first.shape[2:]), first.dtype), 0
        for part in parts:
            result[row : row + part.shape[0], : part.shape[1]] = part
            row += part.shape[0]
        return result

    def leaves(name: str, steps: int) -> Any:
        return jax.tree.map(
            lambda *parts: joined(*parts, steps=steps), *(getattr(one, name) for one in sets)
        )

    return Trajectories(
        observations=leaves("observations", longest + 1),
        actions=leaves("actions", longest),
        rewards=leaves("rewards", longest),
        length=leaves("length", 0),
        terminated=leaves("terminated", 0),
        spaces=sets[0].spaces,
    )


def split(
    trajectories: Trajectories, fraction: float, key: Key[Array, ""] | UInt[Array, "2"]
) -> tuple[Trajectories, Trajectories]:
    """Divide episodes at random into a set for training and one for validation.

    Args:
      trajectories: at least two episodes.
      fraction: share of the episodes for validation, above 0 and below 1; rounded, but either set
        gets an episode.
      key: one PRNG key.

    Returns:
      Training and validation set, each in the order of the whole.

    Raises:
      ValueError: the fraction is out of range, or there are fewer than two episodes.
    """
    episodes = trajectories.num_episodes
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be above 0 and below 1, got {fraction}")
    if episodes < 2:
        raise ValueError(f"two sets need at least 2 episodes, got {episodes}: collect more")
    size = min(max(round(fraction * episodes), 1), episodes - 1)
    order = np.asarray(jax.random.permutation(key, episodes))
    validation = np.isin(np.arange(episodes), order[:size])
    return select(trajectories, ~validation), select(trajectories, validation)


def check(trajectories: Trajectories) -> None:
    """Raise if the trajectories are invalid; on the host.

    Observations need the shapes and types of their space; its bounds are not asked of them, since
    published environments leave theirs.

    Raises:
      TypeError: an array is missing or not of its type, or not an array.
      ValueError: naming the field: a wrong shape, no episode or an empty one, a length beyond T, a
        number that is not finite, an action outside its space.
    """
    rewards, length, terminated = (
        _array(field, getattr(trajectories, field)) for field in ("rewards", "length", "terminated")
    )
    steps = rewards.shape[1] if rewards.ndim == 2 else 0
    if not length.size:
        raise ValueError("length has no entry: there are no episodes")
    _require("length", length, np.int32, (len(length),))
    _require("rewards", rewards, np.float32, (len(length), steps))
    _require("terminated", terminated, np.bool_, (len(length),))
    for wrong_E, rule in ((length < 1, "at least 1 action"), (length > steps, f"at most {steps}")):
        if wrong_E.any():
            e = int(np.argmax(wrong_E))
            raise ValueError(f"length[{e}] is {length[e]}: an episode has {rule}")
    real_ET, observed_ET = (np.arange(n) < length[:, None] + n - steps for n in (steps, steps + 1))
    check_steps(
        trajectories.spaces,
        trajectories.observations,
        trajectories.actions,
        rewards,
        observed_ET,
        real_ET,
    )


def check_steps(
    spaces: Spaces,
    observations: Any,
    actions: Any,
    rewards: Any,
    observed: Bool[np.ndarray, "E S"],
    real: Bool[np.ndarray, "E T"],
) -> None:
    """Raise if steps `[E, T]` are invalid: the part of `check` that parts of episodes need, too.

    Args:
      spaces: of one observation and one action.
      observations: `[E, S, ...]`.
      actions: `[E, T, ...]`.
      rewards: `[E, T]`.
      observed: where there is an observation.
      real: where there are an action and a reward.

    Raises:
      TypeError, ValueError: see `check`.
    """
    _check_arrays("observations", observations, spaces.observation, observed)
    _check_arrays("actions", actions, spaces.action, real)
    _check_finite("rewards", np.asarray(rewards), real)
    _check_bounds(np.asarray(actions), spaces.action, real)


def _array(field: str, value: Any) -> np.ndarray:
    if not isinstance(value, Array | np.ndarray):
        raise TypeError(f"{field} must be an array, not {type(value).__name__}")
    return np.asarray(value)


def _require(field: str, value: np.ndarray, dtype: Any, shape: tuple[int, ...]) -> None:
    if value.dtype != dtype:
        raise TypeError(f"{field} must be of type {np.dtype(dtype).name}, not {value.dtype.name}")
    if value.shape != shape:
        raise ValueError(f"{field} must have shape {shape}, not {value.shape}")


def _check_arrays(field: str, arrays: Any, space: Any, real_ET: np.ndarray) -> None:
    """Compare arrays `[E, T, ...]` with their space, those of a Dict name by name."""
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(arrays, dict) or arrays.keys() != space.spaces.keys():
            names = sorted(arrays) if isinstance(arrays, dict) else type(arrays).__name__
            raise ValueError(f"{field} must have the entries {sorted(space.spaces)}, not {names}")
        for name, child in space.spaces.items():
            _check_arrays(f"{field}[{name!r}]", arrays[name], child, real_ET)
        return
    value = _array(field, arrays)
    _require(field, value, space.dtype, (*real_ET.shape, *(space.shape or ())))
    if np.issubdtype(value.dtype, np.floating):
        _check_finite(field, value, real_ET)


def _check_finite(field: str, value_ET: np.ndarray, real_ET: np.ndarray) -> None:
    finite_ET = np.isfinite(value_ET).all(axis=tuple(range(2, value_ET.ndim)))
    _refuse_first(field, value_ET, real_ET & ~finite_ET, "numbers must be finite")


def _check_bounds(action_ET: np.ndarray, space: Any, real_ET: np.ndarray) -> None:
    if isinstance(space, gymnasium.spaces.Discrete):
        low, high = int(space.start), int(space.start) + int(space.n) - 1
        outside_ET = (action_ET < low) | (action_ET > high)
    else:
        outside_ET = ((action_ET < space.low) | (action_ET > space.high)).any(axis=2)
    _refuse_first("actions", action_ET, real_ET & outside_ET, f"actions must be in {space}")


def _refuse_first(field: str, value_ET: np.ndarray, wrong_ET: np.ndarray, rule: str) -> None:
    if wrong_ET.any():
        e, t = np.argwhere(wrong_ET)[0]
        raise ValueError(f"{field}[{e}, {t}] is {value_ET[e, t]}: {rule}")
