"""Validation of configs, whose fields declare their valid values.

Example:
    @dataclasses.dataclass(frozen=True)
    class EncoderConfig:
        kind: str = choice("mlp", ("mlp", "conv"))
        width: int = 64  # by default, an int is at least 1 and has 31 bits
        scale: float = 1.0  # by default, a float is positive and finite
        dropout: float = number(0.0, at_least=0, below=1)

        def check(self) -> None: ...  # optional: checks that involve several fields

    validate(EncoderConfig(width=0), "encoder.")  # ValueError: encoder.width must be at least 1
"""

import dataclasses
import difflib
import math
import numbers
from collections.abc import Collection, Iterable, Iterator
from typing import Any, get_args, get_origin, get_type_hints

LARGEST = 2**31 - 1
"""The largest value of an integer in an array, and by default of an integer in a config."""
MOST_STEPS = 10**15
"""The largest number of steps, which are counted on the host."""


def require_choice(field: str, name: Any, known: Iterable[str]) -> str:
    """Return `name` if it is one of the known names.

    Raises:
      ValueError: if it is not; the message contains the field, the three nearest valid names, and
        all of them, unless they are many.
    """
    known = sorted(known)
    if name in known:
        return name
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(str(name).casefold(), folded, n=3, cutoff=0.4)
    if (ours := _NAMES_ELSEWHERE.get(str(name))) in known:
        near = [ours]
    message = f"unknown {field} {name!r}: "
    if near:
        message += f"did you mean {' or '.join(repr(folded[one]) for one in near)}?"
    if len(known) <= _MOST_LISTED:
        message += f"{' ' if near else 'choose one of them. '}Valid: {', '.join(known)}"
    elif not near:
        message += f"it is like none of the {len(known)} valid names, which gtrxl list shows"
    raise ValueError(message)


_MOST_LISTED = 40
_NAMES_ELSEWHERE = {
    "hidden_size": "width",
    "d_model": "width",
    "embed_dim": "width",
    "features": "width",
    "num_layers": "layers",
    "n_layers": "layers",
}
"""The name here of what other libraries call otherwise, which is like none or like another."""


@dataclasses.dataclass(frozen=True)
class _Range:
    above: float = 0
    at_least: float | None = None
    below: float = math.inf
    at_most: float = math.inf


def number(default: float | tuple[float, ...] | None, **bounds: float) -> Any:
    """Declare a field of one or several bounded numbers.

    Args:
      default: default value; None for an optional field.
      **bounds: `above` or `at_least`, and `below` or `at_most`. The default is `above=0`. A lower
        bound of -inf allows every finite number.
    """
    return dataclasses.field(default=default, metadata={"range": _Range(**bounds)})


def interval(default: tuple[float, float] | None) -> Any:
    """Declare a field (low, high), where 0 < low < high."""
    return dataclasses.field(default=default, metadata={"interval": True})


def choice(default: str, names: Collection[str]) -> Any:
    """Declare a field that is one of `names`, or the empty string if that is the default."""
    return dataclasses.field(default=default, metadata={"names": names, "or_empty": not default})


def validate(config: Any, prefix: str = "") -> None:
    """Check the fields of a config and of its nested configs, then call its `check`, if any.

    Args:
      config: a dataclass.
      prefix: prefix of the field names in error messages, for example "core.".

    Raises:
      TypeError: if a value does not have the type of its field.
      ValueError: if a number is out of range, a name is unknown, or fields contradict each other.
        The message contains the field, its value, and the valid values.
    """
    for name, kind, value, metadata in _fields(config):
        if _is_config(kind):
            if not isinstance(value, kind):
                raise TypeError(
                    f"{prefix}{name} must be of type {kind.__name__}, not "
                    f"{_described(prefix + name, kind, value)}"
                )
            validate(value, f"{prefix}{name}.")
            continue
        names = metadata.get("names", ())
        _require_type(prefix + name, kind, value, names)
        if names:
            if value or not metadata["or_empty"]:
                require_choice(prefix + name, value, names)
            continue
        _require_in_range(prefix + name, value, metadata.get("range", _Range()))
        if metadata.get("interval") and value is not None:
            require_interval(prefix + name, value)
    if hasattr(config, "check"):
        config.check()


def require_interval(field: str, bounds: Any) -> None:
    """Raise ValueError unless `bounds` is a pair (low, high) with 0 < low < high."""
    if not (_is_a(bounds, tuple[float, float]) and 0 < bounds[0] < bounds[1] < math.inf):
        raise ValueError(f"{field} must be (low, high) with 0 < low < high, not {bounds}")


def require_instance(field: str, value: Any, kind: type, remedy: str) -> None:
    """Raise TypeError, which ends with the remedy, unless `value` is of a class."""
    if not isinstance(value, kind):
        found = type(value).__name__
        raise TypeError(f"{field} must be of type {kind.__name__}, not {found}: {remedy}")


def require_count(field: str, value: Any, at_least: int = 1) -> None:
    """Raise unless `value` is a whole number that is large enough.

    Raises:
      ValueError: if it is below `at_least`.
      TypeError: if it is not a whole number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{field} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{field} must be at least {at_least}, got {value}")


def require_number(field: str, value: Any, **bounds: float) -> None:
    """Raise unless `value` is a finite number within bounds, which are those of `number`.

    Raises:
      ValueError: if it is out of bounds or not finite.
      TypeError: if it is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{field} must be a number, not {value!r}")
    try:
        value = float(value)
    except OverflowError:  # An int of hundreds of digits.
        value = math.inf if value > 0 else -math.inf
    _require_in_range(field, value, _Range(**bounds))


def field_names(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name, such as "core.width", and type of every field that is not a config."""
    for name, kind, value, _ in _fields(config):
        if _is_config(kind):
            yield from field_names(value, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _fields(config: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        yield field.name, hints[field.name], getattr(config, field.name), field.metadata


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _require_in_range(field: str, value: Any, bounds: _Range) -> None:
    for x in value if isinstance(value, tuple) else (value,):
        if isinstance(x, bool) or not isinstance(x, int | float):
            continue
        low = bounds.at_least
        if low is None and isinstance(x, int):
            low = math.floor(bounds.above) + 1
        finite = isinstance(x, int) or math.isfinite(x)  # an int may be too large for a float
        if not finite or (x <= bounds.above if low is None else x < low):
            lower = f"above {bounds.above}" if low is None else f"at least {low}"
            if math.isinf(bounds.above if low is None else low):
                lower = "finite"
            elif isinstance(x, float):
                lower += " and finite"
            raise ValueError(f"{field} must be {lower}, not {x!r}")
        most = bounds.at_most
        if isinstance(x, int) and math.isinf(most):
            most = LARGEST
        if x > most:
            raise ValueError(f"{field} must be at most {most}, not {x!r}")
        if x >= bounds.below:
            raise ValueError(f"{field} must be below {bounds.below}, not {x!r}")


def _described(field: str, kind: type, value: Any) -> str:
    """Describe what is no config of a kind; if it is a name, with the config that it stands for."""
    if not isinstance(value, str):
        return type(value).__name__
    if hasattr(kind, "named"):  # the class depends on the name
        return f"{value!r}: pass with_name(config.{field}, {value!r}) of gtrxl_jax.plugins"
    if hasattr(kind, "name"):
        return f"{value!r}: pass dataclasses.replace(config.{field}, name={value!r})"
    return repr(value)


def _require_type(field: str, kind: Any, value: Any, choices: Collection[str]) -> None:
    alternatives = get_args(kind) if type(None) in get_args(kind) else (kind,)
    if not any(_is_a(value, alternative) for alternative in alternatives):
        names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
        described = " or ".join(names.get(a, str(a)) for a in alternatives if a is not type(None))
        if choices:
            described += f", {' or '.join(map(repr, choices))}"
        # Only Python's own types are written to config.json.
        remedy = ": convert it with its item()" if getattr(value, "shape", None) == () else ""
        raise TypeError(f"{field} must be {described}, not {value!r}{remedy}")


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type: a class, a tuple or a dict."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        # The environment validates the values.
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin is tuple and isinstance(value, tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return len(kinds) == len(value) and all(map(_is_a, value, kinds))
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return origin is None and isinstance(value, int | float if kind is float else kind)
