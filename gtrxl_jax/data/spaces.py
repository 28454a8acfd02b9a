"""The observation and action spaces of a dataset, hashable for use as static data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from gtrxl_jax.specs import BOX, DICT, DISCRETE


@dataclasses.dataclass(frozen=True)
class Spaces:
    """The gymnasium spaces of one observation and one action, created by `dataset_spaces`.

    Equal spaces have equal hashes, so `jax.jit` does not recompile a function of trajectories for
    others of the same spaces and shapes.

    Attributes:
      observation: a Box, a Discrete, a MultiDiscrete, or a Dict of these.
      action: a Box `[C]` of floats or a Discrete.
    """

    observation: gymnasium.Space
    action: gymnasium.Space

    def __hash__(self) -> int:
        # gymnasium's spaces compare by value but are not hashable.
        spaces = (self.observation, self.action)
        return hash(tuple((type(space), space.shape, str(space.dtype)) for space in spaces))


def dataset_spaces(observation: Any, action: Any) -> Spaces:
    """Convert spaces of gymnax or gymnasium.

    Choices (Discrete, MultiDiscrete) become int32, the dtype of policies' actions in this library.
    Boxes keep their dtypes.

    Raises:
      TypeError: for spaces that `Spaces` does not support, naming the part.
      ValueError: for choices beyond int32.
    """
    action = _read(action, "action_space")
    if not isinstance(action, (gymnasium.spaces.Box, gymnasium.spaces.Discrete)):
        raise TypeError(
            f"action_space is a {type(action).__name__}: offline data require a Box or a Discrete"
        )
    if isinstance(action, gymnasium.spaces.Box) and not (
        len(action.shape) == 1 and np.issubdtype(action.dtype, np.floating)
    ):
        raise TypeError(
            f"action_space is a Box {action.shape} of {action.dtype}: "
            "offline data require a Box [C] of floats or a Discrete"
        )
    return Spaces(_read(observation, "observation_space"), action)


def _read(space: Any, field: str) -> gymnasium.Space:
    if isinstance(space, (*DICT, Mapping)):
        children: Any = getattr(space, "spaces", space)
        parts = {name: _read(children[name], f"{field}[{name!r}]") for name in sorted(children)}
        return gymnasium.spaces.Dict(parts)
    if isinstance(space, DISCRETE):
        start, size = int(getattr(space, "start", 0)), int(space.n)
        _require_int32(start + size, field)
        return gymnasium.spaces.Discrete(size, start=start, dtype=np.int32)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        _require_int32(int(np.max(space.start + space.nvec)), field)
        return gymnasium.spaces.MultiDiscrete(
            space.nvec.astype(np.int32), dtype=np.int32, start=space.start.astype(np.int32)
        )
    if isinstance(space, BOX):
        dtype, shape = np.dtype(space.dtype), tuple(map(int, space.shape))
        low, high = (
            np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high)
        )
        return gymnasium.spaces.Box(low, high, shape, dtype.type)
    raise TypeError(
        f"{field} is a {type(space).__name__}: offline data require a Box, a Discrete, a "
        "MultiDiscrete, or a Dict of them"
    )


def _require_int32(number: int, field: str) -> None:
    if number > np.iinfo(np.int32).max:
        raise ValueError(f"{field} has choices up to {number}, beyond int32: declare it as a Box")
