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


def same_spaces(one: Spaces, other: Spaces) -> bool:
    """Return whether spaces are equal, with bounds up to rounding.

    Bounds beyond 1e30 are infinite: some environments declare the largest float instead.
    """
    return _same(one.observation, other.observation) and _same(one.action, other.action)


def _same(one: gymnasium.Space, other: gymnasium.Space) -> bool:
    if isinstance(one, gymnasium.spaces.Dict) and isinstance(other, gymnasium.spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(
            _same(child, other.spaces[name]) for name, child in one.spaces.items()
        )
    if not (isinstance(one, gymnasium.spaces.Box) and isinstance(other, gymnasium.spaces.Box)):
        return bool(one == other)
    return (one.shape, one.dtype) == (other.shape, other.dtype) and all(
        np.allclose(_bound(a), _bound(b), rtol=1e-5, atol=1e-6)
        for a, b in ((one.low, other.low), (one.high, other.high))
    )


def _bound(bound: np.ndarray) -> np.ndarray:
    wide = bound.astype(np.float64)
    return np.where(np.abs(wide) > 1e30, np.copysign(np.inf, wide), wide)


def to_record(spaces: Spaces) -> dict[str, Any]:
    """Return the spaces as JSON values, from which `from_record` restores them."""
    return {"observation": _write(spaces.observation), "action": _write(spaces.action)}


def from_record(record: Mapping[str, Any]) -> Spaces:
    """Return the spaces that `to_record` wrote."""
    return Spaces(_restore(record["observation"]), _restore(record["action"]))


def _write(space: Any) -> dict[str, Any]:
    if isinstance(space, gymnasium.spaces.Dict):
        return {"dict": {name: _write(child) for name, child in space.spaces.items()}}
    if isinstance(space, gymnasium.spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start)}
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return {"multidiscrete": space.nvec.tolist(), "start": space.start.tolist()}
    bounds = {"low": _texts(space.low), "high": _texts(space.high)}
    return {"box": list(space.shape), "dtype": space.dtype.name} | bounds


def _restore(record: Mapping[str, Any]) -> gymnasium.Space:
    if "dict" in record:
        parts = {name: _restore(child) for name, child in record["dict"].items()}
        return gymnasium.spaces.Dict(parts)
    if "discrete" in record:
        return gymnasium.spaces.Discrete(record["discrete"], start=record["start"], dtype=np.int32)
    if "multidiscrete" in record:
        nvec, start = (np.array(record[field], np.int32) for field in ("multidiscrete", "start"))
        return gymnasium.spaces.MultiDiscrete(nvec, dtype=np.int32, start=start)
    shape, dtype = tuple(record["box"]), np.dtype(record["dtype"])
    low, high = (
        np.broadcast_to(np.array(record[bound]).astype(dtype), shape) for bound in ("low", "high")
    )
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def _texts(bound: np.ndarray) -> Any:
    """Return exact numbers as text, which unlike JSON's can be infinite; one if all are equal."""
    equal = bound.size and (bound == bound.flat[0]).all()
    return np.asarray(bound.flat[0] if equal else bound).astype(str).tolist()


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
