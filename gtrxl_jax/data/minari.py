"""Reading and writing trajectories in the format of Minari, the offline data sets of Farama.

A data set is a folder that holds `data/metadata.json` and `data/main_data.hdf5`; whatever reads
Minari reads ours, and the other way round. Nothing that is read is executed or unpickled, and no
network is used. Needs the extra "offline".
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.data.reader import Folder, Metadata, MinariReader, import_minari, naming
from gtrxl_jax.data.trajectories import Trajectories, check, concatenate
from gtrxl_jax.files import atomic

__all__ = ["Metadata", "MinariReader", "load", "load_metadata", "require_writable", "save"]


def save(trajectories: Trajectories, path: Folder, metadata: Metadata | None = None) -> None:
    """Write a data set, images without loss. The folder appears whole or not at all.

    Args:
      trajectories: see `check`.
      path: a new folder; its name, made fit for it, is the data set's id.
      metadata: kept in the file, under "gtrxl_jax".

    Raises:
      FileExistsError: there is something at `path` already.
      TypeError, ValueError: the trajectories cannot be, or the metadata are no JSON.
      ImportError: the extra "offline" is not installed.
    """
    minari = import_minari()
    metadata = metadata or Metadata()
    trajectories = jax.device_get(trajectories)
    check(trajectories)
    described = _json_text(dataclasses.asdict(metadata))
    require_writable(path)
    with _unoccupied(path), atomic(path) as folder:
        (folder / "data").mkdir(parents=True)
        storage = minari.dataset.minari_storage.MinariStorage.new(
            folder.absolute() / "data",  # Minari finds no size at a relative path
            trajectories.spaces.observation,
            trajectories.spaces.action,
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
        buffers = (_buffer(trajectories, e) for e in range(trajectories.num_episodes))
        storage.update_episodes(buffers)


def require_writable(path: Folder) -> None:
    """Refuse now what `save` would refuse after the work of collecting.

    Raises:
      FileExistsError: there is something at `path` already.
      ImportError: the extra "offline" is not installed.
    """
    import_minari()
    if Path(path).exists():
        raise FileExistsError(f"{path} exists already: choose another folder")


def load(path: Folder) -> Trajectories:
    """Read a whole data set into memory, numpy arrays.

    Args:
      path: its folder, or the id of one that Minari keeps on this machine ("D4RL/door/human-v2").

    Raises:
      FileNotFoundError: there is none.
      TypeError: its spaces are not of those that `Spaces` may have.
      ValueError: it is damaged, or its arrays do not fit its spaces.
      ImportError: the extra "offline" is not installed.
    """
    with MinariReader(path) as reader:
        trajectories = concatenate([reader.episode(e) for e in range(reader.num_episodes)])
        with naming(reader.path):
            check(trajectories)
    return trajectories


def load_metadata(path: Folder) -> Metadata:
    """What `load` would read, described. Raises as `load` does, the data themselves not read."""
    with MinariReader(path) as reader:
        return reader.metadata


def _buffer(trajectories: Trajectories, e: int) -> Any:
    from minari.data_collector import EpisodeBuffer

    n = int(trajectories.length[e])
    terminated = bool(trajectories.terminated[e])
    last = np.arange(n) == n - 1
    return EpisodeBuffer(
        observations=jax.tree.map(lambda x: x[e, : n + 1], trajectories.observations),
        actions=trajectories.actions[e, :n],
        rewards=trajectories.rewards[e, :n],
        terminations=last & terminated,
        truncations=last & (not terminated),
        infos={},
    )


def _dataset_id(name: str) -> str:
    """Minari's ids are of letters, digits, "-" and "_", and end in a version."""
    name = re.sub(r"[^-\w]", "-", name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"metadata must be JSON: {error}") from None


@contextlib.contextmanager
def _unoccupied(path: Folder) -> Iterator[None]:
    """Of several programs that make one folder at once, one succeeds."""
    try:
        yield
    except OSError:
        if Path(path).exists():
            raise FileExistsError(f"{path} exists already: choose another folder") from None
        raise
