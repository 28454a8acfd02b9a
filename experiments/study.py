"""Studies: a grid of cells, each run with several seeds, kept run by run, and told as a table.

A script gives its runs to `run_study`, which runs those that are missing and returns the records of
all. Each run is a file, experiments/results/NAME/CELL-SEED.json, with its command, commit, device,
date, settings, steps, seconds, scores and learning curve. So a study that was interrupted resumes,
and any number of processes on one machine work on it at the same time: `--workers 2` starts two,
each on cores of its own, to which XLA then keeps.
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
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops.statistics import SOLVED
from gtrxl_jax.runs.logging.progress import ConsoleWriter
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, as_arrays, json_value
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.results import provenance
from gtrxl_jax.validation import check_choice

RESULTS = Path(__file__).parent / "results"
POINTS = 60
"""Points of a learning curve that are kept."""

_WORKER, _SINCE = "GTRXL_STUDY_WORKER", "GTRXL_STUDY_SINCE"

Record = dict[str, Any]
"""A run as it is kept; see `perform`."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to run of a study."""

    seeds: int | None = None
    """Seeds of each cell; as many as the study has if not given."""
    only: tuple[str, ...] = ()
    """Cells to run: their names, or values of their labels, as in `--only gtrxl lstm 25`; all if
    none is given."""
    again: bool = False
    """Repeat runs that are kept already."""
    workers: int = 1
    """Processes that run side by side, each on its own cores."""
    steps: int | None = None
    """Environment steps of a run, offline updates; as many as the study has if not given."""
    results: Path = RESULTS
    """The directory of the runs and the report."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
      labels: what tells its cell from others, by name.
      seed: of the run.
      job: a config, whose seed is replaced; or a function to a dict of what came out.
      goal: a score, and the value to reach; the first evaluation, or training iteration, that
        does is kept.
    """

    labels: Mapping[str, str | int | float]
    seed: int
    job: OnlineConfig | OfflineConfig | Callable[[], Record]
    goal: tuple[str, float] = ("success", SOLVED)

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return ", ".join(map(str, self.labels.values()))

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{re.sub('[^a-z0-9.]+', '-', self.cell.lower()).strip('-')}-{self.seed}.json"


def run_study(name: str, runs: Sequence[Run], options: Options) -> list[Record]:
    """Run what is missing, keeping each run as soon as it is done.

    Returns:
      The records of all runs that are kept, also those of earlier calls, in the order of the cells.

    Raises:
      ValueError: `only` names no cell; two runs have the same file.
      SystemExit: a worker failed; or this process is one, and has done its part.
    """
    if len({run.file for run in runs}) < len(runs):
        raise ValueError(f"{name} has two runs of the same cell and seed")
    chosen = _select(runs, options.only)
    folder = options.results / name
    folder.mkdir(parents=True, exist_ok=True)
    since = float(os.environ.get(_SINCE, time.time())) if options.again else 0.0
    with tempfile.TemporaryDirectory() as cache:
        if _WORKER in os.environ:
            _run_all(chosen, folder, since, quiet=True)
            sys.exit(0)
        if options.workers > 1:
            _start_workers(options.workers, cache, since)
        else:
            # The seeds of a cell are one program, compiled once.
            before = jax.config.jax_compilation_cache_dir
            jax.config.update("jax_compilation_cache_dir", cache)
            try:
                _run_all(chosen, folder, since, quiet=False)
            finally:
                jax.config.update("jax_compilation_cache_dir", before)
    return _read(folder, runs)


def _select(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs of cells of those names, and those with one of the values of each label named."""
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
    """Whether a run is to be made here: it is not kept yet, and no other process makes it.

    A lock on a file, which the system takes back from a process that ends, however it ends.
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
        # It may have been kept, by the process that held the lock, since it was looked for.
        if is_kept():
            lock.unlink(missing_ok=True)
            yield False
            return
        yield True
        lock.unlink(missing_ok=True)


def _start_workers(count: int, cache: str, since: float) -> None:
    """Run this program again in several processes, each bound to its share of the cores."""
    cores = _cores()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, _SINCE: str(since)}
    command = [sys.executable, *sys.orig_argv[1:]]
    workers = []
    try:
        for n in range(count):
            # A child has the cores of its parent at its start.
            _bind(cores[n % len(cores) :: count] if len(cores) > 1 else cores)
            workers.append(subprocess.Popen(command, env=environment | {_WORKER: str(n)}))
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        _bind(cores)
    if any(codes):
        sys.exit(f"{sum(map(bool, codes))} of {count} workers failed; the others have ended")


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _bind(cores: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def perform(run: Run, *, quiet: bool = False) -> Record:
    """Make a run.

    Returns:
      `labels`, `seed`, `command`, `commit`, `device`, `date`, `cores` (used by the process); of a
      config also what `_train` gives, and else what the function gave, which replaces the others.
    """
    came = run.job() if callable(run.job) else _train(run.job, run, quiet)
    origin = provenance() | {"cores": len(_cores())}
    return {"labels": dict(run.labels), "seed": run.seed, **origin, **came}


def _train(config: OnlineConfig | OfflineConfig, run: Run, quiet: bool) -> Record:
    """Train and evaluate.

    Returns:
      `settings`, those that differ from the defaults; `steps`; `seconds`, start and compilation
      included; `scores`, the mean over the last evaluation's episodes; `curve`, for each metric
      its steps and values; `goal`, which score was to reach what, and the steps and the seconds
      that it took, or null.
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
    result = train(trainer, writers=writers).result
    return {
        "settings": changes(
            dataclasses.asdict(config), dataclasses.asdict(type(config)()), skip=("seed",)
        ),
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": {name: values[0] for name, values in result.per_seed.items()},
        "curve": curve.thinned(),
        "goal": curve.goal,
    }


def changes(
    config: Mapping[str, Any], default: Mapping[str, Any], skip: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of a config that differ from the default, as `optimiser.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        usual = default.get(name)
        if isinstance(value, dict) and isinstance(usual, dict):
            found |= {f"{name}.{inner}": x for inner, x in changes(value, usual).items()}
        elif value != usual and name not in (*skip, "on_divergence"):
            found[name] = value
    return found


class Curve(MetricWriter):
    """Keeps how a run learned, and when it reached its goal."""

    def __init__(self, goal: tuple[str, float]):
        self._began = time.monotonic()
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._score, self._value = goal
        self.goal: Record = {"score": self._score, "value": self._value, "steps": None}

    def write(self, step: int, metrics: Metrics) -> None:
        for name, value in as_arrays(metrics).items():
            if np.isfinite(value):
                self._points.setdefault(name, []).append((step, float(value)))
        now = (metrics.get(f"{kind}/{self._score}", np.nan) for kind in ("episode", "evaluation"))
        if self.goal["steps"] is None and any(value >= self._value for value in now):
            self.goal |= {"steps": step, "seconds": round(time.monotonic() - self._began, 1)}

    def thinned(self) -> dict[str, dict[str, list[float]]]:
        """Success, or the return where there is none; of offline runs the loss and the accuracy."""
        success = any(name.endswith("/success") for name in self._points)
        score = "success" if success else "return"
        kept = (f"episode/{score}", f"evaluation/{score}", "accuracy/last_step")
        kept = kept if any(name in self._points for name in kept[:2]) else ("loss", *kept[2:])
        curve = {}
        for name in self._points.keys() & set(kept):
            points = self._points[name]
            places = np.linspace(0, len(points) - 1, min(len(points), POINTS)).round().astype(int)
            curve[name] = {
                "step": [points[place][0] for place in places],
                "value": [float(f"{points[place][1]:.4g}") for place in places],
            }
        return curve
