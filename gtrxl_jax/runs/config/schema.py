"""Configs as nested frozen dataclasses: their fields checked, written as JSON and read back."""

import dataclasses
import json
import math
from collections.abc import Collection, Iterator
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gtrxl_jax import __version__
from gtrxl_jax.choices import check_choice

Config = TypeVar("Config")


def check_types(config: Any) -> None:
    """Refuse a value that is not of its field's type.

    Raises:
      TypeError: naming the field, the value and what it must be.
    """
    for field, kind, value in fields(config):
        _check_type(field, kind, value)


def check_ranges(
    config: Any,
    *,
    skip: tuple[str, ...] = (),
    may_be_zero: Collection[str] = (),
    at_most_one: Collection[str] = (),
) -> None:
    """Refuse a number that is not finite, or not above 0.

    Args:
      config: whose types are right.
      skip: beginnings of the names of fields that are checked elsewhere.
      may_be_zero: fields that may be 0.
      at_most_one: fields that must not exceed 1.

    Raises:
      ValueError: naming the field, the value and the remedy.
    """
    for field, _, value in fields(config):
        if field.startswith(skip):
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            zero = field in may_be_zero
            if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
                lowest = "at least 0" if zero else "above 0"
                raise ValueError(f"{field} must be {lowest} and finite, not {number!r}")
            if field in at_most_one and number > 1:
                raise ValueError(f"{field} must be at most 1, not {number!r}")


def to_json(kind: str, config: Any) -> str:
    """The config as JSON, to be kept beside the results; `kind` says what reads it.

    The library's version is written, too.
    """
    origin = {"kind": kind, "version": __version__}
    return json.dumps(origin | dataclasses.asdict(config), indent=2) + "\n"


def kind_of(text: str) -> str:
    """What kind of run a config is of.

    Raises:
      ValueError: the text is no config.
    """
    parsed = _parse(text)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("kind"), str):
        raise ValueError('the config is of no run: it has no "kind"')
    return parsed["kind"]


def from_json(kind: str, of: type[Config], text: str) -> Config:
    """The config that `to_json` wrote. Its values are not checked.

    Raises:
      ValueError: the text is no config of that kind, or has fields that this version lacks.
      TypeError: fields where a value should be, or the other way round.
    """
    parsed = _parse(text)
    if not isinstance(parsed, dict) or parsed.pop("kind", None) != kind:
        raise ValueError(f'the config is not of an {kind} run: its "kind" is not "{kind}"')
    parsed.pop("version", None)
    return _build(of, parsed, "")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the config is not JSON: {error}") from None


def fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, type and value of every field that is not a config itself."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            yield prefix + name, kind, value
        elif isinstance(value, kind):
            yield from fields(value, f"{prefix}{name}.")
        else:
            raise TypeError(f"{prefix}{name} must be of type {kind.__name__}, not {value!r}")


def _check_type(field: str, kind: Any, value: Any) -> None:
    alternatives = get_args(kind) if type(None) in get_args(kind) else (kind,)
    if not any(_is_a(value, alternative) for alternative in alternatives):
        names = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
        described = " or ".join(names.get(a, str(a)) for a in alternatives if a is not type(None))
        raise TypeError(f"{field} must be {described}, not {value!r}")


def _is_a(value: Any, kind: Any) -> bool:
    """Whether the value is of the kind: a class, or a tuple or dict of such."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        # What a parameter may be, its environment knows.
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if origin is tuple and isinstance(value, tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return len(kinds) == len(value) and all(map(_is_a, value, kinds))
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return origin is None and isinstance(value, int | float if kind is float else kind)


def _build(kind: Any, fields: Any, prefix: str) -> Any:
    if not isinstance(fields, dict):
        raise TypeError(f"{prefix.rstrip('.')} must have fields, not be {fields!r}")
    hints = get_type_hints(kind)
    for name in fields:
        check_choice("config field", prefix + name, [prefix + hint for hint in hints])
    return kind(**{name: _value(hints[name], fields[name], prefix + name) for name in fields})


def _value(kind: Any, value: Any, name: str) -> Any:
    """JSON has no tuples, and nothing that tells a config from another mapping."""
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{name}.")
    if isinstance(value, list) and tuple in [get_origin(k) for k in (kind, *get_args(kind))]:
        return tuple(value)
    return value
