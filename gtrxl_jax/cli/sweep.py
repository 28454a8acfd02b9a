"""Sweeps: the cells of a TOML file, each an ordinary run with several seeds in one program.

    seeds = 5
    goal = 0.95                              # optional, see `gtrxl compare`

    [settings]                               # of every run
    total_steps = 1_000_000
    env.params.penalty = "behind"

    [grid]                                   # a cell for every combination
    core = [{name = "gtrxl", memory_size = 104}, {name = "lstm"}]
    algorithm.name = ["vmpo", "ppo"]
    env.params.corridor_length = [50, 100]

    [draw]                                   # a value for each seed, see --sweep of `gtrxl train`
    learning_rate = [1e-4, 1e-2]

The names are those of the options of `gtrxl train`. An entry of a list in `grid` may be a table,
which sets several options at once.
"""

import contextlib
import dataclasses
import itertools
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

from gtrxl_jax.cli.arguments import parse_train
from gtrxl_jax.machine import share_of_cpus
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.runs.directory import finished_run
from gtrxl_jax.runs.preemption import EXIT_CODES
from gtrxl_jax.validation import check_choice, require_count

FIELDS = ("seeds", "goal", "settings", "grid", "draw")
INSTEAD = {
    "num_seeds": "use `seeds = 3` at the top of the file",
    "sweep": "use the table [draw]",
    "folder": "cells have folders of their own: use the command's --folder",
    "pictures": "cells draw none: omit it",
    "help": "it is no option of a run: omit it",
}
"""What to write instead of the options that neither [settings] nor [grid] may set."""
POLL = 0.1
"""Seconds between two looks at the processes."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run of a sweep.

    Attributes:
      name: its folder in that of the sweep.
      arguments: of `gtrxl train`, except --folder.
      config: what these arguments stand for.
    """

    name: str
    arguments: tuple[str, ...]
    config: OnlineConfig

    def is_finished(self, folder: Path) -> bool:
        """Return whether the run has its result.

        Raises:
          ValueError: if the folder holds another run.
        """
        config = self.config
        steps = config.num_iterations * config.steps_per_iteration
        return bool(finished_run(folder / self.name, to_json(config), steps, config.num_seeds))


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The cells of a sweep, and the score that they should reach; None for that of `compare`."""

    cells: tuple[Cell, ...]
    goal: float | None


def read_sweep(path: Path) -> Sweep:
    """Read and check all cells of a sweep.

    Raises:
      OSError: if it cannot be read.
      TypeError: if a field has a value of the wrong type.
      ValueError: if it is not TOML, has an unknown field, or a cell's config is invalid.
    """
    content = read_file(path)
    common = flatten(content["settings"])
    check_options("settings", common)
    common["num_seeds"] = content["seeds"]
    if draw := ranges(content["draw"]):
        common["sweep"] = draw
    cells: dict[str, Cell] = {}
    for chosen in combinations(flatten(content["grid"])):
        check_options("grid", chosen)
        name = cell_name(chosen)
        if name in cells:
            raise ValueError(f"{path}: two cells of the grid have the same name, {name}")
        for drawn in draw:
            if (fixed := f"algorithm.{drawn}") in common | chosen:
                raise ValueError(f"{drawn} in [draw] and {fixed} are both set: omit one of them")
        arguments = to_arguments(common | chosen)
        try:
            cells[name] = Cell(name, tuple(arguments), parse_train(arguments).config)
        except ValueError as error:
            raise ValueError(f"{path}, cell {name}: {error}") from None
    return Sweep(tuple(cells.values()), content["goal"])


def read_file(path: Path) -> dict[str, Any]:
    """Return all fields of the file of a sweep; raises as `read_sweep` does, except for cells."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OSError(f"a sweep needs a TOML file: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    for name in content:
        check_choice(f"field in {path}", name, FIELDS)
    require_count(f"seeds in {path}", content.setdefault("seeds", 1))
    goal = content.setdefault("goal", None)
    if isinstance(goal, bool) or not isinstance(goal, int | float | None):
        raise TypeError(f"goal in {path} must be a number, not {goal!r}")
    for name in ("settings", "grid", "draw"):
        if not isinstance(content.setdefault(name, {}), dict):
            raise TypeError(f"{name} in {path} must be a table, such as [{name}]")
    return content


def check_options(table: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for names that may not be set, or that stand for a group of options."""
    config = OnlineConfig()
    for name in settings:
        option = name.replace("-", "_")
        if option in INSTEAD:
            raise ValueError(f"{name} in [{table}]: {INSTEAD[option]}")
        group = getattr(config, option, None)
        if dataclasses.is_dataclass(group):
            first = f"{name}.{dataclasses.fields(group)[0].name}"
            value = "[...]" if table == "grid" else "..."
            raise ValueError(f"{name} in [{table}] is a group of options: use {first} = {value}")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        found |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def ranges(draw: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the ranges in [draw] by hyperparameter, which may be named as an option is.

    Raises:
      ValueError: if a range is not a pair of numbers, or a hyperparameter has two.
    """
    found: dict[str, list[float]] = {}
    for option, bounds in flatten(draw).items():
        numbers = isinstance(bounds, list) and all(type(x) in (int, float) for x in bounds)
        if not numbers or len(bounds) != 2:
            raise ValueError(f"{option} in [draw] must be [low, high], not {bounds!r}")
        name = option.removeprefix("algorithm.")
        if option == "optimizer.learning_rate":
            name = "learning_rate"
        if name in found:
            raise ValueError(f"{name} is twice in [draw]: omit one of the two")
        found[name] = bounds
    return found


def combinations(grid: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each cell; a table in a list sets all of its entries.

    Raises:
      ValueError: if an entry is not a list, or is empty.
    """
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{name} must be a list of values, not {values!r}")
    for values in itertools.product(*grid.values()):
        cell: dict[str, Any] = {}
        for name, value in zip(grid, values, strict=True):
            cell |= flatten({name: value})
        yield cell


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return `gtrxl-ppo-corridor_length-50` for a cell; `run` for one without settings."""
    parts = []
    for name, value in cell.items():
        field = name.rsplit(".")[-1]
        parts.append(str(value) if field == "name" else f"{field}-{value}")
    return re.sub("[^A-Za-z0-9._+-]+", "-", "-".join(parts)).strip("-") or "run"


def to_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as arguments of `gtrxl train`."""
    arguments: list[str] = []
    params: list[str] = []
    for name, value in settings.items():
        if name.startswith("env.params."):
            params += [name.removeprefix("env.params."), str(value)]
            continue
        *parts, field = name.replace("_", "-").split(".")
        option = "--" + ".".join([*parts, field])
        if isinstance(value, bool):
            arguments.append(option if value else "--" + ".".join([*parts, f"no-{field}"]))
        elif name == "env.tasks":
            for task in value:
                arguments += [option, *_words(task)]
        else:
            arguments += [option, *_words(value)]
    return [*arguments, *(["--env.params", *params] if params else [])]


def _words(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for pair in value.items() for word in _words(list(pair))]
    if isinstance(value, list):
        return [word for one in value for word in _words(one)]
    return [str(value)]


def run_sweep(sweep: Sweep, folder: Path, workers: int) -> list[str]:
    """Train the cells that are not finished, and return the names of those that failed.

    Each cell is a process, `gtrxl train`. With several workers, its output is in CELL.log.

    Raises:
      ValueError: if the folder of a cell holds another run.
      SystemExit: if a signal has stopped the runs, which are then saved; see `gtrxl train`.
    """
    waiting = [cell for cell in sweep.cells if not cell.is_finished(folder)]
    done = len(sweep.cells) - len(waiting)
    print(f"{done} of {len(sweep.cells)} cells are finished already", flush=True)
    running: dict[int, tuple[Cell, subprocess.Popen[bytes]]] = {}
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminable())
        stack.callback(_stop, running)
        while waiting or running:
            for number in set(range(workers)) - running.keys():
                if waiting:
                    cell = waiting.pop(0)
                    running[number] = cell, _start(cell, folder, number, workers)
            time.sleep(POLL)
            for number, (cell, process) in list(running.items()):
                if (code := process.poll()) is None:
                    continue
                del running[number]
                if code in EXIT_CODES.values():
                    sys.exit(code)
                done += not code
                failed += [cell.name] * bool(code)
                state = "finished" if not code else f"failed with exit code {code}"
                print(f"{cell.name} {state}; {done} of {len(sweep.cells)} cells done", flush=True)
    return failed


def command(cell: Cell, folder: Path) -> list[str]:
    """Return the command that trains a cell."""
    options = ["--folder", str(folder / cell.name), "--no-pictures"]
    return [sys.executable, "-m", "gtrxl_jax.cli", "train", *cell.arguments, *options]


def shown(cell: Cell, folder: Path) -> str:
    """Return the command that trains a cell, as one would type it."""
    return shlex.join(["gtrxl", *command(cell, folder)[3:]])


def _start(cell: Cell, folder: Path, number: int, workers: int) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True, exist_ok=True)
    print(shown(cell, folder), flush=True)
    log: IO[bytes] | None = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(share_of_cpus(number, workers))
        if workers > 1:
            log = stack.enter_context(open(folder / f"{cell.name}.log", "ab"))
        return subprocess.Popen(command(cell, folder), stdout=log, stderr=log)


def _stop(running: Mapping[int, tuple[Cell, "subprocess.Popen[bytes]"]]) -> None:
    """Let the processes save their runs, and wait for them."""
    for _, process in running.values():
        process.terminate()
    for _, process in running.values():
        process.wait()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into SystemExit, so that the block cleans up."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(EXIT_CODES[signal.Signals(number)])

    handlers = {number: signal.signal(number, leave) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
