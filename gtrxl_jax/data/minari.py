"""Write trajectories in the format of Minari, Farama's library of offline datasets.

A dataset is a folder with `data/metadata.json` and `data/main_data.hdf5`, which Minari reads, and
`datasets.load`. Requires the extra "offline".
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.data.format import Folder, Metadata
from gtrxl_jax.data.formats.minari import import_minari
from gtrxl_jax.data.hdf5 import ForgivingFile
from gtrxl_jax.data.spaces import Spaces
from gtrxl_jax.data.trajectories import Trajectories, check
from gtrxl_jax.files import atomic
from gtrxl_jax.specs.spaces import kind_of, map_leaves, parts_of, texts_of

__all__ = ["Metadata", "require_writable", "save"]


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
      TypeError, ValueError: if the trajectories are invalid, there are none, a key of a dict cannot
        be stored, or the metadata are not JSON.
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


def _valid(trajectories: Trajectories | None, spaces: Spaces | None = None) -> Trajectories:
    """Return trajectories on the host after checking them."""
    if trajectories is None:
        raise ValueError("there are no trajectories to save: pass at least one set")
    trajectories = jax.device_get(trajectories)
    check(trajectories)
    _require_storable(trajectories.spaces.observation, "observation")
    _require_storable(trajectories.spaces.action, "action")
    if spaces not in (None, trajectories.spaces):
        raise ValueError(
            "only trajectories with the same spaces can be saved together: "
            f"{spaces} and {trajectories.spaces}"
        )
    return trajectories


def _require_storable(space: Any, field: str) -> None:
    """Raise ValueError if a key of a dict cannot be a name in a file."""
    for key, part in (parts_of(space) or {}).items():
        if kind_of(space) == "dict":
            is_name = isinstance(key, str) and not {"", "."} & set(key.split("/"))
            if not is_name:
                raise ValueError(
                    f"{field} has the key {key!r}, which is no name in a file: rename it, for "
                    f"example to 'part {key}'"
                )
        _require_storable(part, f"{field}[{key!r}]")


def _buffer(trajectories: Trajectories, e: int) -> Any:
    from minari.data_collector import EpisodeBuffer

    n = int(trajectories.length[e])
    terminated = bool(trajectories.terminated[e])

    def stored(space: Any, values: Any, steps: int) -> Any:
        def of_leaf(leaf: Any, x: Any, _: str) -> Any:
            return texts_of(leaf, x[e, :steps]) if kind_of(leaf) == "text" else x[e, :steps]

        return map_leaves(of_leaf, space, values)

    last = np.arange(n) == n - 1
    lacks_action = trajectories.lacks_action is not None and bool(trajectories.lacks_action[e])
    return EpisodeBuffer(
        observations=stored(trajectories.spaces.observation, trajectories.observations, n + 1),
        actions=stored(trajectories.spaces.action, trajectories.actions, n),
        rewards=trajectories.rewards[e, :n],
        terminations=last & terminated,
        truncations=last & (not terminated),
        infos={},
        # Minari stores them as attributes of the episode, see `formats.minari.LACKS_ACTION`.
        options={"gtrxl_jax": {"lacks_action": True}} if lacks_action else None,
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
