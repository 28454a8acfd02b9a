"""Parsing of arguments by tyro, with errors of one line."""

import argparse
import dataclasses
import difflib
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import tyro
from tyro import _docstrings as tyro_docstrings  # private: pyproject.toml bounds the version
from tyro import _errors as tyro_errors
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gtrxl_jax.files import printable
from gtrxl_jax.plugins import require_settings

Command = TypeVar("Command")
Kinds = Mapping[str, tuple[Any, Mapping[str, type]]]
"""By the name of a field: its config, and the config class of each name that it may have."""


SIZES = {
    "train": "env.num_envs, unroll, evaluation.episodes, core.memory_size, core.width or "
    "core.layers, or split the batch over more devices",
    "train-offline": "batch_size, segments, unroll, evaluation.episodes, or the width and layers "
    "of the model, set data.stream, or split the batch over more devices",
    "evaluate": "episodes",
    "play": "episodes",
    "inspect": "episode_steps",
    "collect": "env.num_envs",
}
"""The settings that determine how much memory a command needs."""


def fail(program: str, message: str, code: int) -> NoReturn:
    """Print an error in one line, and exit with a code."""
    print(f"{program}: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


class UnknownOptionsError(ValueError):
    """Arguments that are no options of the command.

    Attributes:
      options: those that begin with --, without values.
    """

    def __init__(self, message: str, options: Sequence[str]) -> None:
        super().__init__(message)
        self.options = tuple(options)


class Parser(argparse.ArgumentParser):
    """Parses the few arguments of a small command, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError."""
        raise ValueError(message)


class Chooser(Parser):
    """Parses the few arguments that select the defaults of the others."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)


def parse(
    command: type[Command],
    arguments: Sequence[str],
    *,
    prog: str,
    kinds: Kinds | None = None,
    **options: Any,
) -> Command:
    """Parse arguments by `tyro.cli`; whole numbers may be written as 1e6.

    Args:
      command: the dataclass of the arguments.
      arguments: the arguments.
      prog: name of the program, for the help text.
      kinds: the fields whose options depend on a name, such as "core", to say which other core has
        an option.
      **options: further arguments of `tyro.cli`.

    Raises:
      ValueError: if the arguments are invalid, in one line. `UnknownOptionsError` if some are no
        options, and none is spelled alike.
    """

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        """Raise an error, before tyro prints it in a box and exits."""
        argument: Any = getattr(event, "argument", None)
        if isinstance(event, tyro_errors.UnrecognizedArgs):
            known = list(options_of(command, options.get("default")))
            raise _unrecognized(event.tokens, arguments, known, kinds or {})
        if isinstance(event, tyro_errors.MissingArgs):
            argument = event.missing_arguments[0].arg
            reason = f"Missing from {event.prog}: {argument.display_name()}"
        elif isinstance(event, tyro_errors.BadValue):
            reason = f"Missing value for argument '{argument.display_name()}'"
        elif isinstance(event, tyro_errors.InstantiationFailure) and argument:
            reason = f"Error parsing {argument.display_name()}: {event.message}"
        else:
            return
        raise ValueError(reason + _help(argument))

    with tyro_errors.on_parse_error(refuse), _RULES:
        return tyro.cli(command, args=arguments, prog=prog, **options)


@functools.cache
def _docstrings(kind: object) -> dict[str, str]:
    """Return the docstrings of a class's fields, each paragraph in one line.

    tyro keeps the breaks of indented lines, and wraps the lines to the width of the terminal.
    """
    texts = _parse_docstrings(kind).items()
    return {name: "\n\n".join(map(_one_line, text.split("\n\n"))) for name, text in texts}


def _one_line(text: str) -> str:
    return " ".join(text.split())


_parse_docstrings = tyro_docstrings.parse_docstring_from_object
tyro_docstrings.parse_docstring_from_object = _docstrings

_RULES = ConstructorRegistry()


@_RULES.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse whole numbers written as 1e6, and say what is wrong with others."""
    kinds: dict[Any, tuple[Any, str]] = {int: (int, "INT"), float: (float, "FLOAT")}
    kinds |= {kind | None: (kind, f"{{None}}|{name}") for kind, name in kinds.values()}
    if info.type not in kinds:
        return None
    kind, metavar = kinds[info.type]

    def parse(texts: list[str]) -> Any:
        (text,) = texts
        if text == "None" and info.type is not kind:
            return None
        if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", text) and float(text).is_integer():
            return kind(float(text))
        try:
            return kind(text)
        except ValueError:
            described = "a whole number" if kind is int else "a number"
            raise ValueError(f"it must be {described}, not {text!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, info.type) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@_RULES.primitive_rule
def _truth(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse true and false as TOML and JSON write them, besides Python's True and False.

    Otherwise a dict of settings, whose values may also be strings, would have the string "false".
    """
    values = {"True": True, "False": False, "true": True, "false": False}
    if info.type is not bool:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{True,False}",
        choices=tuple(values),
        instance_from_str=lambda texts: values[texts[0]],
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _help(argument: Any) -> str:
    """Return the docstring of an argument, to append to a message."""
    text = argument.field.helptext
    text = text() if callable(text) else text
    return f"; {_one_line(text)}" if text else ""


def _unrecognized(
    tokens: Sequence[str], arguments: Sequence[str], known: Sequence[str], kinds: Kinds
) -> ValueError:
    """Return the error of tokens that are no options; raise it if others of `kinds` have them."""
    for group, (config, others) in kinds.items():
        require_settings(_setting_names(tokens), group, config, others)
    if flag := _misused_flag(tokens, arguments, known):
        return ValueError(flag)
    message = f"Unrecognized options: {', '.join(tokens)}"
    options = [
        token.partition("=")[0].replace("_", "-") for token in tokens if token.startswith("--")
    ]
    similar = [one for option in options for one in _similar(option, known)]
    if similar:
        return ValueError(f"{message}; Perhaps you meant: {', '.join(similar)}")
    return UnknownOptionsError(message, options)


def _similar(option: str, known: Sequence[str]) -> list[str]:
    """Return options that complete one, such as --core.name, or up to three spelled alike.

    Those that complete it end with the same words, or with words of which it has the initials.
    """
    if (named := f"{option}.name") in known:
        return [named]
    name = option.removeprefix("--")
    ends = [one for one in known if one.endswith((f".{name}", f"-{name}"))]
    if not ends and len(name) > 1:
        ends = [one for one in known if _initials(one) == name]
    return ends or difflib.get_close_matches(option, known, n=3, cutoff=0.8)


def _initials(option: str) -> str:
    """Return the initials of the last part: `lr` of --optimizer.learning-rate."""
    return "".join(word[:1] for word in option.rpartition(".")[2].split("-"))


def _setting_names(tokens: Sequence[str]) -> Iterator[str]:
    """Yield the names of the settings among tokens: `core.memory_size`; of a flag also `no_`."""
    for token in tokens:
        if token.startswith("--"):
            yield token.removeprefix("--").partition("=")[0].replace("-", "_")


def _misused_flag(tokens: Sequence[str], arguments: Sequence[str], known: Sequence[str]) -> str:
    """Return which flag was given a value; empty if none was."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for option, value in itertools.pairwise(words):
        group, dot, flag = option.removeprefix("--").rpartition(".")
        name = f"{group}{dot}{flag.removeprefix('no-')}"
        if value in tokens and value.lower() in _TRUTHS and f"--{name}" in known:
            return (
                f"{name.replace('-', '_')} is a flag: use --{name} or "
                f"--{group}{dot}no-{flag.removeprefix('no-')}"
            )
    return ""


_TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")

(_POSITIONAL,) = get_args(tyro.conf.Positional[int])[1:]


def options_of(kind: Any, default: Any, prefix: str = "--") -> Iterator[str]:
    """Yield the options of a dataclass of arguments; of a positional one, `FOLDER`."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        value = getattr(default, field.name, None)
        hint, *marks = get_args(hints[field.name]) or [hints[field.name]]
        inner = type(value) if dataclasses.is_dataclass(value) else hint
        name = prefix + field.name.replace("_", "-")
        if not dataclasses.is_dataclass(inner):
            yield field.name.upper() if _POSITIONAL in marks else name
        elif any(getattr(mark, "name", None) == "" for mark in marks):
            yield from options_of(inner, value, prefix)
        else:
            yield from options_of(inner, value, f"{name}.")
