"""Complete episodes as padded arrays, and operations on whole sets of them.

Dimensions in names: E episodes, T the largest number of actions of any episode.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.data.spaces import Spaces
from gtrxl_jax.specs.spaces import dtype_of, kind_of, map_leaves, shape_of, text_tokens
from gtrxl_jax.specs.values import belongs, describe_value
from gtrxl_jax.validation import require_instance

# NumPy's on the host, where sets are read, joined and split; JAX's once put on a device.
AnyArray = Array | np.ndarray


@struct.dataclass
class Trajectories:
    """E complete episodes. Entries past an episode's end are padding with undefined content.

    A pytree: it can be put on a device and passed to jitted functions. It is never changed in
    place.

    Attributes:
      observations: pytree `[E, T+1, ...]`: o_0 .. o_n of an episode of n actions, including the
        final observation.
      actions: pytree `[E, T, ...]` of members of the action space, nested as it is; action t was
        chosen given observation t. Segments have them in the layout of `specs.ActionSpec`.
      rewards: reward of each action, undiscounted.
      length: n, the number of actions of each episode, at least 1.
      terminated: whether the episode terminated; otherwise it was truncated.
      spaces: the spaces of one observation and one action. Static.
      lacks_action: whether the episode had one more action, which is left out since what followed
        it is not stored, see `datasets.DatasetReader`; None if none had.
    """

    observations: Any
    actions: Any
    rewards: Float[AnyArray, "E T"]
    length: Int[AnyArray, " E"]
    terminated: Bool[AnyArray, " E"]
    spaces: Spaces = struct.field(pytree_node=False)
    lacks_action: Bool[AnyArray, " E"] | None = None

    @property
    def num_episodes(self) -> int:
        """The number of episodes, E."""
        return self.length.shape[0]

    @property
    def max_length(self) -> int:
        """The number of actions to which episodes are padded, T."""
        return self.rewards.shape[1]


def one_episode(
    observations: Any, actions: Any, rewards: Any, *, terminated: bool, spaces: Spaces
) -> Trajectories:
    """Return the arrays of an episode of n actions as trajectories with E = 1.

    Args:
      observations: `[n + 1, ...]`, with the last one, nested as their space is.
      actions: `[n, ...]`, nested as their space is.
      rewards: `[n]`.
      terminated: whether the episode terminated; otherwise it was cut short.
      spaces: the spaces of one observation and one action.

    Raises:
      TypeError: if `terminated` is no bool or `spaces` are none, and see `check`.
      ValueError: if they do not fit their spaces or each other, see `check`.
    """
    require_instance("spaces", spaces, Spaces, "dataset_spaces(observation, action) returns them")
    ended = np.asarray(terminated)
    if ended.dtype != np.bool_ or ended.shape:
        found = f"of shape {ended.shape}" if ended.shape else repr(terminated)
        raise TypeError(
            f"terminated must be one bool for the episode, not {found}: pass its last, such as "
            "bool(terminations[-1])"
        )
    rewards = np.asarray(rewards, np.float32)
    n = len(np.atleast_1d(rewards))

    def rows(space: Any, values: Any, field: str, steps: int, rule: str) -> Any:
        def row(leaf: Any, x: Any, name: str) -> np.ndarray:
            x = np.atleast_1d(cast(leaf, np.asarray(x), name))
            if len(x) != steps:
                raise ValueError(f"{name} has {len(x)} steps for {n} {rule}")
            return x[None]

        return map_leaves(row, space, values, field=field)

    acted = rows(spaces.action, actions, "actions", n, "rewards: pass one of each for each step")
    rule = f"actions: pass {n + 1}, with the last one"
    episode = Trajectories(
        observations=rows(spaces.observation, observations, "observations", n + 1, rule),
        actions=acted,
        rewards=rewards[None],
        length=np.array([n], np.int32),
        terminated=ended[None],
        spaces=spaces,
    )
    check(episode)
    return episode


def returns_to_go(
    rewards: Float[AnyArray, "E T"], length: Int[AnyArray, " E"]
) -> Float[AnyArray, "E T"]:
    """Compute the undiscounted sum of this and all later rewards of the episode; 0 in padding.

    The return-to-go of Chen et al. (2021), "Decision Transformer", equation 2, in units of the
    rewards. NumPy arrays are summed on the host.
    """
    xp = rewards.__array_namespace__()
    real_ET = xp.arange(rewards.shape[1], dtype=xp.int32)[None] < length[:, None]
    zero = xp.zeros((), dtype=rewards.dtype)
    later_ET = xp.cumsum(xp.where(real_ET, rewards, zero)[:, ::-1], axis=1)[:, ::-1]
    return xp.where(real_ET, later_ET, zero)


def select(trajectories: Trajectories, index: Any) -> Trajectories:
    """Return the episodes of an index: integers `[F]`, booleans `[E]`, or a slice."""
    return jax.tree.map(lambda x: x[index], trajectories)


def concatenate(sets: Sequence[Trajectories]) -> Trajectories:
    """Concatenate the episodes of several sets on the host, padded with zeros to the longest.

    Raises:
      ValueError: if `sets` is empty, or two sets have different spaces.
    """
    if not sets:
        raise ValueError("there are no trajectories to concatenate: pass at least one set")
    for other in sets[1:]:
        if other.spaces != sets[0].spaces:
            raise ValueError(
                "only trajectories with the same spaces can be concatenated: "
                f"{sets[0].spaces} and {other.spaces}"
            )
    episodes = sum(one.num_episodes for one in sets)
    longest = max(one.max_length for one in sets)

    def joined(*parts: Any, steps: int = 0) -> np.ndarray:
        first = np.asarray(parts[0])
        if not steps:
            return np.concatenate([np.asarray(part) for part in parts])
        # Filled part by part, since the sets may take up most of the memory.
        result, row = np.zeros((episodes, steps, *first.shape[2:]), first.dtype), 0
        for part in parts:
            result[row : row + part.shape[0], : part.shape[1]] = part
            row += part.shape[0]
        return result

    def leaves(name: str, steps: int) -> Any:
        return jax.tree.map(
            lambda *parts: joined(*parts, steps=steps), *(getattr(one, name) for one in sets)
        )

    lacking = [one.lacks_action for one in sets]
    lacks_action = None
    if any(part is not None for part in lacking):
        none = [np.zeros(one.num_episodes, bool) for one in sets]
        lacks_action = joined(*(b if a is None else a for a, b in zip(lacking, none, strict=True)))

    return Trajectories(
        observations=leaves("observations", longest + 1),
        actions=leaves("actions", longest),
        rewards=leaves("rewards", longest),
        length=leaves("length", 0),
        terminated=leaves("terminated", 0),
        spaces=sets[0].spaces,
        lacks_action=lacks_action,
    )


def held_out(length: Int[np.ndarray, " E"], fraction: float, seed: int) -> Bool[np.ndarray, " E"]:
    """Mark a fraction of the episodes for validation, at random among the episodes of each length.

    `select(trajectories, ~marked)` and `select(trajectories, marked)` divide a set.

    Args:
      length: number of actions of each episode.
      fraction: fraction to mark, at least 0 and below 1. Among the shortest n episodes, for any n,
        it is rounded down, so that at least one episode remains.
      seed: seed of the choice.

    Raises:
      ValueError: if the fraction is out of range.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and below 1, got {fraction}")
    # Sorted by length, and at random where lengths are equal.
    order_E = np.lexsort((np.random.default_rng(seed).random(len(length)), length))
    # 100 times 0.29 is below 29.
    whole_E = np.floor(np.arange(len(length) + 1) * fraction + 1e-9)
    marked_E = np.zeros(len(length), bool)
    marked_E[order_E] = np.diff(whole_E) > 0
    return marked_E


def cast(space: Any, values: Any, field: str) -> np.ndarray:
    """Return values with the dtype of their space, which their shape and kind must fit."""
    if kind_of(space) == "text":
        return text_tokens(space, values)
    one = f"one of their space is {space.dtype.name}{list(space.shape)}"
    if not np.can_cast(values.dtype, space.dtype, "same_kind") or values.shape[1:] != space.shape:
        stored = f"{values.dtype.name}{list(values.shape[1:])}"
        raise ValueError(f"{field} are {stored}, but {one}")
    # Choices are stored as int64 but are int32 here.
    cast: np.ndarray = values.astype(space.dtype)
    if np.issubdtype(values.dtype, np.integer) and (cast != values).any():
        raise ValueError(f"{field} are up to {np.abs(values).max()}, but {one}")
    return cast


def clip_actions(actions: Any, space: Any, tolerance: float = 0.0) -> Any:
    """Clip the parts of actions that exceed the bounds of a Box by rounding, or by a tolerance.

    Others, and values of other spaces, are returned as they are.
    """

    def clipped(leaf: Any, x: Any, _: str) -> Any:
        if kind_of(leaf) != "box":
            return x
        low, high = _tolerated(leaf, tolerance)
        return np.where((x >= low) & (x <= high), np.clip(x, leaf.low, leaf.high), x)

    return map_leaves(clipped, space, actions)


def _tolerated(space: gymnasium.spaces.Box, tolerance: float = 0.0) -> tuple[Any, Any]:
    """Return the bounds of a Box, widened by a tolerance or some rounding errors of float32."""
    slack_low, slack_high = (
        np.maximum(1e-6 * np.maximum(1, np.abs(x)), tolerance).astype(x.dtype)
        for x in (space.low, space.high)
    )
    return space.low - slack_low, space.high + slack_high


def check(trajectories: Trajectories, first: int = 0) -> None:
    """Raise if the trajectories are invalid; on the host.

    Observations must belong to their space, see `specs.values`: its floats may exceed their bounds,
    as the spaces of published environments do. Actions may exceed theirs by rounding, see
    `clip_actions`.

    Args:
      trajectories: the set.
      first: number of its first episode, for messages.

    Raises:
      TypeError: for another object, and if an array is missing, of the wrong dtype, or no array.
      ValueError: naming the field: for a wrong shape, no episodes, an empty episode, a length
        beyond T, a number that is not finite, or a value outside its space.
    """
    remedy = "one_episode returns one"
    require_instance("a set of trajectories", trajectories, Trajectories, remedy)
    rewards, length, terminated = (
        _array(field, getattr(trajectories, field)) for field in ("rewards", "length", "terminated")
    )
    if not length.size:
        raise ValueError("length has no entry: there are no episodes")
    if rewards.ndim != 2:
        raise ValueError(
            f"rewards have shape {rewards.shape}, not [E, T]: pass one number for each step"
            f"{', such as rewards[..., 0]' if rewards.ndim == 3 else ''}"
        )
    steps = rewards.shape[1]
    _require("length", length, np.int32, (len(length),))
    _require("rewards", rewards, np.float32, (len(length), steps))
    _require("terminated", terminated, np.bool_, (len(length),))
    if trajectories.lacks_action is not None:
        lacks_action = _array("lacks_action", trajectories.lacks_action)
        _require("lacks_action", lacks_action, np.bool_, (len(length),))
    for wrong_E, rule in ((length < 1, "at least 1 action"), (length > steps, f"at most {steps}")):
        if wrong_E.any():
            e = int(np.argmax(wrong_E))
            raise ValueError(f"length[{e}] is {length[e]}: an episode has {rule}")
    real_ET, observed_ET = (np.arange(n) < length[:, None] + n - steps for n in (steps, steps + 1))
    require_rewards(rewards, real_ET, (first, 0))
    require_steps(
        trajectories.spaces,
        trajectories.observations,
        trajectories.actions,
        observed_ET,
        real_ET,
        (first, 0),
    )


def require_rewards(rewards: Any, real: Bool[np.ndarray, "E T"], at: tuple[int, int]) -> None:
    """Raise ValueError if a reward `[E, T]` is not finite; arguments as in `require_steps`."""
    if np.any(wrong := real & ~np.isfinite(rewards)):
        e, t = np.argwhere(wrong)[0]
        where = f"episode {e + at[0]}, step {t + at[1]}"
        raise ValueError(f"{where}: rewards is {rewards[e, t]}: numbers must be finite")


def require_steps(
    spaces: Spaces,
    observations: Any,
    actions: Any,
    observed: Bool[np.ndarray, "E S"],
    real: Bool[np.ndarray, "E T"],
    at: tuple[int, int],
) -> None:
    """Raise if steps `[E, T]` are invalid: the part of `check` that applies to parts of episodes.

    Args:
      spaces: the spaces of one observation and one action.
      observations: `[E, S, ...]`.
      actions: `[E, T, ...]`.
      observed: where there is an observation.
      real: where there are an action and a reward.
      at: number of the first episode, and of its first step, for messages.

    Raises:
      TypeError, ValueError: see `check`.
    """

    def check_array(leaf: Any, x: Any, field: str, real_ET: np.ndarray) -> None:
        x = _array(field, x)
        _require(field, x, dtype_of(leaf), (*real_ET.shape, *shape_of(leaf)))
        _refuse_first(leaf, field, x, np.asarray(belongs(leaf, x)), real_ET, at)

    def check_action(leaf: Any, x: Any, field: str) -> None:
        check_array(leaf, x, field, real)
        if kind_of(leaf) == "box":
            low, high = _tolerated(leaf)
            _refuse_first(leaf, field, x, (x >= low) & (x <= high), real, at)

    map_leaves(
        lambda leaf, x, field: check_array(leaf, x, field, observed),
        spaces.observation,
        observations,
        field="observations",
    )
    map_leaves(check_action, spaces.action, actions, field="actions")


def _array(field: str, value: Any) -> np.ndarray:
    if not isinstance(value, Array | np.ndarray):
        raise TypeError(f"{field} must be an array, not {type(value).__name__}")
    return np.asarray(value)


def _require(field: str, value: np.ndarray, dtype: Any, shape: tuple[int, ...]) -> None:
    if value.dtype != dtype:
        raise TypeError(f"{field} must be of type {np.dtype(dtype).name}, not {value.dtype.name}")
    if value.shape != shape:
        raise ValueError(f"{field} must have shape {shape}, not {value.shape}")


def _refuse_first(
    leaf: Any, field: str, x: Any, allowed: np.ndarray, real_ET: np.ndarray, at: tuple[int, int]
) -> None:
    """Raise for the first number of real steps of `[E, T, ...]` that is not allowed."""
    allowed_ET = np.all(allowed, axis=tuple(range(2, allowed.ndim)))
    if np.any(wrong_ET := real_ET & ~allowed_ET):
        e, t = np.argwhere(wrong_ET)[0]
        place = np.unravel_index(np.argmin(allowed[e, t]), allowed.shape[2:])
        line = describe_value(leaf, x[(e, t, *place)], field, place)
        raise ValueError(f"episode {e + at[0]}, step {t + at[1]}: {line}")
