"""Parsing of arguments by tyro, with errors of one line."""

import argparse
import contextlib
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import tyro

Command = TypeVar("Command")


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
    command: type[Command], arguments: Sequence[str], *, prog: str, **options: Any
) -> Command:
    """Parse arguments by `tyro.cli`; whole numbers may be written as 1e6.

    Args:
      command: the dataclass of the arguments.
      arguments: the arguments.
      prog: name of the program, for the help text.
      **options: further arguments of `tyro.cli`.

    Raises:
      ValueError: if the arguments are invalid, with the whole message in one line.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(command, args=[*map(_whole, arguments)], prog=prog, **options)
    except SystemExit as stopped:
        if not stopped.code:  # --help
            raise
        message = one_line(printed.getvalue())
        raise ValueError(_misused_flag(arguments, message) or message) from None


def setting_names(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the names of the settings among arguments: `core.memory_size`; of a flag also `no_`."""
    for argument in arguments:
        if argument.startswith("--"):
            yield argument.removeprefix("--").partition("=")[0].replace("-", "_")


def _misused_flag(arguments: Sequence[str], message: str) -> str:
    """Return what is wrong if tyro has refused the value of a flag; empty if it has not."""
    refused = re.search("Unrecognized options: ([^;]*)", message)
    values = set(refused[1].split(", ")) & {"true", "false", "True", "False"} if refused else ()
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for option, value in itertools.pairwise(words):
        if value in values and option.startswith("--"):
            group, dot, flag = option.removeprefix("--").rpartition(".")
            flag = flag.removeprefix("no-")
            name = f"{group}{dot}{flag}"
            return f"{name.replace('-', '_')} is a flag: use --{name} or --{group}{dot}no-{flag}"
    return ""


def _whole(argument: str) -> str:
    """Rewrite 1e6 and 2.5e3 as 1000000 and 2500."""
    if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", argument) and float(argument).is_integer():
        return str(int(float(argument)))
    return argument


def one_line(box: str) -> str:
    """Return the text in a box that tyro prints, without its title and its hint at --help.

    Sections of the box are separated by semicolons. In a terminal with ASCII characters only, the
    box has no sides, and its title is a line.
    """
    _, *lines = box.splitlines()
    lines = [line.strip("│ ") for line in lines if not line.startswith("╰")]
    sections = re.split("[─-]{10,}", " ".join(lines))
    texts = [re.sub("^Argument helptext: ", "", " ".join(text.split())) for text in sections]
    return "; ".join(text for text in texts if text and not text.startswith("For full helptext"))
