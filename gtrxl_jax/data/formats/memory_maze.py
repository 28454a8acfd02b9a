"""Read the trajectories of Memory Maze (Pasukonis et al. 2022): one NPZ file for each episode.

    image [n + 1, 64, 64, 3]    bytes: what was seen before and after each of n actions
    action [n + 1, 6]           one-hot: the action before each image; the first has none
    reward [n + 1]              the reward before each image
    terminal [n + 1]            optional: whether the maze ended there; else it was truncated

The other arrays, such as the position of the agent, are targets of probes and not observed.
"""

import collections
import re
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from gtrxl_jax.data.format import DatasetError, Format, Metadata, inside
from gtrxl_jax.data.npy import read_header


class MemoryMaze(Format):
    """A folder with a file of Memory Maze for each episode."""

    name = "trajectories of Memory Maze"
    layout = "a folder of Memory Maze's NPZ files"

    @classmethod
    def find(cls, path: Path) -> Path | None:
        return path if path.is_dir() and any(path.glob("*.npz")) else None

    def __init__(self, path: Path):
        self.path = path
        self.metadata = Metadata(version="")
        self._names = sorted((file.name for file in path.glob("*.npz")), key=_natural)
        self.num_episodes = len(self._names)
        # Those of most files, so that a bad one does not make all others bad.
        kinds = collections.Counter(filter(None, map(self._kind, range(min(9, len(self._names))))))
        if not kinds:
            self._header(0, "image")
            self._header(0, "action")
        ((image, actions), _), *_ = kinds.most_common(1)
        self.spaces = (
            gymnasium.spaces.Box(0, 255, image, np.uint8),
            gymnasium.spaces.Discrete(actions),
        )

    def num_actions(self, episode: int) -> int:
        shape, _ = self._header(episode, "reward")
        return max(shape[0] - 1, 0)

    def num_observations(self, episode: int) -> int:
        return self.num_actions(episode) + 1

    def rewards(self, episode: int) -> np.ndarray:
        return self._read(episode, "reward")[1:]

    def terminated(self, episode: int) -> bool:
        return self._has(episode, "terminal") and bool(self._read(episode, "terminal")[-1])

    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        if field == "observations":
            return self._read(episode, "image")[start:stop]
        one_hot = self._read(episode, "action")[1 + start : 1 + stop]
        wrong = (one_hot.sum(axis=1) != 1) | (one_hot.max(axis=1) != 1)
        if wrong.any():
            row = 1 + start + int(np.argmax(wrong))
            raise DatasetError(
                f"{self._file(episode)}: action[{row}] is not one-hot: repair or remove the file"
            )
        return one_hot.argmax(axis=1)

    def require_whole(self, episode: int) -> None:
        steps = self.num_actions(episode) + 1
        fields = {"image": 4, "action": 2, "reward": 1}
        if self._has(episode, "terminal"):
            fields["terminal"] = 1
        for field, rank in fields.items():
            shape, _ = self._header(episode, field)
            if len(shape) != rank or shape[0] != steps:
                raise DatasetError(
                    f"{self._file(episode)}: {field} has shape {list(shape)}, where reward has "
                    f"{steps} entries and {field} {rank} axes: repair or remove the file"
                )
        if "terminal" in fields:
            inner = self._read(episode, "terminal")[1:-1]
            if inner.any():
                raise DatasetError(
                    f"{self._file(episode)}: terminal[{1 + int(np.argmax(inner))}] is set before "
                    "the end: store one episode in a file"
                )

    def close(self) -> None:
        """Files are open only while they are read."""

    def _kind(self, episode: int) -> tuple[tuple[int, ...], int] | None:
        """Return the shape of an episode's images and the number of actions, if it has them."""
        try:
            (image, dtype), (action, _) = (self._header(episode, f) for f in ("image", "action"))
        except Exception:
            return None
        if len(image) != 4 or len(action) != 2 or dtype != np.uint8:
            return None
        return image[1:], action[1]

    def _file(self, episode: int) -> Path:
        return inside(self.path, self._names[episode])

    def _has(self, episode: int, name: str) -> bool:
        with zipfile.ZipFile(self._file(episode)) as archive:
            return f"{name}.npy" in archive.namelist()

    def _header(self, episode: int, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and the dtype of an array without reading its content."""
        file = self._file(episode)
        try:
            with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as array:
                shape, _, dtype = read_header(array)
        except KeyError:
            raise DatasetError(f"{file} has no {name}: repair or remove the file") from None
        if not shape:
            raise DatasetError(
                f"{file}: {name} is no array with an entry for each step: repair or remove the file"
            )
        return shape, dtype

    def _read(self, episode: int, name: str) -> np.ndarray:
        self._header(episode, name)  # says what is missing
        with np.load(self._file(episode), allow_pickle=False) as arrays:
            array: np.ndarray = arrays[name]
        return array


def _natural(name: str) -> list[Any]:
    """Return a sort key by which episode 9 comes before episode 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
