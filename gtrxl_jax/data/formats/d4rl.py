"""Read the HDF5 files of D4RL (Fu et al. 2020): one file, all episodes one after the other.

    observations [N, ...], actions [N, ...], rewards [N], terminals [N], timeouts [N]
    next_observations [N, ...]      not in all of them; infos and metadata are not read

An episode ends where it terminated or was timed out. What remains after the last end was cut.
"""

from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.data.format import DatasetError, Format, Metadata, action_space, observation_space
from gtrxl_jax.data.hdf5 import node_of
from gtrxl_jax.extras import import_extra

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".hdf5", ".h5")


class D4RL(Format):
    """A file of D4RL."""

    name = "a file of D4RL"
    layout = "an HDF5 file of D4RL"

    @classmethod
    def find(cls, path: Path) -> Path | None:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            is_hdf5 = file.read(len(SIGNATURE)) == SIGNATURE
        return path if is_hdf5 or path.suffix in SUFFIXES else None

    def __init__(self, path: Path):
        h5py = import_extra("h5py", "offline", self.name)
        self.path = path
        self.metadata = Metadata(version="")
        self._file = h5py.File(path, "r")
        try:
            self._index()
        except BaseException:
            self.close()
            raise

    def _index(self) -> None:
        """Find the arrays and the episodes."""
        arrays = {
            name: self._array(name)
            for name in ("observations", "actions", "rewards", "terminals", "timeouts")
        }
        if "next_observations" in self._file.keys():  # noqa: SIM118, `in` follows links
            arrays["next_observations"] = self._array("next_observations")
        steps = len(arrays["rewards"])
        for name, array in arrays.items():
            if len(array) != steps:
                raise DatasetError(
                    f"{self.path}: {name} has {len(array)} entries, but rewards has {steps}: the "
                    "file is incomplete, get it again"
                )
        if not steps:
            raise DatasetError(f"{self.path} contains no episodes: its arrays are empty")
        self._observations, self._actions = arrays["observations"], arrays["actions"]
        self._next = arrays.get("next_observations")
        if self._next is not None and self._next.shape != self._observations.shape:
            raise DatasetError(
                f"{self.path}: next_observations has shape {list(self._next.shape)}, but "
                f"observations has {list(self._observations.shape)}: remove or repair it"
            )
        self._rewards = self._column(arrays["rewards"], "rewards")
        self._terminals, timeouts = (
            self._flags(arrays[name], name) for name in ("terminals", "timeouts")
        )
        ends = np.flatnonzero(self._terminals | timeouts) + 1
        starts = np.append(0, ends)
        self._bounds = [(int(a), int(b)) for a, b in zip(starts, ends, strict=False)]
        if self._next is None:
            # As in maze2d, where the next goal may be reached at once.
            whole = [(a, b) for a, b in self._bounds if b - a > 1 or self._terminals[a]]
            if single := len(self._bounds) - len(whole):
                self.notes += (f"{single:,} single steps have no observation after them: left out",)
            self._bounds = whole
        rest = steps - int(starts[-1])
        # A single step without an observation after it is no episode.
        if rest > (self._next is None):
            self._bounds.append((int(starts[-1]), steps))
        if rest:
            kept = "a cut episode" if rest > (self._next is None) else "left out"
            self.notes += (f"the last {rest:,} steps neither terminated nor timed out: {kept}",)
        self.num_episodes = len(self._bounds)
        actions = self._acted(0, steps)
        if actions.dtype.kind == "i" and actions.min() < 0:
            raise DatasetError(
                f"{self.path}: actions are integers down to {actions.min()}: choices count from 0; "
                "store them so, or as floats"
            )
        self.spaces = (
            observation_space(self._observations.shape[1:], self._observations.dtype),
            action_space(actions),
        )

    def num_actions(self, episode: int) -> int:
        start, end = self._bounds[episode]
        return end - start

    def num_observations(self, episode: int) -> int:
        return self.num_actions(episode) + (self._next is not None)

    def rewards(self, episode: int) -> np.ndarray:
        return self._rewards[slice(*self._bounds[episode])]

    def terminated(self, episode: int) -> bool:
        return bool(self._terminals[self._bounds[episode][1] - 1])

    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        first, end = self._bounds[episode]
        if field == "actions":
            return self._acted(first + start, first + stop)
        found: np.ndarray = self._observations[first + start : min(first + stop, end)]
        if first + stop > end and self._next is not None:
            found = np.concatenate([found, self._next[end - 1 : end]])
        return found

    def close(self) -> None:
        self._file.close()

    def _array(self, name: str) -> Any:
        import h5py

        try:
            node = node_of(self._file, name)
        except KeyError:
            remedy = "get a file of D4RL, or the folder of a Minari dataset"
            if name == "timeouts":
                remedy = (
                    "without it, episodes that ended by a time limit cannot be told apart: get a "
                    "later version of the file, or add an array that is true where they ended so"
                )
            raise DatasetError(f"{self.path} has no array {name}: {remedy}") from None
        if not isinstance(node, h5py.Dataset) or not node.shape:
            raise DatasetError(
                f"{self.path}: {name} is no array with an entry for each step: get it again"
            )
        return node

    def _acted(self, start: int, stop: int) -> np.ndarray:
        """Return actions; those of a single choice without the axis of length 1."""
        actions: np.ndarray = self._actions[start:stop]
        is_column = actions.ndim == 2 and actions.shape[1] == 1
        if np.issubdtype(actions.dtype, np.integer) and is_column:
            return actions[:, 0]
        return actions

    def _column(self, array: Any, name: str) -> np.ndarray:
        values: np.ndarray = array[:]
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1 or not (values.dtype == bool or np.issubdtype(values.dtype, np.number)):
            raise DatasetError(
                f"{self.path}: {name} is {values.dtype.name}{list(values.shape)}: store one number "
                "for each step"
            )
        return values

    def _flags(self, array: Any, name: str) -> np.ndarray:
        values = self._column(array, name)
        if wrong := np.flatnonzero((values != 0) & (values != 1)).tolist():
            raise DatasetError(
                f"{self.path}: {name}[{wrong[0]}] is {values[wrong[0]]}: repair it to 0 or 1"
            )
        return values.astype(bool)
