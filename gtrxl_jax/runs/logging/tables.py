"""Metrics as a table, for spreadsheets and data frames."""

import csv
import io
import math
import os
import sys
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.files import append_to, atomic
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, per_seed

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
