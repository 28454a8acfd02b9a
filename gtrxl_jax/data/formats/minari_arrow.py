"""Read datasets of Minari, stored as Arrow or Parquet: a folder for each episode.

    data/metadata.json          as with HDF5
    data/3/part-0.arrow         a table with a row for each observation of episode 3
    data/3/metadata.json        its number of actions; the row of the last observation has none

Requires the extra "arrow".
"""

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.data.format import DatasetError, inside
from gtrxl_jax.data.formats.minari import FIELDS, Minari, require_end
from gtrxl_jax.extras import import_extra
from gtrxl_jax.specs.spaces import kind_of, parts_of

SUFFIXES = ("arrow", "parquet")
"""The values of data_format, and the suffixes of the files."""
CACHED = 4
"""The number of tables that are kept open, one for each thread that reads."""


class MinariArrow(Minari):
    """A Minari dataset stored as Arrow or Parquet."""

    name = "a Minari dataset of Arrow or Parquet"

    @classmethod
    def find(cls, path: Path) -> Path | None:
        folder = super().find(path)
        with contextlib.suppress(Exception):  # raised when it is read as HDF5
            if (
                folder
                and json.loads(inside(folder, "metadata.json").read_text("utf-8"))["data_format"]
                in SUFFIXES
            ):
                return folder
        return None

    def _open(self, data_format: str) -> int:
        import_extra("pyarrow.parquet", "arrow", f"{self.path} is stored as {data_format}, which")
        self._suffix = data_format
        self._table = functools.lru_cache(CACHED)(self._read_table)
        return sum(folder.name.isdecimal() for folder in self.path.iterdir())

    def num_actions(self, episode: int) -> int:
        described = json.loads(inside(self._folder(episode), "metadata.json").read_text("utf-8"))
        return int(described["total_steps"])

    def num_observations(self, episode: int) -> int:
        return int(self._table(episode).num_rows)

    def lacks_action(self, episode: int) -> bool:
        return False

    def rewards(self, episode: int) -> np.ndarray:
        return self._flat(episode, "rewards")[: self.num_actions(episode)]

    def terminated(self, episode: int) -> bool:
        return bool(self._flat(episode, "terminations")[self.num_actions(episode) - 1])

    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        return self._values(space, self._column(episode, field).slice(start, stop - start))

    def require_whole(self, episode: int) -> None:
        length, rows = self.num_actions(episode), self.num_observations(episode)
        if rows not in (length, length + 1):
            raise DatasetError(
                f"{self.path}: episode {episode} has {length} actions and {rows} rows, not "
                f"{length + 1}"
            )
        for field in FIELDS:
            self._column(episode, field)
        terminated_T = self._flat(episode, "terminations")[:length]
        require_end(f"{self.path}: episode {episode}", terminated_T)

    def close(self) -> None:
        self._table.cache_clear()

    def _folder(self, episode: int) -> Path:
        return inside(self.path, str(episode))

    def _read_table(self, episode: int) -> Any:
        import pyarrow as pa
        import pyarrow.parquet

        folder = self._folder(episode)
        names = sorted(file.name for file in folder.iterdir() if file.suffix == f".{self._suffix}")
        if not names:
            raise DatasetError(
                f"{self.path}: episode {episode} has no file .{self._suffix}: get it again"
            )
        tables = []
        for name in names:
            path = str(inside(folder, name))
            if self._suffix == "parquet":
                tables.append(pa.parquet.ParquetFile(path, memory_map=True).read())
            else:
                tables.append(pa.ipc.open_file(pa.memory_map(path)).read_all())
        return pa.concat_tables(tables).combine_chunks()

    def _column(self, episode: int, field: str) -> Any:
        import pyarrow as pa

        column = self._table(episode).column(field).combine_chunks()
        return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column

    def _flat(self, episode: int, field: str) -> np.ndarray:
        values: np.ndarray = self._column(episode, field).to_numpy(zero_copy_only=False)
        return values

    def _values(self, space: Any, column: Any) -> Any:
        """Return the values of a column, nested as their space is."""
        if (parts := parts_of(space)) is not None:
            inner = {
                name: self._values(part, _field(column, str(name))) for name, part in parts.items()
            }
            return inner if kind_of(space) == "dict" else tuple(inner.values())
        if self._is_encoded(space):
            return self._decode_images(column.to_pylist())
        if kind_of(space) == "text":
            return column.to_pylist()
        if kind_of(space) == "discrete":
            return column.to_numpy(zero_copy_only=False)
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), *space.shape)


def _field(column: Any, name: str) -> Any:
    """Return a part of a column of structures, with the slice of the column."""
    names = [field.name for field in column.type]
    return column.flatten()[names.index(name)]
