"""Writers to trackers of experiments: TensorBoard, Weights & Biases and Trackio.

A tracker has a run for each seed, under the same names, so that it can overlay and average them.
Values that are not finite are omitted, since trackers cannot draw them.
"""

import abc
import contextlib
import contextvars
import importlib
import io
import json
import math
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from gtrxl_jax.extras import install_command
from gtrxl_jax.files import atomic
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, per_seed, read_metrics

PROJECT = "gtrxl_jax"
"""The default name of the project in trackers that have projects."""


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
    _arrived = 0
    _latest = 0
    _failed = False

    def start(self, step: int) -> None:
        record: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(self._record.read_text("utf-8"))
        resumed = step > 0 and "id" in record
        self._id = record["id"] if resumed else uuid.uuid4().hex[:8]
        self._arrived = record.get("step", 0) if resumed else 0
        self._has: dict[str, int] = {}
        first, seeds = self._config.get("seed", 0), self._config.get("num_seeds", 1)
        with self._going_on():
            self._keep_record()
            for seed in range(first, first + seeds):
                self._run(f"seed_{seed}" if seeds > 1 else "")
            if step and (metrics := self._folder / "metrics.jsonl").exists():
                self._send_again(read_metrics(metrics), step)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        if not self._failed:
            with self._going_on():
                super().write(step, metrics)
                self._latest = int(step)

    def close(self) -> None:
        with self._going_on():
            super().close()
            if not self._failed and self._latest > self._arrived:
                self._arrived = self._latest
                self._keep_record()

    def _run(self, name: str) -> Any:
        run = super()._run(name)
        if name not in self._has:
            self._has[name] = self._last_step(run)
        return run

    def _last_step(self, run: Any) -> int:
        """Return the last step that the service has of a run that has been opened."""
        return self._arrived

    def _send_again(self, columns: Mapping[str, Any], last: int) -> None:
        """Write the rows up to a step, see `read_metrics`."""
        metrics = {k: column for k, column in columns.items() if k not in ("step", "time")}
        for row, step in enumerate(columns["step"]):
            if step <= last:
                self.write(step, {name: column[row] for name, column in metrics.items()})

    def _log(self, name: str, step: int, values: Mapping[str, float]) -> None:
        run = self._run(name)
        if step > self._has[name]:
            run.log(dict(values), step=step)

    def _end(self, run: Any) -> None:
        run.finish()  # waits until everything has arrived

    @property
    def _record(self) -> Path:
        return self._folder / f"{self.name}.json"

    def _keep_record(self) -> None:
        with atomic(self._record) as temporary:
            temporary.write_text(json.dumps({"id": self._id, "step": self._arrived}), "utf-8")

    def _title(self, name: str) -> str:
        """Return the name of a run: the last parts of the folder, without runs/, and the seed."""
        parts = [part for part in self._folder.absolute().parts[-2:] if part != "runs"]
        return "-".join([*parts, name] if name else parts)

    @contextlib.contextmanager
    def _going_on(self) -> Any:
        """Say in one line that the tracker fails, and go on without it."""
        try:
            yield
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"{self.name}: {reason[:300]}; the run goes on without it", file=sys.stderr)


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
        # standard output, which is that of the command.
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
