"""Studies: a grid of cells, each run with several seeds and saved as a file.

A script passes its runs to `run_study`, which executes the missing ones and returns the records of
all. Each run is a file, experiments/results/NAME/CELL-SEED.json, with its command, commit, device,
date, settings, steps, seconds, scores and learning curve. An interrupted study therefore resumes,
and any number of processes on one machine can share a study: `--workers 2` starts two, bound to
disjoint cores, which XLA respects. `--report-only` writes the report of the saved runs alone.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.files import atomic
from gtrxl_jax.machine import available_cpus, share_of_cpus
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops.statistics import SOLVED
from gtrxl_jax.runs.logging.console import ConsoleWriter
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, as_arrays, json_value
from gtrxl_jax.runs.loop import Trained, train
from gtrxl_jax.runs.results import provenance
from gtrxl_jax.validation import check_choice

RESULTS = Path(__file__).parent / "results"
POINTS = 60
"""Number of points of a learning curve that are stored."""

_WORKER, _SINCE = "GTRXL_STUDY_WORKER", "GTRXL_STUDY_SINCE"

Record = dict[str, Any]
"""The stored results of a run; see `perform`."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The part of a study to run."""

    seeds: int | None = None
    """Number of seeds of each cell; by default as defined by the study."""
    only: tuple[str, ...] = ()
    """Cells to run, by name or by values of their labels, as in `--only gtrxl lstm 25`; all by
    default."""
    again: bool = False
    """Repeat runs that are already saved."""
    workers: int = 1
    """Number of parallel processes, each bound to its own cores."""
    steps: int | None = None
    """Environment steps of a run, or updates of an offline run; by default as defined by the
    study."""
    results: Path = RESULTS
    """Folder of the runs and the report."""
    report_only: bool = False
    """Write the report of the saved runs, without executing the missing ones."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
      labels: the labels that identify the run's cell, by name.
      seed: seed of the run.
      job: a config, whose seed is replaced; or a function that returns a dict of results.
      goal: a score and the value to reach; the first iteration or evaluation that reaches it is
        recorded.
      measure: for a config, a function of the trained agent that returns further scores.
    """

    labels: Mapping[str, str | int | float]
    seed: int
    job: OnlineConfig | OfflineConfig | Callable[[], Record]
    goal: tuple[str, float] = ("success", SOLVED)
    measure: Callable[[Trained], Mapping[str, float]] = lambda trained: {}

    @property
    def cell(self) -> str:
        """The name of the run's cell."""
        return ", ".join(map(str, self.labels.values()))

    @property
    def file(self) -> str:
        """The name of the run's file."""
        return f"{re.sub('[^a-z0-9.]+', '-', self.cell.lower()).strip('-')}-{self.seed}.json"


def run_study(name: str, runs: Sequence[Run], options: Options) -> list[Record]:
    """Execute the missing runs, unless `options.report_only`, saving each as soon as it is done.

    Returns:
      The records of all saved runs, including those of earlier calls, in the order of the cells.

    Raises:
      ValueError: if `only` contains an unknown cell, or two runs have the same file.
      SystemExit: if a worker failed; or in a worker, when it is done.
    """
    if len({run.file for run in runs}) < len(runs):
        raise ValueError(f"{name} has two runs of the same cell and seed")
    chosen = _select(runs, options.only)
    folder = options.results / name
    if options.report_only:
        return _read(folder, runs)
    folder.mkdir(parents=True, exist_ok=True)
    since = float(os.environ.get(_SINCE, time.time())) if options.again else 0.0
    with tempfile.TemporaryDirectory() as cache:
        if _WORKER in os.environ:
            _run_all(chosen, folder, since, quiet=True)
            sys.exit(0)
        if options.workers > 1:
            _start_workers(options.workers, cache, since)
        else:
            # Seeds of a cell share their programs through the compilation cache.
            before = jax.config.values["jax_compilation_cache_dir"]
            jax.config.update("jax_compilation_cache_dir", before or cache)
            try:
                _run_all(chosen, folder, since, quiet=False)
            finally:
                jax.config.update("jax_compilation_cache_dir", before)
    return _read(folder, runs)


def _select(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """Return the runs of the named cells, and those that match a given value of every label."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.labels.items():
            values.setdefault(name, set()).add(str(value))
    cells = {run.cell for run in runs}
    for label in only:
        check_choice("cell", label, sorted(cells.union(*values.values())))
    asked = {name: known & set(only) for name, known in values.items() if known & set(only)}

    def is_asked(run: Run) -> bool:
        of_labels = all(str(run.labels.get(name)) in wanted for name, wanted in asked.items())
        return not only or run.cell in only or (bool(asked) and of_labels)

    return [run for run in runs if is_asked(run)]


def _read(folder: Path, runs: Sequence[Run]) -> list[Record]:
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    order = {json.dumps(run.labels): n for n, run in reversed(list(enumerate(runs)))}

    def place(record: Record) -> Any:
        labels = json.dumps(record["labels"])
        return order.get(labels, len(order)), labels, record["seed"]

    return sorted(records, key=place)


def _run_all(runs: Sequence[Run], folder: Path, since: float, *, quiet: bool) -> None:
    for number, run in enumerate(runs, start=1):
        with _locked(folder / run.file, since) as free:
            if not free:
                continue
            began = time.monotonic()
            record = perform(run, quiet=quiet)
            with atomic(folder / run.file) as temporary:
                temporary.write_text(json.dumps(json_value(record), allow_nan=False) + "\n")
        seconds = time.monotonic() - began
        print(f"{number}/{len(runs)}  {run.cell}, seed {run.seed}: {seconds:.0f} s", flush=True)


@contextlib.contextmanager
def _locked(path: Path, since: float) -> Iterator[bool]:
    """Lock a run; yields False if it is already saved, or being executed by another process.

    The lock is a file lock, which the system releases however the process ends.
    """

    def is_kept() -> bool:
        return path.exists() and path.stat().st_mtime >= since

    if is_kept():
        yield False
        return
    lock = path.with_name(f".{path.stem}.lock")
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # The previous holder of the lock may have saved the run since the first check.
        if is_kept():
            lock.unlink(missing_ok=True)
            yield False
            return
        yield True
        lock.unlink(missing_ok=True)


def _start_workers(count: int, cache: str, since: float) -> None:
    """Run this program again in several processes, each bound to its share of the cores."""
    environment = {"JAX_COMPILATION_CACHE_DIR": cache} | os.environ | {_SINCE: str(since)}
    command = [sys.executable, *sys.orig_argv[1:]]
    workers = []
    try:
        for n in range(count):
            with share_of_cpus(n, count):
                workers.append(subprocess.Popen(command, env=environment | {_WORKER: str(n)}))
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
    if any(codes):
        sys.exit(f"{sum(map(bool, codes))} of {count} workers failed; the others have ended")


def perform(run: Run, *, quiet: bool = False) -> Record:
    """Execute a run.

    Returns:
      `labels`, `seed`, `command`, `commit`, `device`, `date` and `cores` (used by the process);
      for a config also the results of `_train`, otherwise those of the function, which override
      the other entries.
    """
    came = run.job() if callable(run.job) else _train(run.job, run, quiet)
    origin = provenance() | {"cores": len(available_cpus())}
    return {"labels": dict(run.labels), "seed": run.seed, **origin, **came}


def _train(config: OnlineConfig | OfflineConfig, run: Run, quiet: bool) -> Record:
    """Train and evaluate.

    Returns:
      `settings` that differ from the defaults; `steps`; `seconds`, including start and compilation;
      `scores`, means over the episodes of the last evaluation, and those of `run.measure`; `curve`,
      the steps and values of each metric; and `goal`, with its score, value, and the steps and
      seconds taken to reach it, or null.
    """
    config = dataclasses.replace(config, seed=run.seed, num_seeds=1, on_divergence="continue")
    trainer: Any = (
        OnlineTrainer(config) if isinstance(config, OnlineConfig) else OfflineTrainer(config)
    )
    curve = Curve(run.goal)
    writers: list[MetricWriter] = [curve]
    if not quiet:
        writers += [
            ConsoleWriter(
                trainer.num_iterations * trainer.steps_per_iteration,
                trainer.shown,
                title=f"{run.cell}, seed {run.seed}",
            )
        ]
    trained = train(trainer, writers=writers)
    result = trained.result
    scores = {name: values[0] for name, values in result.per_seed.items()}
    return {
        "settings": changes(
            dataclasses.asdict(config), dataclasses.asdict(type(config)()), skip=("seed",)
        ),
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": scores | dict(run.measure(trained)),
        "curve": curve.thinned(),
        "goal": curve.goal,
    }


def changes(
    config: Mapping[str, Any], default: Mapping[str, Any], skip: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields of a config that differ from the default: `optimizer.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        usual = default.get(name)
        if isinstance(value, dict) and isinstance(usual, dict):
            found |= {f"{name}.{inner}": x for inner, x in changes(value, usual).items()}
        elif value != usual and name not in (*skip, "on_divergence"):
            found[name] = value
    return found


class Curve(MetricWriter):
    """Records the learning curve of a run, and when it reached its goal."""

    def __init__(self, goal: tuple[str, float]):
        self._began = time.monotonic()
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._score, self._value = goal
        self.goal: Record = {"score": self._score, "value": self._value, "steps": None}

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        arrays = as_arrays(metrics)
        for name, value in arrays.items():
            if np.isfinite(value):
                self._points.setdefault(name, []).append((int(step), float(value)))
        now = (arrays.get(f"{kind}/{self._score}", np.nan) for kind in ("episode", "evaluation"))
        if self.goal["steps"] is None and any(value >= self._value for value in now):
            self.goal |= {"steps": step, "seconds": round(time.monotonic() - self._began, 1)}

    def thinned(self) -> dict[str, dict[str, list[float]]]:
        """Return the success and the return; for offline runs the loss and the accuracy."""
        online = [
            f"{kind}/{s}" for kind in ("episode", "evaluation") for s in ("success", "return")
        ]
        offline = ["loss", "accuracy/last_step"]
        kept = online if any(name in self._points for name in online) else offline
        curve = {}
        for name in self._points.keys() & kept:
            points = self._points[name]
            places = np.linspace(0, len(points) - 1, min(len(points), POINTS)).round().astype(int)
            curve[name] = {
                "step": [points[place][0] for place in places],
                "value": [float(f"{points[place][1]:.4g}") for place in places],
            }
        return curve
