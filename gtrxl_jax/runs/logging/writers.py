"""Where a run's numbers go: a file of JSON lines, TensorBoard, and back into arrays.

Every writer takes the same two arguments, a step and a mapping from names to numbers. A number is
a scalar, or an array `[S]` with one entry for each of S seeds trained side by side.
`gtrxl_jax.runs.logging.progress` has the writer for the terminal.
"""

import abc
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

Metrics = Mapping[str, ArrayLike]

_REAL = (np.bool_, np.integer, np.floating)
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class MetricWriter(abc.ABC):
    """The interface of all writers, and a context manager that closes them."""

    def start(self, step: int) -> None:  # noqa: B027, for those that need it
        """Begin, or go on, after `step`: forget what was written of later ones."""

    @abc.abstractmethod
    def write(self, step: int, metrics: Metrics) -> None:
        """Record `metrics` as they stand after `step` environment steps (or updates).

        Raises:
          TypeError: a value is not a number.
          ValueError: a value has more than the one axis of seeds.
        """

    def close(self) -> None:  # noqa: B027, for those that need it
        """Release files; writing afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Writers(MetricWriter):
    """Several writers as one."""

    def __init__(self, *writers: MetricWriter):
        self._writers = writers

    def start(self, step: int) -> None:
        for writer in self._writers:
            writer.start(step)

    def write(self, step: int, metrics: Metrics) -> None:
        metrics = as_arrays(metrics)  # one transfer from the device, whatever the number of writers
        for writer in self._writers:
            writer.write(step, metrics)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class JsonLinesWriter(MetricWriter):
    """Appends one line of JSON for each write: `{"step": 640, "time": 1.7e9, "loss": 0.5, ...}`.

    `time` is in seconds since 1970 (UTC). Arrays `[S]` become lists. What JSON has no number for is
    a string: "NaN", "Infinity", "-Infinity". Each line is handed to the operating system at once,
    so a run that is killed loses at most the line it was writing; opening the file again drops such
    a half-written line and appends.

    Args:
      path: the file. Its folder is made if missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115, closed by close()
        self._file.truncate(_whole_lines(path.read_bytes()))
        self._path = path

    def start(self, step: int) -> None:
        # One cut, which the file system makes as a whole or not at all.
        length = 0
        for record, line in _records(self._path):
            if record["step"] > step:
                break
            length += len(line)
        self._file.truncate(length)

    def write(self, step: int, metrics: Metrics) -> None:
        arrays = as_arrays(metrics)
        if reserved := {"step", "time"} & arrays.keys():
            raise ValueError(f"metric {reserved.pop()!r} has a name of the file's own: rename it")
        record = {"step": int(step), "time": time.time()}
        record |= {name: json_value(value.tolist()) for name, value in arrays.items()}
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter(MetricWriter):
    """Writes TensorBoard event files, with one run `seed_0`, `seed_1`, ... for each entry of `[S]`.

    Runs share their tags, so TensorBoard lays the seeds over each other in one plot. Values that
    are not finite are left out, since TensorBoard cannot draw them.

    Args:
      folder: the folder to point TensorBoard at.

    Raises:
      ModuleNotFoundError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard logs need tensorboardX: pip install 'gtrxl_jax[log]', or log without"
            ) from error
        self._new_run = SummaryWriter
        self._folder = Path(folder)
        self._runs: dict[str, Any] = {}
        self._first = 0

    def start(self, step: int) -> None:
        self._first = step + 1

    def write(self, step: int, metrics: Metrics) -> None:
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
    """`value`, with the numbers that JSON does not have as "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, Mapping):
        return {key: json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return value


def as_arrays(metrics: Metrics) -> dict[str, Shaped[np.ndarray, "*S"]]:
    """Bring metrics to the host as NumPy arrays, scalar or `[S]`.

    Raises:
      TypeError: a value is not a real number.
      ValueError: a value has more than one axis.
    """
    arrays = {name: np.asarray(value) for name, value in jax.device_get(dict(metrics)).items()}
    for name, array in arrays.items():
        if not any(jax.dtypes.issubdtype(array.dtype, kind) for kind in _REAL):
            raise TypeError(f"metric {name!r} must be a real number or one a seed; got {array!r}")
        if array.ndim > 1:
            raise ValueError(
                f"metric {name!r} has shape {array.shape}: give a scalar, or one entry a seed [S]"
            )
    return arrays


def read_metrics(path: str | os.PathLike[str]) -> dict[str, Shaped[np.ndarray, "N *S"]]:
    """Read what `JsonLinesWriter` wrote.

    Lines of one step are merged into one row. Where the step goes back, a run was resumed from an
    earlier checkpoint: the rows after that step are of a branch given up, and dropped. A last line
    without its end, from a run that was killed or is writing now, is ignored.

    Returns:
      `step` as int64 `[N]`, `time` as float64 `[N]`, and each metric as float64 `[N]`, or `[N, S]`
      where it was written for S seeds. NaN where a row lacks the metric.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: another line than the last is not a record, or the number of seeds changes.
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
    """Each record of a file, with its line."""
    content = Path(path).read_bytes()
    lines = content[: _whole_lines(content)].splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}, is no record of metrics: {line!r}") from None
        yield record, line


def _whole_lines(content: bytes) -> int:
    """The length of `content` up to and with its last end of line."""
    return content.rfind(b"\n") + 1
