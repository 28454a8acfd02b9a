"""The command `gtrxl collect`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.collection import Collected, CollectionConfig, collect_dataset
from gtrxl_jax.files import printable
from gtrxl_jax.formatting import format_number
from gtrxl_jax.plugins import import_plugins
from gtrxl_jax.runs.logging.console import ConsoleWriter


@dataclasses.dataclass(frozen=True)
class Collect:
    """Collect complete episodes for offline training, as a Minari dataset."""

    config: Annotated[CollectionConfig, tyro.conf.arg(name="")]
    folder: tyro.conf.Positional[Path]
    """A new folder for the dataset."""
    modules: tuple[str, ...] = ()
    """Modules of custom parts of the run in --policy, to import first."""
    quiet: bool = False
    """Print only errors and the last line."""


def collect(arguments: Sequence[str]) -> None:
    """Run `gtrxl collect`."""
    command = parse(Collect, arguments, prog="gtrxl collect")
    named = (command.config.env.name, command.config.policy)
    import_plugins([*named, *(f"{name}:" for name in command.modules)])
    with ConsoleWriter(
        command.config.episodes,
        ("return", "success"),
        console=Console(stderr=True, quiet=command.quiet),
        unit="episode",
    ) as console:
        console.start(0)

        def show(so_far: Collected) -> None:
            scores = {"return": so_far.mean_return, "success": so_far.success}
            known = {name: value for name, value in scores.items() if value is not None}
            console.write(so_far.episodes, known)

        done = collect_dataset(command.config, command.folder, show)
    success = "" if done.success is None else f"success {format_number(done.success)}, "
    print(
        f"{success}return {format_number(done.mean_return)} | {done.episodes:,} episodes, "
        f"{done.steps:,} steps | {printable(str(command.folder))}"
    )
