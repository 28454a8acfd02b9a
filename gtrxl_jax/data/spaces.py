"""The observation and action spaces of a dataset, hashable for use as static data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from gtrxl_jax.specs import action_spec
from gtrxl_jax.specs.spaces import (
    bounds_of,
    characters_of,
    dtype_of,
    kind_of,
    map_leaves,
    parts_of,
    shape_of,
)


@dataclasses.dataclass(frozen=True)
class Spaces:
    """The gymnasium spaces of one observation and one action, created by `dataset_spaces`.

    Equal spaces have equal hashes, so `jax.jit` does not recompile a function of trajectories for
    others of the same spaces and shapes.

    Attributes:
      observation: of any kind in `specs.spaces`.
      action: see `specs.action_spec`.
    """

    observation: gymnasium.Space
    action: gymnasium.Space

    def __hash__(self) -> int:
        # gymnasium's spaces compare by value but are not hashable.
        spaces = (self.observation, self.action)
        return hash(tuple((type(space), space.shape, str(space.dtype)) for space in spaces))


def dataset_spaces(observation: Any, action: Any) -> Spaces:
    """Convert spaces of gymnax or gymnasium, see `specs.spaces`.

    Choices (Discrete, MultiDiscrete) become int32, the dtype of policies' actions in this library.
    Boxes keep their dtypes.

    Raises:
      TypeError: for spaces that are not supported, naming the part.
      ValueError: for choices beyond int32, and actions that no policy fits, see `action_spec`.
    """
    spaces = (
        _joined(map_leaves(_converted, space, field=field))
        for field, space in (("observation_space", observation), ("action_space", action))
    )
    action_spec(action)
    return Spaces(*spaces)


def same_spaces(one: Spaces, other: Spaces) -> bool:
    """Return whether spaces are equal, with bounds up to rounding.

    Bounds beyond 1e30 are infinite: some environments declare the largest float instead.
    """
    return _same(one.observation, other.observation) and _same(one.action, other.action)


def _same(one: gymnasium.Space, other: gymnasium.Space) -> bool:
    parts, others = parts_of(one), parts_of(other)
    if parts is not None and others is not None:
        return (type(one), list(parts)) == (type(other), list(others)) and all(
            _same(part, others[key]) for key, part in parts.items()
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
    match space:
        case gymnasium.spaces.Dict():
            return {"dict": {name: _write(part) for name, part in space.spaces.items()}}
        case gymnasium.spaces.Tuple():
            return {"tuple": [_write(part) for part in space.spaces]}
        case gymnasium.spaces.Discrete():
            return {"discrete": int(space.n), "start": int(space.start)}
        case gymnasium.spaces.MultiDiscrete():
            return {"multidiscrete": space.nvec.tolist(), "start": space.start.tolist()}
        case gymnasium.spaces.MultiBinary():
            return {"multibinary": list(space.shape)}
        case gymnasium.spaces.Text():
            lengths = [space.min_length, space.max_length]
            return {"text": lengths, "characters": "".join(characters_of(space))}
    bounds = {"low": _texts(space.low), "high": _texts(space.high)}
    return {"box": list(space.shape), "dtype": space.dtype.name} | bounds


def _restore(record: Mapping[str, Any]) -> gymnasium.Space:
    if "dict" in record:
        parts = {name: _restore(part) for name, part in record["dict"].items()}
        return gymnasium.spaces.Dict(parts)
    if "tuple" in record:
        return gymnasium.spaces.Tuple([_restore(part) for part in record["tuple"]])
    if "discrete" in record:
        return gymnasium.spaces.Discrete(record["discrete"], start=record["start"], dtype=np.int32)
    if "multidiscrete" in record:
        nvec, start = (np.array(record[field], np.int32) for field in ("multidiscrete", "start"))
        return gymnasium.spaces.MultiDiscrete(nvec, dtype=np.int32, start=start)
    if "multibinary" in record:
        return gymnasium.spaces.MultiBinary(record["multibinary"])
    if "text" in record:
        least, most = record["text"]
        return gymnasium.spaces.Text(most, min_length=least, charset=record["characters"])
    shape, dtype = tuple(record["box"]), np.dtype(record["dtype"])
    low, high = (
        np.broadcast_to(_numbers(record[field], dtype), shape) for field in ("low", "high")
    )
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def _texts(bound: np.ndarray) -> Any:
    """Return exact numbers as text, which unlike JSON's can be infinite; one if all are equal."""
    equal = bound.size and (bound == bound.flat[0]).all()
    return np.asarray(bound.flat[0] if equal else bound).astype(str).tolist()


def _numbers(texts: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers that `_texts` wrote."""
    texts = np.array(texts)
    return np.asarray(texts == "True" if dtype == np.bool_ else texts.astype(dtype))


def _converted(leaf: Any, field: str) -> gymnasium.Space:
    """Return the space of gymnasium of a space without parts."""
    kind, shape = kind_of(leaf), shape_of(leaf) if kind_of(leaf) else ()
    if kind in ("discrete", "multi-discrete"):
        low, high = bounds_of(leaf)
        _require_int32(int(np.max(high)) + 1, field)
        if kind == "discrete":
            return gymnasium.spaces.Discrete(int(leaf.n), start=int(low), dtype=np.int32)
        start = np.broadcast_to(low, shape).astype(np.int32)
        nvec = np.broadcast_to(high - low + 1, shape).astype(np.int32)
        return gymnasium.spaces.MultiDiscrete(nvec, dtype=np.int32, start=start)
    if kind == "multi-binary":
        return gymnasium.spaces.MultiBinary(shape)
    if kind == "text":
        length, least = int(leaf.max_length), int(getattr(leaf, "min_length", 0))
        characters = "".join(characters_of(leaf))
        return gymnasium.spaces.Text(length, min_length=least, charset=characters)
    if kind == "box":
        dtype = dtype_of(leaf)
        low, high = (np.broadcast_to(z, shape).astype(dtype) for z in bounds_of(leaf))
        return gymnasium.spaces.Box(low, high, shape, dtype.type)
    raise TypeError(
        f"{field} is a {type(leaf).__name__}: offline data require a Box, Discrete, MultiDiscrete, "
        "MultiBinary or Text, or a Dict or Tuple of them"
    )


def _joined(parts: Any) -> gymnasium.Space:
    """Return the space of gymnasium of spaces in dicts and tuples."""
    if isinstance(parts, dict):
        return gymnasium.spaces.Dict({name: _joined(part) for name, part in parts.items()})
    if isinstance(parts, tuple):
        return gymnasium.spaces.Tuple([_joined(part) for part in parts])
    return parts


def _require_int32(number: int, field: str) -> None:
    if number > np.iinfo(np.int32).max:
        raise ValueError(f"{field} has choices up to {number}, beyond int32: declare it as a Box")
