"""The commands on datasets: `gtrxl data show` and `gtrxl data convert`."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.files import printable
from gtrxl_jax.formatting import format_number, format_numbers
from gtrxl_jax.plugins import import_plugins
from gtrxl_jax.validation import require_choice

if TYPE_CHECKING:
    from gtrxl_jax.data.datasets import BadEpisodeError, DatasetReader
    from gtrxl_jax.data.summary import Summary
    from gtrxl_jax.data.trajectories import Trajectories

BAR = 40
"""The length of the longest bar of the histogram."""
MOST_FAULTS = 20
"""The number of bad episodes that are named; --json names all."""


@dataclasses.dataclass(frozen=True)
class DataCommand:
    """Show a dataset, or convert it: gtrxl data show PATH, gtrxl data convert PATH FOLDER.

    PATH is what `--data.path` of `gtrxl train-offline` may be. `gtrxl data show --help` and
    `gtrxl data convert --help` list all options.
    """

    path: tyro.conf.Positional[Path]
    """A dataset: Minari's, as written by gtrxl collect, D4RL's, DQN-replay's or Memory Maze's."""
    keys: tuple[str, ...] = ()
    """The keys to keep of observations that are dicts; by default all."""
    drop: tuple[str, ...] = ()
    """The keys to leave out of observations that are dicts."""
    clip_actions: float = 0.0
    """How far actions may exceed their bounds, to which they are then clipped."""
    modules: tuple[str, ...] = ()
    """Modules of custom formats to import first."""


@dataclasses.dataclass(frozen=True)
class Show(DataCommand):
    """Show episodes, lengths, returns and spaces of a dataset, and what is wrong with it.

    All of it is read, one episode after the other.
    """

    json: bool = False
    """Print as JSON, with all bad episodes."""


@dataclasses.dataclass(frozen=True)
class Convert(DataCommand):
    """Convert a dataset to the format of gtrxl collect, which is Minari's.

    One episode after the other is read and written, so that a dataset may exceed memory.
    """

    folder: tyro.conf.Positional[Path] = dataclasses.field(kw_only=True)
    """A new folder."""
    skip_bad: bool = False
    """Leave out bad episodes and name them; by default the first is an error."""
    episodes: int | None = None
    """Number of episodes to convert, the first ones; all by default."""


def data(arguments: Sequence[str]) -> None:
    """Run `gtrxl data show` or `gtrxl data convert`."""
    commands = {"show": show, "convert": convert}
    name, *rest = arguments or ("",)
    if name in ("-h", "--help"):
        parse(DataCommand, arguments, prog="gtrxl data")
    commands[require_choice("command of gtrxl data", name, commands)](rest)


def show(arguments: Sequence[str]) -> None:
    """Run `gtrxl data show`."""
    command = parse(Show, arguments, prog="gtrxl data show")
    with _open(command) as reader:
        from gtrxl_jax.data.summary import summarize

        summary = summarize(reader)
    if command.json:
        print(json.dumps(summary.to_json(), indent=2))
        return
    for line in _lines(summary):
        print(printable(line))


def convert(arguments: Sequence[str]) -> None:
    """Run `gtrxl data convert`."""
    command = parse(Convert, arguments, prog="gtrxl data convert")
    if command.episodes is not None and command.episodes < 1:
        raise ValueError(f"episodes must be at least 1, not {command.episodes}")
    from gtrxl_jax.data import minari

    minari.require_writable(command.folder)
    bad: list[BadEpisodeError] = []
    counts = [0, 0]
    with _open(command) as reader:
        minari.save(_episodes(command, reader, bad, counts), command.folder, reader.metadata)
        missing = reader.describe_missing()
    for line in [*missing, *(f"left out: {error}" for error in bad)]:
        print(printable(line), file=sys.stderr)
    episodes, steps = counts
    print(printable(f"{episodes:,} episodes, {steps:,} steps | {command.folder}"))


def _open(command: DataCommand) -> "DatasetReader":
    import_plugins(f"{name}:" for name in command.modules)
    from gtrxl_jax.data.datasets import DatasetReader, Selection

    selection = Selection(command.keys, command.drop, command.clip_actions)
    return DatasetReader(command.path, selection=selection)


def _episodes(
    command: Convert, reader: "DatasetReader", bad: list[Any], counts: list[int]
) -> Iterator["Trajectories"]:
    """Yield the episodes to convert, which are counted along with their steps."""
    from gtrxl_jax.data.datasets import BadEpisodeError, checked_episodes

    found = checked_episodes(reader, bad.append if command.skip_bad else None)
    try:
        for _, episode in itertools.islice(found, command.episodes):
            counts[0] += 1
            counts[1] += int(episode.length[0])
            yield episode
    except BadEpisodeError as error:
        raise ValueError(
            f"{error}; repair it, or leave out all bad episodes with --skip-bad"
        ) from None


def _lines(summary: "Summary") -> Iterator[str]:
    """Yield the lines that show a summary."""
    yield f"{summary.path}: {summary.format}"
    rows = {"environment": summary.environment, "policy": summary.policy, **summary.spaces}
    rows["episodes"] = (
        f"{summary.episodes:,}; {summary.terminated:,} terminated, {summary.cut:,} were cut"
    )
    rows["steps"] = f"{summary.steps:,}"
    if summary.lengths and summary.returns:
        of = summary.lengths
        rows["lengths"] = f"{of.least:,.0f} to {of.greatest:,.0f}, mean {of.mean:,.1f}"
        least, mean, greatest = format_numbers(list(dataclasses.astuple(summary.returns)))
        rows["returns"] = f"{least} to {greatest}, mean {mean}"
        assert summary.target_return is not None
        rows["target"] = (
            f"{format_number(summary.target_return)}, the mean of the best tenth not cut"
        )
    rows = {name: value for name, value in rows.items() if value}
    width = max(map(len, rows))
    yield from (f"{name:{width}}  {value}" for name, value in rows.items())
    if summary.histogram:
        yield from _histogram(summary)
    yield from (f"{'missing':{width}}  {line}" for line in summary.missing)
    faults = f"{len(summary.faults):,} bad episodes" if summary.faults else "none"
    yield f"{'faults':{width}}  {faults}"
    yield from (f"  {fault.reason}" for fault in summary.faults[:MOST_FAULTS])
    if len(summary.faults) > MOST_FAULTS:
        yield f"  and {len(summary.faults) - MOST_FAULTS:,} more: --json names all"


def _histogram(summary: "Summary") -> Iterator[str]:
    edges = format_numbers(summary.edges)
    width = max(map(len, edges))
    most = max(summary.histogram)
    for low, high, count in zip(edges, edges[1:], summary.histogram, strict=False):
        bar = "#" * max(round(BAR * count / most), count > 0)
        yield f"  {low:>{width}} to {high:>{width}}  {bar}{' ' * bool(bar)}{count:,}"
