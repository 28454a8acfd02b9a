"""The loggers that `--log` selects, by name or as `my_module:MyWriter`.

These are metrics.csv, and the trackers of experiments MLflow, TensorBoard, Trackio and Weights &
Biases. A tracker has a run for each seed, under the same names, so that it can overlay and average
them; values that are not finite are omitted, since trackers cannot draw them.
"""

import abc
import contextlib
import contextvars
import csv
import importlib
import io
import json
import logging
import math
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from flax import traverse_util

from gtrxl_jax.extras import install_command
from gtrxl_jax.files import append_to, atomic, write_text
from gtrxl_jax.plugins import Registry, import_plugins
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, per_seed, read_metrics

PROJECT = "gtrxl_jax"
"""The default name of the project in trackers that have projects."""

_KEYS = ["step", "seed"]


class CsvWriter(MetricWriter):
    """Writes metrics.csv: a row for each step and seed, and a column for each metric.

    Cells of metrics that a row lacks are empty; NaN and infinities are nan, inf and -inf. A metric
    that appears later adds a column, for which the file is rewritten. Resuming drops the rows
    after the checkpoint's step, and rows that are damaged.

    Args:
      folder: the folder of the run.
      config: the config of the run, whose seed is the first.

    Raises:
      ValueError: if the folder has a metrics.csv that is not of a run.
    """

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None):
        self._path = Path(folder, "metrics.csv")
        self._first_seed = (config or {}).get("seed", 0)
        self._columns = list(_KEYS)
        self._file: FileIO | None = None
        _cells(self._path)

    def start(self, step: float) -> None:
        columns, rows = _read(self._path)
        rows = [row for row in rows if int(row["step"]) <= step]
        self._columns = columns if rows else list(_KEYS)
        self._rewrite(rows)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        of_seeds = per_seed(metrics, self._first_seed)
        names = {name: None for row in of_seeds.values() for name in row}
        if reserved := names.keys() & set(_KEYS):
            raise ValueError(f"metric {reserved.pop()!r} has a reserved name: rename it")
        if self._file is None:
            self.start(math.inf)
        if new := [name for name in names if name not in self._columns]:
            _, rows = _read(self._path)
            self._columns += new
            self._rewrite(rows)
        written = [{"step": int(step), "seed": seed, **row} for seed, row in of_seeds.items()]
        assert self._file is not None
        append_to(self._file, self._path, _text(self._columns, written).encode())

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the file by these rows, atomically, and open it to append."""
        self.close()
        with atomic(self._path) as temporary:
            header = dict(zip(self._columns, self._columns, strict=True))
            temporary.write_text(_text(self._columns, [header, *rows]), "utf-8", newline="")
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115


def _text(columns: list[str], rows: Iterable[Mapping[str, Any]]) -> str:
    written = io.StringIO()
    csv.DictWriter(written, columns, lineterminator="\n").writerows(rows)
    return written.getvalue()


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table, without damaged rows.

    An incomplete last row, of a process that was killed, is dropped silently.
    """
    columns, *cells = _cells(path)
    rows = [
        dict(zip(columns, row, strict=True))
        for row in cells
        if len(row) == len(columns) and row[0].isdecimal()
    ]
    if dropped := len(cells) - len(rows):
        print(f"{path}: {dropped} damaged line(s) dropped", file=sys.stderr)
    return columns, rows


def _cells(path: Path) -> list[list[str]]:
    """Return the cells of the complete lines of a table, the first of which are its columns."""
    content = path.read_bytes() if path.exists() else b""
    text = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")
    cells = list(csv.reader(io.StringIO(text, newline=""))) or [list(_KEYS)]
    if cells[0][:2] != _KEYS:
        raise ValueError(f"{path} is not a table of metrics: move it elsewhere")
    return cells


class TrackerWriter(MetricWriter):
    """A run of a tracker for each seed: the one of a single seed is named "", others "seed_3".

    Args:
      folder: the folder of the run.
      config: the config of the run.

    Raises:
      ImportError: if the tracker's package is not installed.
    """

    name: ClassVar[str]
    """The name for `--log`, and of the extra that installs the package."""
    package: ClassVar[str]

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None):
        self._package = self.require()
        self._folder = Path(folder)
        self._config = dict(config or {})
        self._runs: dict[str, Any] = {}

    @classmethod
    def require(cls) -> ModuleType:
        try:
            return importlib.import_module(cls.package)
        except ImportError:
            raise ImportError(
                f"log {cls.name} requires {cls.package}: {install_command(cls.name)}, or omit "
                f"{cls.name}"
            ) from None
        except Exception as error:
            raise ImportError(
                f"log {cls.name}: the import of {cls.package} raises {type(error).__name__}: "
                f"{error}: install it again, or omit {cls.name}"
            ) from error

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        of_seeds = per_seed(metrics, self._config.get("seed", 0))
        for seed, values in of_seeds.items():
            finite = {name: float(x) for name, x in values.items() if math.isfinite(x)}
            self._log(f"seed_{seed}" if len(of_seeds) > 1 else "", int(step), finite)

    def close(self) -> None:
        for run in self._runs.values():
            self._end(run)
        self._runs = {}

    def _run(self, name: str) -> Any:
        if name not in self._runs:
            self._runs[name] = self._open(name)
        return self._runs[name]

    @abc.abstractmethod
    def _open(self, name: str) -> Any:
        """Return the tracker's run of this name."""

    @abc.abstractmethod
    def _log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Log the values after a step to the run of this name."""

    @abc.abstractmethod
    def _end(self, run: Any) -> None:
        """End a run."""


class TensorBoardWriter(TrackerWriter):
    """Writes TensorBoard event files to the folder of the run, and to a folder for each seed."""

    name, package = "tensorboard", "tensorboardX"
    _first = 0

    def start(self, step: int) -> None:
        self._first = step + 1

    def _open(self, name: str) -> Any:
        folder = str(self._folder / name)
        return self._package.SummaryWriter(folder, purge_step=self._first or None)

    def _log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        for metric, value in values.items():
            self._run(name).add_scalar(metric, value, step)

    def _end(self, run: Any) -> None:
        run.close()


class ServiceWriter(TrackerWriter):
    """A tracker that keeps runs under an id, and may fail without ending the run.

    The id is in a file of the run's folder, with the last step that the service is known to have. A
    resumed run sends what the service lacks, of metrics.jsonl too, since what was queued in a
    process that was killed is lost; and nothing that it has: the numbers are the same.
    """

    _id = ""
    _sent = 0
    _latest = 0
    _failed = False

    def start(self, step: int) -> None:
        record: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(self._record.read_text("utf-8"))
        resumed = step > 0 and "id" in record
        self._id = record["id"] if resumed else uuid.uuid4().hex[:8]
        self._sent = record.get("step", 0) if resumed else 0
        self._last_steps: dict[str, int] = {}
        first, seeds = self._config.get("seed", 0), self._config.get("num_seeds", 1)
        with self._disable_on_failure():
            self._keep_record()
            for seed in range(first, first + seeds):
                self._run(f"seed_{seed}" if seeds > 1 else "")
            if step and (metrics := self._folder / "metrics.jsonl").exists():
                self._resend(read_metrics(metrics), step)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        if not self._failed:
            with self._disable_on_failure():
                super().write(step, metrics)
                self._latest = int(step)

    def close(self) -> None:
        with self._disable_on_failure():
            super().close()
            if not self._failed and self._latest > self._sent:
                self._sent = self._latest
                self._keep_record()

    def _run(self, name: str) -> Any:
        run = super()._run(name)
        if name not in self._last_steps:
            self._last_steps[name] = self._last_step(run)
        return run

    def _last_step(self, run: Any) -> int:
        """Return the last step that the service has of a run that has been opened."""
        return self._sent

    def _resend(self, columns: Mapping[str, Any], last: int) -> None:
        """Write the rows up to a step, see `read_metrics`."""
        metrics = {k: column for k, column in columns.items() if k not in ("step", "time")}
        for row, step in enumerate(columns["step"]):
            if step <= last:
                self.write(step, {name: column[row] for name, column in metrics.items()})

    def _log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        run = self._run(name)
        if step > self._last_steps[name]:
            run.log(dict(values), step=step)

    def _end(self, run: Any) -> None:
        run.finish()  # waits until everything has arrived

    @property
    def _record(self) -> Path:
        return self._folder / f"{self.name}.json"

    def _keep_record(self) -> None:
        write_text(self._record, json.dumps({"id": self._id, "step": self._sent}))

    def _title(self, name: str) -> str:
        """Return the name of a run: the last parts of the folder, without runs/, and the seed."""
        parts = [part for part in self._folder.absolute().parts[-2:] if part != "runs"]
        return "-".join([*parts, name] if name else parts)

    @contextlib.contextmanager
    def _disable_on_failure(self) -> Any:
        """Report a failure of the tracker in one line, and disable it."""
        try:
            yield
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"{self.name}: {reason[:300]}; the run continues without it", file=sys.stderr)


class WandbWriter(ServiceWriter):
    """Writes to Weights & Biases; offline, into the folder of the run, without a key or network.

    The project is WANDB_PROJECT, by default gtrxl_jax; all variables of wandb apply. The runs of
    several seeds are a group. Each offline folder holds the whole run up to its end.
    """

    name = package = "wandb"
    _offline = False
    _suffix = ""

    def _open(self, name: str) -> Any:
        wandb = self._package
        if not os.environ.get("WANDB_MODE") and not self._offline:
            if not wandb.login(prompt=False, verify=False):
                self._go_offline("no key is configured (wandb login)")
            else:
                try:
                    return self._init(name)
                except wandb.Error as error:
                    self._go_offline(" ".join(str(error).split()))
                    self._suffix = "offline"  # the id of the failed attempt remains in use
        return self._init(name)

    def _last_step(self, run: Any) -> int:
        # The step that wandb expects next: the server's, and 0 for a new run or offline.
        return run.step - 1

    def _init(self, name: str) -> Any:
        settings: dict[str, Any] = {}
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            settings["init_timeout"] = 30.0
        if self._offline:
            settings["silent"] = True
        return self._package.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id="-".join(filter(None, [self._id, self._suffix, name])),
            name=self._title(name),
            group=self._title("") if name else None,
            config=self._config,
            dir=str(self._folder.absolute()),
            resume="allow",
            reinit="create_new",
            mode="offline" if self._offline else None,
            settings=self._package.Settings(**settings),
        )

    def _go_offline(self, reason: str) -> None:
        self._offline = True
        upload = f"upload with wandb sync {self._folder / 'wandb'}/offline-*"
        print(f"wandb: {reason[:300]}; logging offline: {upload}", file=sys.stderr)


class TrackioWriter(ServiceWriter):
    """Writes to Trackio: a local database, or what TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names.

    The project is TRACKIO_PROJECT, by default gtrxl_jax. The runs of several seeds are a group.
    """

    name = package = "trackio"

    def _open(self, name: str) -> Any:
        # In a context of its own, since Trackio ends the run of the current one. It prints to
        # standard output, where the command prints its result.
        with contextlib.redirect_stdout(io.StringIO()):
            return contextvars.Context().run(
                self._package.init,
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=f"{self._title(name)}-{self._id}",
                group=self._title("") if name else None,
                config=self._config,
                resume="allow",
                embed=False,
            )

    def _end(self, run: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            super()._end(run)


class MlflowWriter(ServiceWriter):
    """Writes to MLflow: a local database, or what MLFLOW_TRACKING_URI names.

    The experiment is MLFLOW_EXPERIMENT_NAME, by default gtrxl_jax, and the settings are parameters.
    The runs of several seeds have the same tag `gtrxl_jax.group`.
    """

    name = package = "mlflow"

    def _open(self, name: str) -> "_MlflowRun":
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports that tables are created
        client = self._package.MlflowClient()
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(project)
        place = experiment.experiment_id if experiment else client.create_experiment(project)
        tags = {"gtrxl_jax.id": "-".join(filter(None, [self._id, name]))}
        if found := client.search_runs([place], f"tags.`gtrxl_jax.id` = '{tags['gtrxl_jax.id']}'"):
            client.update_run(found[0].info.run_id, status="RUNNING")
            return _MlflowRun(client, found[0])
        if name:
            tags["gtrxl_jax.group"] = self._title("")
        run = client.create_run(place, run_name=self._title(name), tags=tags)
        entities = self._package.entities
        settings = traverse_util.flatten_dict(self._config, sep=".")
        params = [entities.Param(key, str(value)) for key, value in settings.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            client.log_batch(run.info.run_id, params=params[first : first + _MOST_PARAMS])
        return _MlflowRun(client, run)

    def _last_step(self, run: "_MlflowRun") -> int:
        return run.step

    def _log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        run, entities, now = self._run(name), self._package.entities, int(1000 * time.time())
        if step > self._last_steps[name]:
            metrics = [entities.Metric(key, value, now, step) for key, value in values.items()]
            tags = [entities.RunTag(_MlflowRun.STEP, str(step))]
            run.client.log_batch(run.run_id, metrics=metrics, tags=tags)


class _MlflowRun:
    """A run of MLflow, and the last step that it has."""

    STEP = "gtrxl_jax.step"

    def __init__(self, client: Any, run: Any):
        self.client, self.run_id = client, run.info.run_id
        self.step = int(run.data.tags.get(self.STEP, 0))

    def finish(self) -> None:
        self.client.set_terminated(self.run_id)


_MOST_PARAMS = 100
"""The number of parameters that MLflow takes at once."""


LOGGERS = Registry("log", MetricWriter)
LOGGERS.register("csv", CsvWriter)
LOGGERS.register("mlflow", MlflowWriter)
LOGGERS.register("tensorboard", TensorBoardWriter)
LOGGERS.register("trackio", TrackioWriter)
LOGGERS.register("wandb", WandbWriter)


def require_loggers(names: Iterable[str]) -> None:
    """Raise if a logger cannot be used; import the modules that the names name.

    Raises:
      ValueError: if a name is unknown.
      ImportError: if a package is missing, with the command that installs it.
    """
    names = list(names)
    import_plugins(names)
    for name in names:
        LOGGERS.find(name).require()


def make_loggers(names: Iterable[str], folder: Path, config_json: str) -> list[MetricWriter]:
    """Return the writers of a run, each once.

    Args:
      names: see `require_loggers`, which raises what this raises.
      folder: the folder of the run.
      config_json: the config of the run.
    """
    return [LOGGERS.find(name)(folder, json.loads(config_json)) for name in dict.fromkeys(names)]
