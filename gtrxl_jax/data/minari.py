"""Read and write trajectories in the format of Minari, Farama's library of offline datasets.

A dataset is a folder with `data/metadata.json` and `data/main_data.hdf5`. The format is compatible
with Minari in both directions. Reading never executes or unpickles data and never accesses the
network. Requires the extra "offline".
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.data.hdf5 import ForgivingFile
from gtrxl_jax.data.reader import Folder, Metadata, MinariReader, import_minari, naming
from gtrxl_jax.data.spaces import Spaces
from gtrxl_jax.data.trajectories import Trajectories, check, concatenate
from gtrxl_jax.files import atomic
from gtrxl_jax.specs.spaces import kind_of, map_leaves, texts_of

__all__ = [
    "BadEpisodeError",
    "Metadata",
    "MinariReader",
    "checked_episodes",
    "load",
    "load_metadata",
    "require_writable",
    "save",
]


def save(
    trajectories: Trajectories | Iterable[Trajectories],
    path: Folder,
    metadata: Metadata | None = None,
) -> None:
    """Write a dataset, with images stored losslessly. The folder is created atomically.

    Args:
      trajectories: valid trajectories, see `check`; or several sets of them with equal spaces, each
        of which is written before the next is taken, for data that exceed memory.
      path: a new folder; its name, made to conform, is the dataset's id.
      metadata: stored in the file under "gtrxl_jax".

    Raises:
      FileExistsError: if `path` exists.
      TypeError, ValueError: if the trajectories are invalid, there are none, or the metadata are
        not JSON.
      OSError: if they cannot be written, as on a full disk; nothing is left then.
      ImportError: if the extra "offline" is not installed.
    """
    minari = import_minari()
    metadata = metadata or Metadata()
    described = _json_text(dataclasses.asdict(metadata))
    require_writable(path)
    sets = iter([trajectories] if isinstance(trajectories, Trajectories) else trajectories)
    first = _valid(next(sets, None))
    rest = (_valid(one, first.spaces) for one in sets)
    with _unoccupied(path), atomic(path) as folder:
        (folder / "data").mkdir(parents=True)
        storage = minari.dataset.minari_storage.MinariStorage.new(
            folder.absolute() / "data",  # Minari finds no size at a relative path
            first.spaces.observation,
            first.spaces.action,
            jpeg_encoding=False,
        )
        storage.update_metadata(
            {
                "dataset_id": _dataset_id(Path(path).name),
                "minari_version": minari.__version__,
                "gtrxl_jax": json.loads(described),
            }
            | ({"algorithm_name": metadata.policy} if metadata.policy else {})
        )
        episodes = (
            _buffer(one, e)
            for one in itertools.chain([first], rest)
            for e in range(one.num_episodes)
        )
        with contextlib.closing(ForgivingFile(storage._file_path)) as file:
            storage._file_path = file
            storage.update_episodes(file.while_written(episodes))
            file.require_written()


def require_writable(path: Folder) -> None:
    """Raise early for a `path` that `save` would reject, before data are collected.

    Raises:
      FileExistsError: if `path` exists.
      ImportError: if the extra "offline" is not installed.
    """
    import_minari()
    if Path(path).exists():
        raise FileExistsError(f"{path} exists already: choose another folder")


class BadEpisodeError(ValueError):
    """Raised for an episode that is damaged, or whose arrays do not match the dataset's spaces.

    Attributes:
      number: its number in the dataset.
    """

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


OnBad = Callable[[BadEpisodeError], None]


def load(path: Folder, on_bad: OnBad | None = None) -> Trajectories:
    """Read a whole dataset into memory, as NumPy arrays.

    Args:
      path: the dataset's folder, or its id in the local Minari storage ("D4RL/door/human-v2").
      on_bad: see `checked_episodes`.

    Raises:
      FileNotFoundError: if there is no such dataset.
      TypeError: if `Spaces` does not support its spaces.
      ValueError: if it is damaged; a `BadEpisodeError` if a single episode is.
      ImportError: if the extra "offline" is not installed.
    """
    with MinariReader(path) as reader:
        return concatenate([episode for _, episode in checked_episodes(reader, on_bad)])


def checked_episodes(
    reader: MinariReader, on_bad: OnBad | None = None
) -> Iterator[tuple[int, Trajectories]]:
    """Read and check one episode after the other; yield its number, and it as a set with E = 1.

    Args:
      reader: the dataset.
      on_bad: called with the error of each bad episode, which is then left out.

    Raises:
      BadEpisodeError: for the first bad episode, if `on_bad` is None.
      ValueError: if all episodes are bad.
    """
    num_bad = 0
    for e, number in enumerate(reader.numbers):
        try:
            episode = reader.episode(e)
            with naming(reader.path):
                check(episode, number)
        except (TypeError, ValueError) as error:
            bad = BadEpisodeError(str(error), number)
            if on_bad is None:
                raise bad from error
            on_bad(bad)
            num_bad += 1
            if num_bad == reader.num_episodes:
                raise ValueError(f"{error}; all of its {num_bad} episodes are bad") from None
            continue
        yield number, episode


def load_metadata(path: Folder) -> Metadata:
    """Return the metadata of a dataset without reading its data. Raises as `load` does."""
    with MinariReader(path) as reader:
        return reader.metadata


def _valid(trajectories: Trajectories | None, spaces: Spaces | None = None) -> Trajectories:
    """Return trajectories on the host after checking them."""
    if trajectories is None:
        raise ValueError("there are no trajectories to save: pass at least one set")
    trajectories = jax.device_get(trajectories)
    check(trajectories)
    if spaces not in (None, trajectories.spaces):
        raise ValueError(
            "only trajectories with the same spaces can be saved together: "
            f"{spaces} and {trajectories.spaces}"
        )
    return trajectories


def _buffer(trajectories: Trajectories, e: int) -> Any:
    from minari.data_collector import EpisodeBuffer

    n = int(trajectories.length[e])
    terminated = bool(trajectories.terminated[e])

    def stored(space: Any, values: Any, steps: int) -> Any:
        def of_leaf(leaf: Any, x: Any, _: str) -> Any:
            return texts_of(leaf, x[e, :steps]) if kind_of(leaf) == "text" else x[e, :steps]

        return map_leaves(of_leaf, space, values)

    last = np.arange(n) == n - 1
    return EpisodeBuffer(
        observations=stored(trajectories.spaces.observation, trajectories.observations, n + 1),
        actions=stored(trajectories.spaces.action, trajectories.actions, n),
        rewards=trajectories.rewards[e, :n],
        terminations=last & terminated,
        truncations=last & (not terminated),
        infos={},
    )


def _dataset_id(name: str) -> str:
    """Convert a name to a Minari id: letters, digits, "-" and "_", with a version at the end."""
    name = re.sub(r"[^-\w]", "-", name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"metadata must be JSON: {error}") from None


@contextlib.contextmanager
def _unoccupied(path: Folder) -> Iterator[None]:
    """Raise FileExistsError in all but one of several programs that create one folder at once."""
    try:
        yield
    except OSError:
        if Path(path).exists():
            raise FileExistsError(f"{path} exists already: choose another folder") from None
        raise
