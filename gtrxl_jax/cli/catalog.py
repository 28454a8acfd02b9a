"""What the commands are for and which options they have, from the classes of their arguments."""

import contextlib
import dataclasses
import inspect
import io
from collections.abc import Iterator
from typing import Annotated, Any, Union

import tyro

from gtrxl_jax.cli import arguments, collecting, datasets, doctor, listing, studies, trained
from gtrxl_jax.cli.parsing import options_of

COMMANDS: dict[str, type] = {
    "train": arguments.Train,
    "train-offline": arguments.TrainOffline,
    "repeat": arguments.Repeat,
    "plan": arguments.PlanTrain,
    "evaluate": trained.Evaluate,
    "play": trained.Play,
    "inspect": trained.Inspect,
    "export": trained.Export,
    "push": trained.Push,
    "runs": listing.Runs,
    "compare": studies.Compare,
    "sweep": studies.Sweep,
    "collect": collecting.Collect,
    "data show": datasets.Show,
    "data convert": datasets.Convert,
    "list": listing.Names,
    "doctor": doctor.Doctor,
}
"""The class of the arguments of each command."""


def purpose(name: str) -> str:
    """Return what a command is for, in a sentence."""
    text = inspect.getdoc(COMMANDS[name])
    assert text
    return " ".join(text.partition("\n\n")[0].split())


def with_option(option: str) -> list[str]:
    """Return the names of the commands that have an option."""
    return [name for name, command in COMMANDS.items() if option in options_of(command, None)]


def lines() -> Iterator[str]:
    """Yield a line for each command, with its purpose, for the help."""
    for name in COMMANDS:
        yield f"  {name:13} {purpose(name)}"


def rows() -> Iterator[list[str]]:
    """Yield the name, the purpose, and the arguments and options of each command, as Markdown."""
    of_train = _options(arguments.Train)
    for name, command in COMMANDS.items():
        options, rest = _options(command), ""
        if command is not arguments.Train and issubclass(command, arguments.Train):
            options = [option for option in options if option not in of_train]
            rest = ", and those of `gtrxl train`"
        yield [f"`gtrxl {name}`", purpose(name), " ".join(options) + rest]


def _options(command: type) -> list[str]:
    """Return the arguments and options of a command, settings of a part as one: `--core.*`."""
    named = (option.rpartition(".") for option in options_of(command, None))
    return list(dict.fromkeys(f"`{part}.*`" if part else f"`{name}`" for part, _, name in named))


def completion(shell: str) -> str:
    """Return a script that completes commands and options in bash, zsh or fish."""
    groups: dict[str, dict[str, type]] = {}
    for name, kind in COMMANDS.items():
        group, _, inner = name.partition(" ")
        groups.setdefault(group, {})[inner] = kind
    commands = {
        name: kinds[""]
        if "" in kinds
        else dataclasses.make_dataclass(name.title(), [("command", _one_of(kinds))])
        for name, kinds in groups.items()
    }
    every = _one_of(commands)
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(every, args=["--tyro-print-completion", shell], prog="gtrxl")
    return script.getvalue()


def _one_of(commands: dict[str, type]) -> Any:
    """Return the type of the arguments of one of several commands."""
    return Union[  # noqa: UP007, of types that are computed
        tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in commands.items())
    ]
