"""The cells of a study, and their execution: one after another, or by several processes.

Each run is locked, so that any number of processes on one machine can share a study, and saved as
soon as it is done, so that an interrupted study resumes.
"""

import contextlib
import dataclasses
import fcntl
import functools
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from gtrxl_jax.machine import available_cpus, share_of_cpus
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.directory import read_final_result
from gtrxl_jax.runs.logging.console import ConsoleWriter
from gtrxl_jax.runs.logging.loggers import make_loggers
from gtrxl_jax.runs.logging.writers import JsonLinesWriter, read_metrics
from gtrxl_jax.runs.preemption import EXIT_CODES, RunInterrupted
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
from gtrxl_jax.validation import check_choice, require_count

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A sample of runs that differ in nothing but their seed.

    Attributes:
      labels: what tells the cell from others, by name.
      job: a config, or a function from a seed to a dict of results. With several workers, functions
        have to be those of a module, or `functools.partial` of them.
      seeds: number of seeds: from that of the config on, or from 0.
      goal: a score and the value to reach; the first iteration or evaluation that reaches it is
        recorded.
      measure: for a config, a function of the trained agent that returns further scores.
      name: by default the values of the labels, joined by ", ".
    """

    labels: Mapping[str, Any]
    job: OnlineConfig | OfflineConfig | Callable[[int], Record]
    seeds: int = 1
    goal: tuple[str, float] = ("success", SOLVED)
    measure: Callable[[loop.Trained], Mapping[str, float]] | None = None
    name: str = ""

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
    quiet: bool = False,
) -> list[Record]:
    """Execute the runs that have no record yet, each seed by itself, one of all cells at a time.

    Args:
      cells: the grid.
      path: the file of the records, see `studies.records`; created if missing.
      only: the cells to run, by name or by values of their labels; by default all.
      again: also execute runs that have a record, which the new one replaces.
      workers: number of processes, each bound to its share of the cores.
      quiet: show no progress of each run; several workers never do.

    Returns:
      All records in the file, including those of earlier calls, in the order of the cells.

    Raises:
      ValueError: if two cells have the same name, or `only` names none.
      RuntimeError: if runs have failed; the others are recorded.
      SystemExit: if a signal has stopped the workers.
    """
    path = Path(path)
    chosen = _select(cells, only)
    before = [key_of(record) for record in read_all(path)] if again else []
    tasks: list[_Task] = []
    for n in range(max((cell.seeds for cell in chosen), default=0)):
        for cell in chosen:
            if n < cell.seeds:
                seed = n if callable(cell.job) else cell.job.seed + n
                key = key_of({"labels": cell.labels, "seed": seed})
                tasks.append(_RecordTask(cell, path, seed, before.count(key)))
    if failed := _execute(tasks, workers, quiet):
        raise RuntimeError(f"{len(failed)} of {len(tasks)} runs failed: {'; '.join(failed)}")
    return read(path, [cell.labels for cell in cells])


def train(
    cells: Sequence[Cell],
    folder: Folder,
    *,
    workers: int = 1,
    log: Sequence[str] = (),
    quiet: bool = False,
) -> list[str]:
    """Train each cell, all of its seeds in one program, as an ordinary run in `folder/NAME`.

    Finished runs are skipped, and interrupted ones resumed. With several workers, or if quiet, the
    output of a run is in `folder/NAME.log`.

    Args:
      cells: the grid, of online configs.
      folder: the folder of the runs' folders.
      workers: number of processes, each bound to its share of the cores.
      log: further loggers, as of `gtrxl train`.
      quiet: show no progress of each run.

    Returns:
      The names of the cells that have failed.

    Raises:
      TypeError: if a cell's job is no online config.
      ValueError: if two cells have the same name, or the folder of a cell holds another run.
      RunInterrupted, SystemExit: if a signal has stopped the runs, which have been saved.
    """
    for cell in cells:
        if not isinstance(cell.job, OnlineConfig):
            raise TypeError(f"cell {cell.name}: train takes online configs, use run for others")
    tasks = [_FolderTask(cell, Path(folder, cell.name), tuple(log)) for cell in _select(cells)]
    return _execute(tasks, workers, quiet)


def _select(cells: Sequence[Cell], only: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of these names, and those that match a given value of every label."""
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two cells have the same name, {name}")
    values: dict[str, set[str]] = {}
    for cell in cells:
        for label, value in cell.labels.items():
            values.setdefault(label, set()).add(str(value))
    for word in only:
        check_choice("cell", word, sorted({*names}.union(*values.values())))
    asked = {label: known & {*only} for label, known in values.items() if known & {*only}}

    def is_asked(cell: Cell) -> bool:
        fits = all(str(cell.labels.get(label)) in wanted for label, wanted in asked.items())
        return not only or cell.name in only or (bool(asked) and fits)

    return [cell for cell in cells if is_asked(cell)]


@dataclasses.dataclass(frozen=True)
class _RecordTask:
    """A run whose record is one of a file; done if that has more than `earlier` ones of it."""

    cell: Cell
    path: Path
    seed: int
    earlier: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def file(self) -> Path:
        slug = re.sub("[^a-z0-9.]+", "-", self.name.lower())
        return self.path.parent / f"{self.path.stem}-{slug}"

    def is_done(self) -> bool:
        key = key_of({"labels": self.cell.labels, "seed": self.seed})
        return [key_of(record) for record in read_all(self.path)].count(key) > self.earlier

    def perform(self, console: bool) -> None:
        append(self.path, perform(self.cell, self.seed, console=console))


@dataclasses.dataclass(frozen=True)
class _FolderTask:
    """A run in a folder."""

    cell: Cell
    file: Path
    log: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.cell.name

    def is_done(self) -> bool:
        config: Any = self.cell.job
        steps = config.num_iterations * config.steps_per_iteration
        return bool(read_final_result(self.file, to_json(config), steps, config.num_seeds))

    def perform(self, console: bool) -> None:
        config: Any = self.cell.job
        trainer = OnlineTrainer(config)
        with contextlib.nullcontext() if console else _output_in(f"{self.file}.log"):
            loggers = make_loggers(self.log, self.file, trainer.config_json)
            writers = [_console(trainer, self.name), *loggers]
            loop.train(trainer, writers=writers, folder=self.file)


_Task = _RecordTask | _FolderTask


def _execute(tasks: Sequence[_Task], workers: int, quiet: bool) -> list[str]:
    """Perform the tasks that are not done, and return the names of those that have failed."""
    require_count("workers", workers)
    done = sum(task.is_done() for task in tasks)
    print(f"{done} of {len(tasks)} are finished already", flush=True)
    for task in tasks:
        task.file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        if workers == 1:
            _work(tasks, cache, console=not quiet)
        else:
            _start_workers(workers, functools.partial(_work_alone, tasks, cache))
    failed = []
    for task in tasks:
        with _locked(task) as free:  # neither done, nor being performed by another process
            failed += [task.name] * free
    return failed


def _start_workers(count: int, work: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work) for _ in range(count)]
    with _terminable():
        try:
            for number, process in enumerate(processes):
                with share_of_cpus(number, count):  # processes inherit it
                    process.start()
            running: dict[Any, Any] = {process.sentinel: process for process in processes}
            while running:
                for ended in multiprocessing.connection.wait(list(running)):
                    code = running.pop(ended).exitcode
                    if code in EXIT_CODES.values():
                        sys.exit(code)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.terminate()
                    process.join()


def _work_alone(tasks: Sequence[_Task], cache: str) -> None:
    """Perform tasks in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _work(tasks, cache, console=False)
    except RunInterrupted as stop:
        print(stop, file=sys.stderr, flush=True)
        sys.exit(stop.exit_code)


def _work(tasks: Sequence[_Task], cache: str, *, console: bool) -> None:
    """Perform the tasks that are neither done nor being performed by another process."""
    with _compilation_cache(cache):
        for task in tasks:
            with _locked(task) as free:
                if not free:
                    continue
                began = time.monotonic()
                try:
                    task.perform(console)
                except RunInterrupted:
                    raise
                except Exception as error:
                    print(f"{task.name} failed: {type(error).__name__}: {error}", file=sys.stderr)
                    if os.environ.get("GTRXL_TRACEBACK"):
                        raise
                    continue
            done = sum(task.is_done() for task in tasks)
            seconds = time.monotonic() - began
            print(f"{done} of {len(tasks)} done: {task.name}, {seconds:.0f} s", flush=True)


@contextlib.contextmanager
def _compilation_cache(folder: str) -> Iterator[None]:
    """Let the seeds of a cell share their programs, in JAX's own cache if it is set."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", before or folder)
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@contextlib.contextmanager
def _locked(task: _Task) -> Iterator[bool]:
    """Lock a task; yields False if it is done, or being performed by another process.

    The lock is a file lock, which the system releases however the process ends.
    """
    if task.is_done():
        yield False
        return
    lock = task.file.with_name(f".{task.file.name}.lock")
    with open(lock, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            # The previous holder of the lock may have done it since the first check.
            yield not task.is_done()
        finally:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _output_in(path: Folder) -> Iterator[None]:
    """Append all output of this process to a file, also that of compiled libraries."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with open(path, "ab") as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield
        finally:
            sys.stdout.flush()
            for number, original in enumerate(kept, start=1):
                os.dup2(original, number)
                os.close(original)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into SystemExit, so that the block cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(EXIT_CODES[signal.Signals(number)])

    handlers = {number: signal.signal(number, leave) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def perform(cell: Cell, seed: int, *, console: bool = False) -> Record:
    """Execute a run and return its record, see `studies.records`.

    What a function returns replaces other entries of the record.
    """
    results = cell.job(seed) if callable(cell.job) else _train(cell, seed, console)
    origin = provenance() | {"cores": len(available_cpus())}
    return {"labels": dict(cell.labels), "seed": seed, **origin, **results}


def _train(cell: Cell, seed: int, console: bool) -> Record:
    config: Any = cell.job
    config = dataclasses.replace(config, seed=seed, num_seeds=1, on_divergence="continue")
    trainer: Any = (
        OnlineTrainer(config) if isinstance(config, OnlineConfig) else OfflineTrainer(config)
    )
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        writers = [_console(trainer, f"{cell.name}, seed {seed}")] if console else []
        trained = loop.train(trainer, writers=[JsonLinesWriter(path), *writers])
        metrics = read_metrics(path)
    curves, result = curves_of(metrics), trained.result
    goal = goal_of(curves, *cell.goal)
    if goal["steps"] is not None:
        row = np.searchsorted(metrics["step"], goal["steps"])
        goal["seconds"] = round(metrics["time"][row] - began, 1)
    scores = {name: values[0] for name, values in result.per_seed.items()}
    differing = changes(config)
    return {
        "settings": {k: v for k, v in differing.items() if k not in ("seed", "on_divergence")},
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": scores | dict(cell.measure(trained) if cell.measure else {}),
        "curve": thinned(curves),
        "goal": goal,
    }


def _console(trainer: Any, title: str) -> ConsoleWriter:
    steps = trainer.num_iterations * trainer.steps_per_iteration
    return ConsoleWriter(steps, trainer.shown, title=title)
