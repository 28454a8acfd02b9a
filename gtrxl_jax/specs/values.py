"""Whether values belong to a space: integers within its bounds, and finite floats.

Floats may exceed the bounds of their box, as they do in many published environments. Values that
the agent's dtypes cannot hold, which are at most 32 bits wide unless jax_enable_x64 is set, belong
to no space.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from gtrxl_jax.specs.spaces import (
    Leaf,
    bounds_of,
    describe,
    dtype_of,
    leaves_of,
    map_leaves,
    shape_of,
)

AnyArray = Array | np.ndarray

BELONGS = -1


def belongs(leaf: Leaf, x: Shaped[AnyArray, "..."]) -> Bool[AnyArray, "..."]:
    """Return whether each number of `[..., *shape]` belongs to a space without parts.

    Numbers of other dtypes belong if they have the same value in the space's dtype. NumPy arrays
    stay on the host.
    """
    xp, given = x.__array_namespace__(), np.dtype(x.dtype)
    if holds_all(leaf, given):
        return xp.broadcast_to(xp.asarray(True), x.shape)
    if jnp.issubdtype(_dtype(leaf), np.floating):
        largest = min(float(jnp.finfo(dtype).max) for dtype in (given, _dtype(leaf)))
        return xp.asarray(xp.abs(x) <= largest)
    low, high = _whole_bounds(leaf)
    is_whole = True
    if jnp.issubdtype(given, np.floating):
        is_whole = x == xp.floor(x)
    else:
        least, greatest = _range(given)
        is_reached = (low <= greatest) & (high >= least)
        # Bounds that the dtype cannot reach become an empty interval.
        low = np.where(is_reached, low.clip(least, greatest), 1)
        high = np.where(is_reached, high.clip(least, greatest), 0)
    return xp.asarray(is_whole & (x >= _bound(low, x)) & (x <= _bound(high, x)))


def holds_all(leaf: Leaf, given: np.dtype[Any]) -> bool:
    """Return whether all numbers of a dtype belong to a space without parts."""
    if jnp.issubdtype(given, np.floating):
        return False
    if jnp.issubdtype(_dtype(leaf), np.floating):
        return True
    (low, high), (least, greatest) = _whole_bounds(leaf), _range(given)
    return bool(np.all(low <= least) and np.all(high >= greatest))


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest integer or boolean of a dtype."""
    if dtype == np.bool_:
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _dtype(leaf: Leaf) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype_of(leaf)))


def _whole_bounds(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of integers or booleans that the agent's dtype can hold."""
    least, greatest = _range(_dtype(leaf))
    low, high = (bound.astype(int) if bound.dtype == bool else bound for bound in bounds_of(leaf))
    return np.asarray(np.maximum(low, least)), np.asarray(np.minimum(high, greatest))


def _bound(bound: Any, x: AnyArray) -> np.ndarray:
    """Return a bound with the dtype and the rank of numbers `[..., *shape]`."""
    return np.asarray(bound, x.dtype).reshape((1,) * (x.ndim - bound.ndim) + bound.shape)


def require_values(space: Any, values: Any, field: str = "observation") -> None:
    """Raise for the first value on the host that does not belong to a space.

    Args:
      space: a space.
      values: arrays `[..., *shape]`, nested as the space is.
      field: the name of the values in messages.

    Raises:
      ValueError: if the values are nested otherwise, an array has another shape, or a value does
        not belong.
      TypeError: if floats are given for integers, or something else than numbers.
    """
    map_leaves(_require_array, space, values, field=field)


def require_host_values(space: Any, values: Any) -> None:
    """Raise as `require_values` does, for values that can be read without waiting for a device.

    Tracers, and arrays on accelerators, are not checked.
    """
    if all(map(_is_on_host, jax.tree.leaves(values))):
        require_values(space, values)


def _is_on_host(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer):
        return False
    return not isinstance(x, Array) or all(device.platform == "cpu" for device in x.devices())


def _require_array(leaf: Leaf, x: Any, field: str) -> None:
    x, shape = np.asarray(x), shape_of(leaf)
    require_dtype(leaf, x.dtype, field)
    if x.shape[max(x.ndim - len(shape), 0) :] != shape:
        raise ValueError(
            f"{field} has shape {x.shape}, but {describe(leaf)} has {shape}: only leading axes may "
            "be added"
        )
    inside = belongs(leaf, x)
    if not inside.all():
        place = np.unravel_index(np.argmin(inside), x.shape)
        raise ValueError(describe_value(leaf, x[place], field, place[x.ndim - len(shape) :]))


def require_dtype(leaf: Leaf, dtype: Any, field: str) -> None:
    """Raise TypeError for floats where a space has integers, and for what are not numbers."""
    dtype = np.dtype(dtype)
    is_float = jnp.issubdtype(dtype, np.floating)
    is_whole = jnp.issubdtype(dtype, np.integer) or dtype == np.bool_
    if not is_whole and not (is_float and jnp.issubdtype(dtype_of(leaf), np.floating)):
        raise TypeError(
            f"{field} is {dtype}, but its space is {describe(leaf)}: convert it to {dtype_of(leaf)}"
        )


def describe_value(leaf: Leaf, value: Any, field: str, place: tuple[Any, ...]) -> str:
    """Return a line about a value that does not belong: "observation['id'] is 5, outside ...".

    Args:
      leaf: its space, without parts.
      value: the value.
      field: the name of the array.
      place: the index of its entry; () in an array without axes.
    """
    entry = f"[{', '.join(str(int(index)) for index in place)}]" if place else ""
    dtype = _dtype(leaf)
    if jnp.issubdtype(dtype, np.floating):
        if not np.isfinite(value):
            return f"{field}{entry} is {value}, not finite"
        if abs(value) > float(jnp.finfo(dtype).max):
            return f"{field}{entry} is {value}, too large for {dtype}"
        return f"{field}{entry} is {value}, outside {describe(leaf)}"
    low, high = (np.broadcast_to(z, shape_of(leaf)) for z in bounds_of(leaf))
    if low[place] <= value <= high[place] and value == int(value):
        return f"{field}{entry} is {value}, too large for {dtype}"
    return f"{field}{entry} is {value}, outside {describe(leaf)}"


def first_outside(space: Any, values: Any) -> Int[Array, "4"]:
    """Return where values do not belong to a space; pure, for programs. See `describe_outside`.

    Returns:
      The number of the first leaf with such a value, or `BELONGS`; the number of its entry in the
      array; and the largest such value there, as the number of its dtype in `_DTYPES` and its bits.
    """
    found = jnp.array([BELONGS, 0, 0, 0], jnp.int32)
    arrays: list[Any] = []
    map_leaves(lambda leaf, x, field: arrays.append((leaf, x)), space, values)
    for number, (leaf, x) in reversed(list(enumerate(arrays))):
        if holds_all(leaf, np.dtype(x.dtype)):
            continue
        found = jnp.where(jnp.all(belongs(leaf, x)), found, _of_array(number, leaf, x))
    return found


def _of_array(number: int, leaf: Leaf, x: Shaped[Array, "..."]) -> Int[Array, "4"]:
    # Reductions over the batch only, which may be split over devices.
    outside_NE = ~belongs(leaf, x).reshape(-1, math.prod(shape_of(leaf)))
    entry = jnp.argmax(jnp.any(outside_NE, axis=0)).astype(jnp.int32)
    kind = 0 if jnp.issubdtype(x.dtype, jnp.floating) else 1
    kind += jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    x_NE = x.reshape(outside_NE.shape).astype(_DTYPES[kind])
    lowest = jnp.asarray(-jnp.inf if kind == 0 else jnp.iinfo(x_NE.dtype).min, x_NE.dtype)
    value = jnp.max(jnp.where(outside_NE[:, entry], x_NE[:, entry], lowest))
    bits = jax.lax.bitcast_convert_type(value, jnp.int32)
    return jnp.stack([jnp.int32(number), entry, jnp.int32(kind), bits])


_DTYPES: tuple[Any, ...] = (np.float32, np.int32, np.uint32)
"""The dtypes in which values are reported."""


def describe_outside(space: Any, found: Int[np.ndarray, "4"], field: str = "observation") -> str:
    """Return a line about what `first_outside` found."""
    number, entry, kind, _ = found.tolist()
    name, leaf = list(leaves_of(space, field))[number]
    value = found[3:].astype(np.int32).view(_DTYPES[kind])[0]
    shape = shape_of(leaf)
    return describe_value(leaf, value, name, np.unravel_index(entry, shape) if shape else ())
