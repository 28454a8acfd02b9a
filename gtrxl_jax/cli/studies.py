"""The commands on several runs: `gtrxl compare` and `gtrxl sweep`."""

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.files import printable


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare online runs, finished or not: a table, learning curves, and runs ranked by score."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or folders that contain some."""
    folder: Path | None = None
    """Folder of comparison.md and the plots; by default the one that contains all runs."""
    goal: float | None = None
    """The score from which a seed counts as having solved its task; 0.95 for successes."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train the cells of a TOML file, each with several seeds, and compare them.

    Finished cells are skipped, and interrupted ones resumed.
    """

    file: tyro.conf.Positional[Path]
    """The cells: seeds, settings, grid and draw; see docs/studies.md."""
    folder: Path | None = None
    """Folder of the runs and the comparison; by default runs/ and the name of the file."""
    workers: int = 1
    """Number of cells that are trained side by side, each on its share of the cores."""
    log: tuple[str, ...] = ()
    """Further loggers, as of gtrxl train."""
    list: bool = False
    """Only print the settings of each cell that differ from the defaults."""


def compare(arguments: Sequence[str]) -> None:
    """Run `gtrxl compare`."""
    command = parse(Compare, arguments, prog="gtrxl compare")
    if not command.runs:
        raise ValueError("compare needs the folder of a run, or one that contains some")
    from gtrxl_jax.studies import find_runs

    folder = command.folder
    if folder is None:
        folder = Path(os.path.commonpath([run.resolve().parent for run in find_runs(command.runs)]))
    _show_comparison(command.runs, folder, command.goal)


def _show_comparison(runs: Sequence[Path], folder: Path, goal: float | None) -> None:
    """Compare runs, print the table, and name the files, which it then writes."""
    from gtrxl_jax.studies import compare

    _, paths = compare(runs, folder, goal=goal, show=functools.partial(print, flush=True))
    print(printable("written: " + ", ".join(map(str, paths))), file=sys.stderr)


def sweep(arguments: Sequence[str]) -> None:
    """Run `gtrxl sweep`. Exit codes as of `gtrxl train`; 1 if a cell failed."""
    command = parse(Sweep, arguments, prog="gtrxl sweep")
    if command.workers < 1:
        raise ValueError(f"workers must be at least 1, not {command.workers}")
    from gtrxl_jax import studies
    from gtrxl_jax.runs.logging.loggers import require_loggers
    from gtrxl_jax.runs.preemption import RunInterrupted
    from gtrxl_jax.studies.settings import changes

    require_loggers(command.log)
    folder = command.folder or Path("runs", command.file.stem)
    cells, goal = studies.read_sweep(command.file)
    if command.list:
        studies.require_trainable(cells)
        for cell in cells:
            settings = ", ".join(f"{name} {value}" for name, value in changes(cell.job).items())
            print(f"{folder / cell.name}: {settings}")
        return
    try:
        failed = studies.train(cells, folder, workers=command.workers, log=command.log)
    except RunInterrupted as stop:
        print(f"gtrxl: {stop}: resume with the same command", file=sys.stderr)
        sys.exit(stop.exit_code)
    runs = [folder / cell.name for cell in cells]
    if started := [run for run in runs if (run / "metrics.jsonl").exists()]:
        _show_comparison(started, folder, goal)
    if failed:
        print(f"gtrxl sweep: error: failed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)
