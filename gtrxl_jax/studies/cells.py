"""The cells of a study, and their execution: one after another, or by several processes.

Each run is locked, so that any number of processes on one machine can share a study, and saved as
soon as it is done, so that an interrupted study resumes.
"""

import dataclasses
import functools
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gtrxl_jax.files import try_lock
from gtrxl_jax.machine import available_cpus, share_of_cpus
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.directory import read_final_result
from gtrxl_jax.runs.logging.console import ConsoleWriter
from gtrxl_jax.runs.logging.loggers import make_loggers
from gtrxl_jax.runs.logging.writers import JsonLinesWriter, read_metrics
from gtrxl_jax.runs.preemption import EXIT_CODES, RunInterrupted, own_process
from gtrxl_jax.runs.results import provenance
from gtrxl_jax.statistics import SOLVED
from gtrxl_jax.studies.records import (
    Record,
    append,
    curves_of,
    goal_of,
    key_of,
    read,
    read_all,
    thinned,
)
from gtrxl_jax.studies.settings import changes
from gtrxl_jax.validation import require_choice, require_count

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A sample of runs that differ in nothing but their seed.

    Attributes:
      labels: what tells the cell from others, by name.
      job: a config, or a function from a seed to a dict of results. With several workers, functions
        have to be functions of a module, or `functools.partial` of them.
      seeds: number of seeds: from the config's seed on, or from 0.
      goal: a score and the value to reach; the first iteration or evaluation that reaches it is
        recorded.
      measure: for a config, a function of the trained agent that returns further scores.
      name: by default the values of the labels, joined by ", ".
      output: a file or folder that the job makes, such as a data set for other cells; a run whose
        output is missing is executed again.
    """

    labels: Mapping[str, Any]
    job: OnlineConfig | OfflineConfig | Callable[[int], Record]
    seeds: int = 1
    goal: tuple[str, float] = ("success", SOLVED)
    measure: Callable[[loop.Trained], Mapping[str, float]] | None = None
    name: str = ""
    output: Path | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", ", ".join(map(str, self.labels.values())))


def run(
    cells: Sequence[Cell],
    path: Folder,
    *,
    only: Sequence[str] = (),
    again: bool = False,
    workers: int = 1,
) -> list[Record]:
    """Execute the runs that have no record yet, each seed by itself, one of all cells at a time.

    Args:
      cells: the grid.
      path: the file of the records, see `studies.records`; created if missing.
      only: the cells to run, by name or by values of their labels; by default all.
      again: also execute runs that have a record, which the new one replaces.
      workers: number of processes, each bound to its share of the cores.

    Returns:
      All records in the file, including records of earlier calls, in the order of the cells.

    Raises:
      ValueError: if two cells have the same name, or `only` names none.
      RuntimeError: if runs have failed; the others are recorded.
      SystemExit: if a worker was stopped by a signal.
    """
    path, chosen, tasks = Path(path), _select(cells, only), []
    before = [key_of(record) for record in read_all(path)] if again else []
    if not again:
        _report_other_steps(chosen, path)
    for n in range(max((cell.seeds for cell in chosen), default=0)):
        for cell in chosen:
            if n < cell.seeds:
                seed = n if callable(cell.job) else cell.job.seed + n
                key = key_of({"labels": cell.labels, "seed": seed})
                name = hashlib.sha256(key.encode()).hexdigest()[:16]
                tasks.append(
                    _Task(
                        f"{cell.name}, seed {seed}",
                        path.with_name(f".{path.stem}-{name}.lock"),
                        functools.partial(
                            _is_recorded, path, key, before.count(key) + 1, cell.output
                        ),
                        functools.partial(_record, path, cell, seed),
                    )
                )
    if failed := _execute(tasks, workers):
        raise RuntimeError(f"{len(failed)} of {len(tasks)} runs failed: {'; '.join(failed)}")
    return read(path, [cell.labels for cell in cells])


def train(
    cells: Sequence[Cell], folder: Folder, *, workers: int = 1, log: Sequence[str] = ()
) -> list[str]:
    """Train each cell, all of its seeds in one program, as an ordinary run in `folder/NAME`.

    Finished runs are skipped, and interrupted ones resumed.

    Args:
      cells: the grid, of online configs.
      folder: the folder of the runs' folders.
      workers: number of processes, each bound to its share of the cores.
      log: further loggers, as of `gtrxl train`.

    Returns:
      The names of the cells that have failed.

    Raises:
      TypeError: if a cell's job is no online config.
      ValueError: if two cells have the same name or labels, a name has a slash, a cell cannot be
        trained, or its folder holds another run; nothing has been trained then.
      RunInterrupted, SystemExit: if a signal has stopped the runs, which have been saved.
    """
    for cell in cells:
        if "/" in cell.name:
            raise ValueError(f"cell {cell.name} cannot name a folder: give it a name without /")
    require_trainable(cells)
    tasks = []
    for cell in _select(cells):
        config: Any = cell.job
        to = Path(folder, cell.name)
        tasks.append(
            _Task(
                cell.name,
                to.with_name(f".{cell.name}.lock"),
                functools.partial(_is_finished, config, to),
                functools.partial(_train, config, to, tuple(log)),
            )
        )
    return _execute(tasks, workers)


def require_trainable(cells: Sequence[Cell]) -> None:
    """Make the trainer of each cell, which compiles nothing, to find what cannot be trained.

    Raises:
      TypeError: if a cell's job is no online config.
      ValueError: if a cell's environment, core or algorithm cannot be made, or they do not fit.
    """
    for cell in cells:
        if not isinstance(cell.job, OnlineConfig):
            raise TypeError(f"cell {cell.name}: train takes online configs, use run for others")
        try:
            make_trainer(cell.job)
        except (ValueError, TypeError, ImportError) as error:
            raise ValueError(f"cell {cell.name}: {error}") from error


def _select(cells: Sequence[Cell], only: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of these names, and those that match a given value of every label."""
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two cells have the same name, {name}")
    first: dict[str, str] = {}
    for cell in cells:
        other = first.setdefault(key_of({"labels": cell.labels, "seed": 0}), cell.name)
        if other != cell.name:
            raise ValueError(
                f"cells {other} and {cell.name} have the same labels: add one that tells them apart"
            )
    labels = {label for cell in cells for label in cell.labels}
    values = {label: {str(cell.labels.get(label)) for cell in cells} for label in labels}
    for word in only:
        require_choice("cell", word, sorted({*names}.union(*values.values())))
    asked = [label for label in labels if values[label] & {*only}]

    def is_asked(cell: Cell) -> bool:
        fits = asked and all(str(cell.labels.get(label)) in only for label in asked)
        return not only or cell.name in only or bool(fits)

    return [cell for cell in cells if is_asked(cell)]


class _Task(NamedTuple):
    """A run, with the file that locks it."""

    name: str
    lock: Path
    is_done: Callable[[], bool]
    perform: Callable[[], None]


def _execute(tasks: Sequence[_Task], workers: int) -> list[str]:
    """Perform the tasks that are not done, and return the names of those that have failed."""
    require_count("workers", workers)
    print(f"{sum(task.is_done() for task in tasks)} of {len(tasks)} are finished already")
    with tempfile.TemporaryDirectory() as cache:
        if workers == 1:
            _work(tasks, cache)
        else:
            _start_workers(workers, functools.partial(_work, tasks, cache))
    # Neither done, nor being performed by another process.
    return [task.name for task in tasks if _with_lock(task, lambda: None)]


def _start_workers(count: int, work: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work) for _ in range(count)]
    try:
        for number, process in enumerate(processes):
            with share_of_cpus(number, count):  # processes inherit it
                process.start()
        running: dict[Any, Any] = {process.sentinel: process for process in processes}
        while running:
            for ended in multiprocessing.connection.wait(list(running)):
                if (code := running.pop(ended).exitcode) in EXIT_CODES.values():
                    sys.exit(code)
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _work(tasks: Sequence[_Task], cache: str) -> None:
    """Perform the tasks that are neither done nor being performed by another process.

    Seeds of a cell share their programs, in JAX's own compilation cache if it is set.
    """
    if multiprocessing.parent_process():
        own_process()
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", before or cache)
    try:
        for number, task in enumerate(tasks, start=1):
            began = time.monotonic()
            if _with_lock(task, functools.partial(_attempt, task)) and task.is_done():
                seconds = time.monotonic() - began
                print(f"{number}/{len(tasks)}  {task.name}: {seconds:.0f} s", flush=True)
    except (RunInterrupted, KeyboardInterrupt) as stop:
        if not multiprocessing.parent_process():
            raise
        sys.exit(getattr(stop, "exit_code", EXIT_CODES[signal.SIGINT]))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def _attempt(task: _Task) -> None:
    try:
        task.perform()
    except Exception as error:
        if isinstance(error, RunInterrupted) or os.environ.get("GTRXL_TRACEBACK"):
            raise
        print(f"{task.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _with_lock(task: _Task, action: Callable[[], None]) -> bool:
    """Lock a task for an action; return False if it is done, or locked by another process.

    The lock is a file lock, which the system releases however the process ends.
    """
    if task.is_done():
        return False
    task.lock.parent.mkdir(parents=True, exist_ok=True)
    with open(task.lock, "wb") as file:
        if not try_lock(file):
            return False
        try:
            # The previous holder of the lock may have done it since the first check.
            if is_free := not task.is_done():
                action()
            return is_free
        finally:
            task.lock.unlink(missing_ok=True)


def _is_recorded(path: Path, key: str, count: int, output: Path | None) -> bool:
    keys = [key_of(record) for record in read_all(path)]
    return keys.count(key) >= count and (output is None or output.exists())


def _report_other_steps(cells: Sequence[Cell], path: Path) -> None:
    """Print which cells have records of runs of other lengths, which count as done."""
    recorded: dict[str, set[int]] = {}
    for record in read(path):
        of_seed_0 = key_of({"labels": record["labels"], "seed": 0})
        recorded.setdefault(of_seed_0, set()).add(record.get("steps", 0))
    for cell in cells:
        if callable(cell.job):
            continue
        steps = _steps(cell.job)
        found = recorded.get(key_of({"labels": cell.labels, "seed": 0}), set())
        for other in sorted(found - {steps}):
            print(
                f"{cell.name} has records of {other:,} steps, not {steps:,}: --again replaces "
                "them, --results FOLDER keeps new ones apart",
                file=sys.stderr,
            )


def _record(path: Path, cell: Cell, seed: int) -> None:
    """Execute a run and append its record; what a function returns replaces other entries."""
    results = cell.job(seed) if callable(cell.job) else _train_seed(cell, seed)
    origin = provenance() | {"cores": len(available_cpus())}
    append(path, {"labels": dict(cell.labels), "seed": seed, **origin, **results})


def _train_seed(cell: Cell, seed: int) -> Record:
    job: Any = cell.job
    config = dataclasses.replace(job, seed=seed, num_seeds=1, on_divergence="continue")
    trainer: Any = (
        make_trainer(config) if isinstance(config, OnlineConfig) else OfflineTrainer(config)
    )
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        writers = [JsonLinesWriter(path), *_console(trainer, f"{cell.name}, seed {seed}")]
        trained = loop.train(trainer, writers=writers)
        metrics = read_metrics(path)
    curves, result = curves_of(metrics), trained.result
    goal = goal_of(curves, *cell.goal)
    if goal["steps"] is not None:
        row = np.searchsorted(metrics["step"], goal["steps"])
        goal["seconds"] = round(metrics["time"][row] - began, 1)
    scores = {name: values[0] for name, values in result.per_seed.items()}
    own = ("seed", "on_divergence")
    return {
        "settings": {name: value for name, value in changes(config).items() if name not in own},
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": scores | dict(cell.measure(trained) if cell.measure else {}),
        "curve": thinned(curves),
        "goal": goal,
    }


def _steps(config: OnlineConfig | OfflineConfig) -> int:
    """Return the steps of a whole run, or its updates if it is offline."""
    if isinstance(config, OnlineConfig):
        return config.num_iterations * config.steps_per_iteration
    return config.num_iterations * config.updates_per_iteration


def _is_finished(config: OnlineConfig, folder: Path) -> bool:
    return bool(read_final_result(folder, to_json(config), _steps(config), config.num_seeds))


def _train(config: OnlineConfig, folder: Path, log: Sequence[str]) -> None:
    trainer = make_trainer(config)
    loggers = make_loggers(log, folder, trainer.config_json)
    writers = [*_console(trainer, str(folder)), *loggers]
    trained = loop.train(trainer, writers=writers, folder=folder)
    if trained.stopped_by:
        raise RunInterrupted(trained.stopped_by, trained.result.steps, folder)


def _console(trainer: Any, title: str) -> list[ConsoleWriter]:
    """Show the progress of a run, in a terminal, unless others run beside it."""
    if multiprocessing.parent_process() or not sys.stderr.isatty():
        return []
    steps = trainer.num_iterations * trainer.steps_per_iteration
    return [ConsoleWriter(steps, trainer.progress_metrics, title=title)]
