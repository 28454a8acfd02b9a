"""The interface of metric writers, and the writer and reader of metrics.jsonl.

Every writer takes a step and a mapping from names to values. A value is a scalar, or an array `[S]`
with one entry for each of S seeds trained side by side. The writer of the console is in `console`,
and the writers that `--log` selects are in `loggers`.
"""

import abc
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

from gtrxl_jax.files import append_to, atomic, naming_file

Metrics = Mapping[str, ArrayLike]

_REAL = (np.bool_, np.integer, np.floating)
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class MetricWriter(abc.ABC):
    """The interface of all writers, a context manager that closes them. Only `write` is required.

    A writer that `--log` selects is made with the folder of the run and its config, a dict. It
    writes nothing before `start`, which is called once the folder is the run's own.
    """

    @classmethod  # noqa: B027, optional
    def require(cls) -> Any:
        """Raise ImportError, with the remedy, if a package is missing: called before all else."""

    def start(self, step: int) -> None:  # noqa: B027, optional
        """Start, or resume, after `step`: discard what was written for later steps."""

    @abc.abstractmethod
    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        """Write the metrics after `step` environment steps (or updates).

        Raises:
          TypeError: if a value is not a number.
          ValueError: if a value has more than the one axis of seeds.
        """

    def phase(self, name: str) -> None:  # noqa: B027, optional
        """Called when the run starts "compiling", "evaluating" or "saving"; empty for training."""

    def sync(self) -> None:  # noqa: B027, optional
        """Put what was written on disk: called before a checkpoint, which must not be ahead."""

    def close(self) -> None:  # noqa: B027, optional
        """Release resources; nothing can be written afterwards."""

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, *_: object) -> None:
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

    def phase(self, name: str) -> None:
        for writer in self._writers:
            writer.phase(name)

    def sync(self) -> None:
        for writer in self._writers:
            writer.sync()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class JsonLinesWriter(MetricWriter):
    """Appends one line of JSON per write: `{"step": 640, "time": 1.7e9, "loss": 0.5, ...}`.

    `time` is in seconds since 1970 (UTC). Arrays `[S]` become lists, and numbers that are not
    finite the strings "NaN", "Infinity" and "-Infinity". Each line is flushed to the operating
    system at once, so a run that is killed loses at most the line being written. Opening the file
    again removes such an incomplete line, and damaged ones, as a power failure leaves, which it
    reports on standard error; then it appends.

    Args:
      path: the file. Its folder is created if missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        if dropped := self._keep(math.inf)[1]:
            print(
                f"{path}: {dropped} damaged line(s) dropped, as a power failure leaves them; a run "
                "writes what follows its checkpoint again",
                file=sys.stderr,
            )

    def start(self, step: int) -> None:
        last, _ = self._keep(step)
        if last < step:
            lost = f"the metrics between steps {last:,} and {step:,} are lost"
            print(f"{self._path}: {lost}", file=sys.stderr)

    def _keep(self, step: float) -> tuple[int, int]:
        """Keep only the intact lines up to a step.

        Returns:
          The step of the last line, 0 without one, and the number of damaged lines.
        """
        content = self._path.read_bytes()
        kept: list[bytes] = []
        last, damaged = 0, int(b"\0" in content[_whole_lines(content) :])
        for record, line in _lines(content):
            if record is None:
                damaged += 1
            elif record["step"] <= step:
                kept.append(line)
                last = record["step"]
        intact = b"".join(kept)
        if content.startswith(intact):
            self._file.truncate(len(intact))  # atomic
        else:
            self._file.close()
            with atomic(self._path) as temporary:
                temporary.write_bytes(intact)
            self._file = self._open()
        return last, damaged

    def _open(self) -> FileIO:
        # Unbuffered, since a buffer would keep what a full disk did not take.
        return open(self._path, "ab", buffering=0)

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        arrays = as_arrays(metrics)
        if reserved := {"step", "time"} & arrays.keys():
            raise ValueError(f"metric {reserved.pop()!r} has a reserved name: rename it")
        record = {"step": int(step), "time": time.time()}
        record |= {name: json_value(value.tolist()) for name, value in arrays.items()}
        line = json.dumps(record, allow_nan=False)
        append_to(self._file, self._path, line.encode() + b"\n")

    def sync(self) -> None:
        with naming_file(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def json_value(value: Any) -> Any:
    """Return what JSON can hold of a value, recursively.

    Arrays and their scalars become lists and numbers, and the numbers that JSON lacks "NaN",
    "Infinity" and "-Infinity".
    """
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return json_value(np.asarray(value).tolist())
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


def per_seed(metrics: Metrics, first_seed: int) -> dict[int, dict[str, float]]:
    """Return the metrics of each seed, as Python's numbers.

    A scalar belongs to every seed; if all are scalars, to the only one, `first_seed`.

    Args:
      metrics: as for `MetricWriter.write`.
      first_seed: number of the first seed.
    """
    arrays = as_arrays(metrics)
    num_seeds = max((array.size for array in arrays.values() if array.ndim), default=1)
    return {
        first_seed + n: {
            name: array.item(n) if array.ndim else array.item() for name, array in arrays.items()
        }
        for n in range(num_seeds)
    }


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
    for record in _records(path):
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


def _records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield each record of a file; raise ValueError for a line that is none."""
    for number, (record, line) in enumerate(_lines(Path(path).read_bytes()), start=1):
        if record is None:
            raise ValueError(f"{path}, line {number}, is not a record: {line[:80]!r}")
        yield record


def _lines(content: bytes) -> Iterator[tuple[dict[str, Any] | None, bytes]]:
    """Yield each complete line with its record, which is None if the line is damaged."""
    for line in content[: _whole_lines(content)].splitlines(keepends=True):
        try:
            record = json.loads(line)
            valid = isinstance(record, dict) and isinstance(record.get("step"), int)
        except (ValueError, RecursionError):
            valid = False
        yield record if valid else None, line


def _whole_lines(content: bytes) -> int:
    """Return the length of `content` up to and including its last newline."""
    return content.rfind(b"\n") + 1
