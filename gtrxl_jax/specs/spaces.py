"""The spaces of gymnax and gymnasium, recognized by their attributes: neither library is imported.

| kind | attributes | one observation or action |
|---|---|---|
| dict | `spaces`, a mapping | a dict of its parts |
| tuple | `spaces`, in a class named Tuple | a tuple of its parts |
| discrete | `n`, perhaps `start` | an integer from `start` to `start + n - 1` |
| multi-discrete | `nvec`, perhaps `start` | such an integer for each entry |
| multi-binary | `n`, and a shape | 0 or 1 for each entry |
| text | `max_length`, `characters` | `max_length` tokens, see `text_tokens` |
| box | `low`, `high`, `shape`, `dtype` | an array |

Mappings and tuples of arrays are also spaces, whose leaves have the shape and dtype of one
observation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Shaped

Leaf = Any
"""A space without parts."""


def kind_of(space: Any) -> str:
    """Return the kind of a space, see the table; "array" for arrays, "" if it is unknown."""
    if isinstance(space, Mapping) or isinstance(getattr(space, "spaces", None), Mapping):
        return "dict"
    named_tuple = any(kind.__name__ == "Tuple" for kind in type(space).__mro__)
    if isinstance(space, tuple) or (named_tuple and hasattr(space, "spaces")):
        return "tuple"
    if hasattr(space, "nvec"):
        return "multi-discrete"
    if hasattr(space, "max_length") and hasattr(space, "characters"):
        return "text"
    if hasattr(space, "low") and hasattr(space, "high"):
        return "box"
    if hasattr(space, "n"):
        return "multi-binary" if getattr(space, "shape", ()) else "discrete"
    dtype = getattr(space, "dtype", None)
    is_array = isinstance(getattr(space, "shape", None), tuple) and dtype is not None
    if is_array and any(jax.dtypes.issubdtype(dtype, kind) for kind in (np.number, np.bool_)):
        return "array"
    return ""


def parts_of(space: Any) -> dict[Any, Any] | None:
    """Return the parts of a dict, by sorted name, or of a tuple, by index; None for leaves."""
    kind, inside = kind_of(space), getattr(space, "spaces", space)
    if kind == "dict":
        return {name: inside[name] for name in sorted(inside)}
    return dict(enumerate(inside)) if kind == "tuple" else None


def map_leaves(
    function: Callable[..., Any], space: Any, *values: Any, field: str = "observation"
) -> Any:
    """Apply a function to each leaf of a space.

    Args:
      function: called with the leaf, its part of each of `values`, and its name.
      space: the space.
      values: nested as the space is.
      field: the name of the whole; parts are named `field['key']` and `field[0]`.

    Returns:
      The results, in dicts and tuples nested as the space is.

    Raises:
      ValueError: if `values` are nested otherwise.
    """
    if (parts := parts_of(space)) is None:
        return function(space, *values, field)
    is_dict = kind_of(space) == "dict"
    for value in values:
        keys = _keys(value)
        if keys != set(parts) or isinstance(value, Mapping) != is_dict:
            expected = list(parts) if is_dict else f"of a tuple of {len(parts)}"
            found = type(value).__name__ if keys is None else sorted(keys, key=str)
            raise ValueError(f"{field} must have the entries {expected}, not {found}")
    results = {}
    for key, part in parts.items():
        inside = [value[key] for value in values]
        results[key] = map_leaves(function, part, *inside, field=f"{field}[{key!r}]")
    return results if is_dict else tuple(results.values())


def _keys(value: Any) -> set[Any] | None:
    if isinstance(value, Mapping):
        return set(value)
    return set(range(len(value))) if isinstance(value, tuple) else None


def leaves_of(space: Any, field: str) -> Iterator[tuple[str, Leaf]]:
    """Yield the name and the leaf of each array of a space, in the order of `jax.tree.leaves`."""
    if (parts := parts_of(space)) is None:
        yield field, space
        return
    for key, part in parts.items():
        yield from leaves_of(part, f"{field}[{key!r}]")


def shape_of(leaf: Leaf) -> tuple[int, ...]:
    """Return the shape of the array of a leaf."""
    if kind_of(leaf) == "text":
        return (int(leaf.max_length),)
    return tuple(map(int, getattr(leaf, "shape", ())))


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    """Return the dtype of the array of a leaf."""
    return np.dtype(np.int32 if kind_of(leaf) == "text" else getattr(leaf, "dtype", np.int32))


def bounds_of(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest value of each entry, or one for all.

    Bounds of integers are within their dtype.
    """
    match kind_of(leaf):
        case "discrete" | "multi-discrete":
            sizes = np.asarray(getattr(leaf, "nvec", getattr(leaf, "n", None)), np.int64)
            low = np.asarray(getattr(leaf, "start", 0), np.int64)
            return low, np.asarray(low + sizes - 1)
        case "multi-binary":
            return np.array(0), np.array(1)
        case "text":
            return np.array(0), np.array(len(characters_of(leaf)))
        case "box":
            return _bound(leaf.low, dtype_of(leaf)), _bound(leaf.high, dtype_of(leaf))
    return _bound(-np.inf, dtype_of(leaf)), _bound(np.inf, dtype_of(leaf))


def _bound(bound: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a bound within its dtype; a single number if all entries share it."""
    bound = np.asarray(bound)
    if bound.size and (bound == bound.flat[0]).all():
        bound = np.asarray(bound.flat[0])
    if dtype == np.bool_:
        return np.asarray(bound.clip(0, 1).astype(bool))
    if not np.issubdtype(dtype, np.integer):
        return bound
    least, greatest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    whole = [int(min(max(x, least), greatest)) for x in bound.reshape(-1).tolist()]
    return np.array(whole).reshape(bound.shape)


def describe(leaf: Leaf) -> str:
    """Return a short text for messages, such as "Discrete(3)", the same for both libraries."""
    low, high = (bound.tolist() for bound in bounds_of(leaf))
    match kind_of(leaf):
        case "array":
            return f"{dtype_of(leaf)}{list(shape_of(leaf))}"
        case "discrete":
            start = f", start={low}" if low else ""
            return f"Discrete({int(leaf.n)}{start})"
        case "multi-discrete":
            start = f", start={low}" if np.any(low) else ""
            return f"MultiDiscrete({np.asarray(leaf.nvec).tolist()}{start})"
        case "multi-binary":
            return f"MultiBinary({list(shape_of(leaf))})"
        case "text":
            return f"Text({int(leaf.max_length)})"
    return f"Box({_short(low)}, {_short(high)}, {shape_of(leaf)}, {dtype_of(leaf)})"


def _short(bound: Any) -> str:
    text = str(bound)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def characters_of(space: Any) -> list[str]:
    """Return the characters of a text space in the order of their tokens, each once.

    gymnasium keeps those that a charset repeats, as that of BabyAI's datasets does.
    """
    return sorted(set(space.characters))


def text_tokens(space: Any, texts: Iterable[str | bytes]) -> Int[np.ndarray, "N L"]:
    """Convert strings of a text space to tokens, int32.

    Token c + 1 is the character c of the sorted characters of the space, and 0 is padding at the
    end, up to the space's `max_length` L.

    Raises:
      ValueError: if a string is too long, or has a character that the space has not.
    """
    length = int(space.max_length)
    token = {character: c + 1 for c, character in enumerate(characters_of(space))}
    rows = []
    for text in texts:
        text = text.decode() if isinstance(text, bytes) else str(text)
        if len(text) > length:
            raise ValueError(f"the text {text!r} has more than {length} characters")
        if unknown := sorted(set(text) - set(token)):
            raise ValueError(f"the text {text!r} has {unknown[0]!r}, which is not in its space")
        rows.append([*(token[character] for character in text), *[0] * (length - len(text))])
    return np.array(rows, np.int32).reshape(-1, length)


def texts_of(space: Any, tokens: Shaped[np.ndarray, "N L"]) -> list[str]:
    """Convert tokens back to strings; the inverse of `text_tokens`.

    Raises:
      ValueError: if there is padding before the end of a string.
    """
    if np.any((tokens[:, :-1] == 0) & (tokens[:, 1:] != 0)):
        raise ValueError("a text has padding, the token 0, before its end: pad it at the end only")
    characters = ["", *characters_of(space)]
    return ["".join(characters[token] for token in row) for row in tokens.tolist()]


def align(vector: np.ndarray, x: Any, dtype: Any = None) -> np.ndarray:
    """Return a vector `[C]` with the rank of an array `[..., C]`, and its dtype unless given."""
    return np.asarray(vector, dtype or x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
