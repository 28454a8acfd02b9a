"""Writers of a run's metrics, to JSON lines and TensorBoard, and a reader.

Every writer takes a step and a mapping from names to values. A value is a scalar, or an array `[S]`
with one entry for each of S seeds trained side by side. `gtrxl_jax.runs.logging.progress` has the
writer for the console.
"""

import abc
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

Metrics = Mapping[str, ArrayLike]

_REAL = (np.bool_, np.integer, np.floating)
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class MetricWriter(abc.ABC):
    """The interface of all writers, a context manager that closes them."""

    def start(self, step: int) -> None:  # noqa: B027, optional
        """Start, or resume, after `step`: discard what was written for later steps."""

    @abc.abstractmethod
    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        """Write the metrics after `step` environment steps (or updates).

        Raises:
          TypeError: if a value is not a number.
          ValueError: if a value has more than the one axis of seeds.
        """

    def close(self) -> None:  # noqa: B027, optional
        """Release resources; nothing can be written afterwards."""

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Writers(MetricWriter):
    """Several writers combined into one."""

    def __init__(self, *writers: MetricWriter):
        self._writers = writers

    def start(self, step: int) -> None:
        for writer in self._writers:
            writer.start(step)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        metrics = as_arrays(metrics)  # a single transfer from the device for all writers
        for writer in self._writers:
            writer.write(step, metrics)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class JsonLinesWriter(MetricWriter):
    """Appends one line of JSON per write: `{"step": 640, "time": 1.7e9, "loss": 0.5, ...}`.

    `time` is in seconds since 1970 (UTC). Arrays `[S]` become lists, and numbers that are not
    finite the strings "NaN", "Infinity" and "-Infinity". Each line is flushed to the operating
    system at once, so a run that is killed loses at most the line being written; opening the file
    again removes such an incomplete line and appends.

    Args:
      path: the file. Its folder is created if missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115, closed by close()
        self._file.truncate(_whole_lines(path.read_bytes()))
        self._path = path

    def start(self, step: int) -> None:
        # A single truncation, which is atomic.
        length = 0
        for record, line in _records(self._path):
            if record["step"] > step:
                break
            length += len(line)
        self._file.truncate(length)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        arrays = as_arrays(metrics)
        if reserved := {"step", "time"} & arrays.keys():
            raise ValueError(f"metric {reserved.pop()!r} has a reserved name: rename it")
        record = {"step": int(step), "time": time.time()}
        record |= {name: json_value(value.tolist()) for name, value in arrays.items()}
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter(MetricWriter):
    """Writes TensorBoard event files, with a run `seed_0`, `seed_1`, ... for each entry of `[S]`.

    The runs share their tags, so that TensorBoard overlays the seeds in one plot. Values that are
    not finite are omitted, since TensorBoard cannot draw them.

    Args:
      folder: the log directory of TensorBoard.

    Raises:
      ModuleNotFoundError: if tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard logs require tensorboardX: pip install 'gtrxl_jax[log]', or omit them"
            ) from error
        self._new_run = SummaryWriter
        self._folder = Path(folder)
        self._runs: dict[str, Any] = {}
        self._first = 0

    def start(self, step: int) -> None:
        self._first = step + 1

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        for name, value in as_arrays(metrics).items():
            for seed, entry in enumerate(value.reshape(-1)):
                if np.isfinite(entry):
                    run = self._run(f"seed_{seed}" if value.ndim else "")
                    run.add_scalar(name, float(entry), int(step))

    def close(self) -> None:
        for run in self._runs.values():
            run.close()

    def _run(self, name: str) -> Any:
        if name not in self._runs:
            self._runs[name] = self._new_run(
                str(self._folder / name), purge_step=self._first or None
            )
        return self._runs[name]


def json_value(value: Any) -> Any:
    """Replace numbers that JSON lacks by "NaN", "Infinity" and "-Infinity", recursively."""
    if isinstance(value, Mapping):
        return {key: json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return value


def as_arrays(metrics: Metrics) -> dict[str, Shaped[np.ndarray, "*S"]]:
    """Transfer metrics to the host as NumPy arrays, scalar or `[S]`.

    Raises:
      TypeError: if a value is not a real number.
      ValueError: if a value has more than one axis.
    """
    arrays = {name: np.asarray(value) for name, value in jax.device_get(dict(metrics)).items()}
    for name, array in arrays.items():
        if not any(jax.dtypes.issubdtype(array.dtype, kind) for kind in _REAL):
            raise TypeError(f"metric {name!r} must be a real number or one per seed; got {array!r}")
        if array.ndim > 1:
            raise ValueError(
                f"metric {name!r} has shape {array.shape}: pass a scalar, or one entry per seed [S]"
            )
    return arrays


def read_metrics(path: str | os.PathLike[str]) -> dict[str, Shaped[np.ndarray, "N *S"]]:
    """Read a file written by `JsonLinesWriter`.

    Lines of the same step are merged into one row. Where the step decreases, the run was resumed
    from an earlier checkpoint, and rows after that step are dropped. An incomplete last line, from
    a run that was killed or is writing, is ignored.

    Returns:
      `step` as int64 `[N]`, `time` as float64 `[N]`, and each metric as float64 `[N]`, or `[N, S]`
      if it was written for S seeds. NaN where a row lacks the metric.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if a line other than the last is not a record, or the number of seeds changes.
    """
    rows: dict[int, dict[str, Any]] = {}
    for record, _ in _records(path):
        step = record["step"]
        while rows and next(reversed(rows)) > step:
            rows.popitem()
        rows.setdefault(step, {}).update(record)
    names = dict.fromkeys(name for row in rows.values() for name in row)
    columns = {name: _column(path, name, list(rows.values())) for name in names}
    return columns | {"step": np.array(list(rows), np.int64)}


def _column(path: Any, name: str, rows: list[dict[str, Any]]) -> Float[np.ndarray, "N *S"]:
    values = [None if name not in row else np.asarray(row[name], np.float64) for row in rows]
    shapes = {value.shape for value in values if value is not None}
    if len(shapes) > 1:
        raise ValueError(f"{path}: {name!r} changes its number of seeds: shapes {sorted(shapes)}")
    missing = np.full(shapes.pop(), np.nan)
    return np.stack([missing if value is None else value for value in values])


def _records(path: str | os.PathLike[str]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each record of a file, with its line."""
    content = Path(path).read_bytes()
    lines = content[: _whole_lines(content)].splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}, is not a record: {line!r}") from None
        yield record, line


def _whole_lines(content: bytes) -> int:
    """Return the length of `content` up to and including its last newline."""
    return content.rfind(b"\n") + 1
