"""Read the DQN replay dataset (Agarwal et al. 2020): shards of the replay buffer of Dopamine.

    $store$_observation_ckpt.3.gz   frames [N, 84, 84] of shard 3, an NPY file in gzip
    $store$_action_ckpt.3.gz, $store$_reward_ckpt.3.gz, $store$_terminal_ckpt.3.gz     [N]
    add_count_ckpt.3.gz             the entries added so far: modulo N, those of this shard

An observation is a stack `[84, 84, 4]` of the last frames, the oldest first, zero before the first
of the episode. Dopamine stores that many zero frames before each episode, which are recognized and
left out. So are a part of an episode at the beginning of a shard, and what is left at its end of
the shard before: Dopamine writes a shard one entry early, and the last one where training ends. If
the number of entries is missing, it is the last one that does not end an episode. What then remains
at the end is an episode that was cut.

Frames are decompressed in their order, and from the beginning again for earlier ones.
"""

import contextlib
import gzip
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from gtrxl_jax.data.format import DatasetError, Format, Metadata, action_space, inside
from gtrxl_jax.data.npy import read_header

FILE = "$store$_{field}_ckpt.{shard}.gz"
MAGIC = np.lib.format.MAGIC_PREFIX
COUNT = "add_count_ckpt.{shard}.gz"
PATTERN = re.compile(r"\$store\$_observation_ckpt\.(\d+)\.gz")
STACK = 4


class DQNReplay(Format):
    """A folder with shards of the DQN replay dataset, or one with a folder replay_logs of them."""

    name = "shards of DQN-replay"
    layout = "a folder of DQN-replay's shards"
    is_seekable = False

    @classmethod
    def find(cls, path: Path) -> Path | None:
        folders = [folder for folder in (path, path / "replay_logs") if folder.is_dir()]
        return next((folder for folder in folders if _shards(folder)), None)

    def __init__(self, path: Path):
        self.path = path
        self.metadata = Metadata(version="")
        self._lock = threading.Lock()
        self._cached: tuple[int, np.ndarray] | None = None
        self._open: _Frames | None = None
        self._shards = {shard: self._read_shard(shard) for shard in _shards(path)}
        self._episodes = [
            _Episode(shard, start, end)
            for shard, store in self._shards.items()
            for start, end in store.episodes
        ]
        self.num_episodes = len(self._episodes)
        stores = self._shards.values()
        frames = {store.frame for store in stores}
        if len(frames) > 1:
            raise DatasetError(f"{path} has shards with frames {sorted(frames)}: separate them")
        self.notes = tuple(note for store in stores for note in store.notes)
        self.spaces = (
            gymnasium.spaces.Box(0, 255, (*frames.pop(), STACK), np.uint8),
            action_space(np.concatenate([store.action for store in stores])),
        )

    def num_actions(self, episode: int) -> int:
        return self._episodes[episode].end - self._episodes[episode].start

    def num_observations(self, episode: int) -> int:
        return self.num_actions(episode)

    def rewards(self, episode: int) -> np.ndarray:
        shard, start, end = self._episodes[episode]
        return self._shards[shard].reward[start:end]

    def terminated(self, episode: int) -> bool:
        shard, _, end = self._episodes[episode]
        return bool(self._shards[shard].terminal[end - 1])

    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        shard, first, end = self._episodes[episode]
        if field == "actions":
            return self._shards[shard].action[first + start : first + stop]
        frames = self._frames(episode)
        zero = np.zeros((STACK - 1, *frames.shape[1:]), frames.dtype)
        padded = np.concatenate([zero, frames[:stop]])
        size = stop - start
        return np.stack([padded[start + k : start + k + size] for k in range(STACK)], axis=-1)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _frames(self, episode: int) -> np.ndarray:
        """Return the frames of an episode; those of the last one asked for are kept."""
        shard, start, end = self._episodes[episode]
        with self._lock:
            if self._cached is None or self._cached[0] != episode:
                is_behind = self._open is None or self._open.path != self._path(shard)
                if is_behind or (self._open and self._open.position > start):
                    self.close()
                    self._open = _Frames(self._path(shard))
                assert self._open is not None
                self._cached = episode, self._open.read(start, end)
            return self._cached[1]

    def _path(self, shard: int, field: str = "observation") -> Path:
        return inside(self.path, FILE.format(field=field, shard=shard))

    def _read_shard(self, shard: int) -> "_Shard":
        """Read all of a shard but its frames, and find its episodes."""
        arrays = {}
        for field in ("action", "reward", "terminal"):
            path = self._path(shard, field)
            with _damaged(path), gzip.open(path) as file:
                shape, _, dtype = read_header(file)
                size = shape[0] * dtype.itemsize if len(shape) == 1 else 0
                content = file.read(size + 1)  # not more, whatever it is unpacked to
            if len(shape) != 1 or len(content) != size:
                more = "more" if len(content) > size else f"{len(content):,} bytes"
                raise DatasetError(
                    f"{path} declares {dtype.name}{list(shape)}, and has {more}: the file is "
                    "incomplete, get it again"
                )
            arrays[field] = np.frombuffer(content, dtype)
        frames = _Frames(self._path(shard))
        try:
            for field, array in arrays.items():
                if len(array) != frames.total:
                    raise DatasetError(
                        f"{self._path(shard, field)} has {len(array)} entries, but there are "
                        f"{frames.total} frames: the shard is incomplete, get it again"
                    )
            if not set(np.unique(arrays["terminal"])) <= {0, 1}:
                raise DatasetError(
                    f"{self._path(shard, 'terminal')} has values other than 0 and 1: get it again"
                )
            if not np.issubdtype(arrays["action"].dtype, np.integer) or arrays["action"].min() < 0:
                raise DatasetError(
                    f"{self._path(shard, 'action')} has values other than numbers of actions: get "
                    "it again"
                )
            return _index(shard, frames, self._count(shard, frames.total), **arrays)
        finally:
            frames.close()

    def _count(self, shard: int, total: int) -> int | None:
        """Return how many entries are of this shard; None if it does not say."""
        name = COUNT.format(shard=shard)
        if not (self.path / name).exists():
            return None
        path = inside(self.path, name)
        with _damaged(path), gzip.open(path) as file:
            if file.read(len(MAGIC)) != MAGIC:  # such as a pickle
                return None
            file.seek(0)
            shape, _, dtype = read_header(file)
            if shape or dtype.kind not in "iu":
                raise ValueError(f"it has {dtype.name}{list(shape)} instead of one whole number")
            content = file.read(dtype.itemsize)
            if len(content) < dtype.itemsize:
                raise ValueError("it ends early")
        return int(np.frombuffer(content, dtype)[0]) % total or total


class _Episode(NamedTuple):
    """The entries of an episode in a shard."""

    shard: int
    start: int
    end: int


class _Shard(NamedTuple):
    """A shard without its frames.

    Attributes:
      action, reward, terminal: `[N]`.
      frame: the shape of a frame.
      episodes: where each begins and ends.
      notes: lines about what is no episode.
    """

    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    frame: tuple[int, ...]
    episodes: list[tuple[int, int]]
    notes: list[str]


class _Frames:
    """The frames of a shard, which are decompressed in their order.

    Attributes:
      path: the file.
      total: N, the number of frames.
      frame: the shape of one.
      position: the number of frames before the next.
    """

    def __init__(self, path: Path):
        self.path, self.position = path, 0
        self._file = gzip.open(path)  # noqa: SIM115, closed by close()
        try:
            with _damaged(path):
                (self.total, *frame), fortran, dtype = read_header(self._file)
                self.frame = tuple(frame)
            if len(self.frame) != 2 or fortran or dtype != np.uint8:
                raise DatasetError(
                    f"{path} has frames {dtype.name}{list(self.frame)}, not bytes [height, width]: "
                    "get it again"
                )
        except BaseException:
            self.close()
            raise

    def read(self, start: int, end: int) -> np.ndarray:
        """Return frames start .. end - 1, not before `position`."""
        while self.position < start:
            self._next(min(start - self.position, 4096))
        return self._next(end - start)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _next(self, count: int) -> np.ndarray:
        size = count * self.frame[0] * self.frame[1]
        with _damaged(self.path):
            content = self._file.read(size)
            if len(content) < size:
                raise ValueError(f"it ends among the {self.total:,} frames that it declares")
            self.position += count
            # Reading to the end also compares the checksum.
            if self.position == self.total and self._file.read(1):
                raise ValueError(f"there are bytes after its {self.total:,} frames")
        return np.frombuffer(content, np.uint8).reshape(count, *self.frame)


def _index(
    shard: int,
    frames: _Frames,
    count: int | None,
    action: np.ndarray,
    reward: np.ndarray,
    terminal: np.ndarray,
) -> _Shard:
    """Find the episodes among the first `count` entries of a shard, see the top of this file."""
    total, lead = frames.total if count is None else count, STACK - 1
    action, reward, terminal = action[:total], reward[:total], terminal[:total]
    ends = (np.flatnonzero(terminal) + 1).tolist()
    starts = [0, *ends]

    def is_blank(start: int) -> bool:
        return start + lead <= total and not any(
            array[start : start + lead].any() for array in (action, reward, terminal)
        )

    # Where an episode may begin, of the first two.
    blank = [is_blank(s) and not frames.read(s, s + lead).any() for s in starts[:2]]
    is_padded = any(blank) and all(map(is_blank, starts[1:-1]))
    episodes, notes = [], []
    for start, end in zip(starts, [*ends, total], strict=True):
        is_part = is_padded and start == 0 and not blank[0]
        if is_part and end > start:
            notes.append(f"shard {shard}: its first {end:,} entries are part of an episode")
            continue
        is_cut = not terminal[end - 1] if end > start else True
        first, end = start + lead * is_padded, end - (is_cut and count is None)
        # One that was cut gives up its last action.
        if end - first > is_cut:
            episodes.append((first, end))
        elif end > first:
            notes.append(f"shard {shard}: its last entries are too few to be an episode")
    return _Shard(action, reward, terminal, frames.frame, episodes, notes)


def _shards(folder: Path) -> list[int]:
    """Return the numbers of the shards in a folder."""
    matches = (PATTERN.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


@contextlib.contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Name the file in errors of its content."""
    try:
        yield
    except (EOFError, OSError, ValueError, zlib.error) as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise DatasetError(f"{path} is damaged: {reason}: get it again") from error
