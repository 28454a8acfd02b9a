"""Read datasets of Minari, Farama's library of offline datasets, stored as HDF5.

    data/metadata.json      spaces, number of episodes, provenance
    data/main_data.hdf5     a group for each episode: observations, actions, rewards, ...

This is the format in which this package writes, see `data.minari`.
"""

import dataclasses
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from PIL import Image

from gtrxl_jax.data.format import DatasetError, Format, Metadata, inside
from gtrxl_jax.data.hdf5 import node_of
from gtrxl_jax.extras import import_extra
from gtrxl_jax.specs.spaces import kind_of, map_leaves, parts_of

FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")
LACKS_ACTION = "options/gtrxl_jax/lacks_action"
"""The attribute of an episode with which `data.minari.save` writes `Trajectories.lacks_action`."""


class Minari(Format):
    """A Minari dataset."""

    name = "a Minari dataset"
    layout = "Minari's folder with data/metadata.json, or its name"
    declares_spaces = True

    @classmethod
    def find(cls, path: Path) -> Path | None:
        root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
        folders = path, path / "data", Path(root, path, "data")
        return next((folder for folder in folders if (folder / "metadata.json").is_file()), None)

    def __init__(self, path: Path):
        minari = import_minari()
        self.path = path
        described = json.loads(inside(path, "metadata.json").read_text("utf-8"))
        _require_metadata(path, described)
        self.spaces = tuple(
            minari.serialization.deserialize_space(described[field])
            for field in ("observation_space", "action_space")
        )
        self.metadata = _metadata(described)
        self._jpeg_encoding = bool(described.get("jpeg_encoding", True))
        self._is_image = minari.dataset.minari_storage.is_image_space
        self.num_episodes = described["total_episodes"]
        found = self._open(described["data_format"])
        if self.num_episodes > 2 * found:
            self.close()
            raise DatasetError(
                f"{path} is damaged: it has {found:,} episodes, and {self.num_episodes:,} in its "
                "metadata.json: get it again"
            )

    def _open(self, data_format: str) -> int:
        """Open the files of the data, and return the number of episodes in them."""
        import h5py

        if data_format != "hdf5":
            raise DatasetError(
                f"{self.path} has data_format {data_format!r}, which is unknown: load it with "
                "Minari and save it as hdf5, arrow or parquet"
            )
        self._file = h5py.File(inside(self.path, "main_data.hdf5"), "r")
        return len(self._file.keys())

    def num_actions(self, episode: int) -> int:
        return len(self._part(episode, "rewards"))

    def num_observations(self, episode: int) -> int:
        node = self._part(episode, "observations")
        return min(map(len, jax.tree.leaves(_nodes(node, self.spaces[0]))))

    def lacks_action(self, episode: int) -> bool:
        return bool(node_of(self._file, f"episode_{episode}").attrs.get(LACKS_ACTION, False))

    def rewards(self, episode: int) -> np.ndarray:
        rewards: np.ndarray = self._part(episode, "rewards")[:]
        return rewards

    def terminated(self, episode: int) -> bool:
        return bool(self._part(episode, "terminations")[-1])

    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        def decode(leaf: Any, node: Any, _: str) -> Any:
            values = node[start:stop]
            return self._decode_images(values) if self._is_encoded(leaf) else values

        return map_leaves(decode, space, _nodes(self._part(episode, field), space), field=field)

    def _is_encoded(self, leaf: Any) -> bool:
        """Return whether the values of a space are images, each stored as a JPEG."""
        return kind_of(leaf) != "text" and self._jpeg_encoding and self._is_image(leaf)

    def _decode_images(self, images: Iterable[Any]) -> np.ndarray:
        return np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])

    def require_whole(self, episode: int) -> None:
        length = self.num_actions(episode)
        spaces = dict(zip(FIELDS, self.spaces, strict=False))
        for field in FIELDS:
            node = self._part(episode, field)
            found = {len(leaf) for leaf in jax.tree.leaves(_nodes(node, spaces.get(field)))}
            # All without the last observation, or all with it.
            allowed = [{length}, {length + 1}] if field == "observations" else [{length}]
            if found not in allowed:
                wrong = min(found - {length}, default=length)
                raise DatasetError(
                    f"{self.path}: episode {episode} has {length} rewards and {wrong} {field}, "
                    f"not {length + (field == 'observations')}"
                )
        for field in ("rewards", "terminations", "truncations"):
            shape = self._part(episode, field).shape[1:]
            if shape:
                raise DatasetError(
                    f"{self.path}: episode {episode}: each of its {field} has shape {list(shape)}: "
                    f"store one number for each step, such as {field}[:, 0]"
                )
        terminated_T = np.asarray(self._part(episode, "terminations"))
        require_end(f"{self.path}: episode {episode}", terminated_T)

    def close(self) -> None:
        self._file.close()

    def _part(self, episode: int, name: str) -> Any:
        """Return a node of an episode."""
        return node_of(node_of(self._file, f"episode_{episode}"), name)


def _nodes(node: Any, space: Any) -> Any:
    """Return the arrays of a part of an episode, nested as its space is."""
    if (parts := parts_of(space)) is None:
        return node
    if kind_of(space) == "dict":
        return {name: _nodes(node_of(node, name), part) for name, part in parts.items()}
    return tuple(_nodes(node_of(node, f"_index_{n}"), part) for n, part in parts.items())


def require_end(where: str, terminated_T: np.ndarray) -> None:
    """Raise DatasetError if an episode terminates before its last step."""
    if (inner := terminated_T[:-1].astype(bool)).any():
        raise DatasetError(
            f"{where}: terminations[{int(np.argmax(inner))}] is set before the end: store each "
            "episode by itself"
        )


def import_minari() -> ModuleType:
    """Import the optional package.

    Raises:
      ImportError: if it is not installed.
    """
    # Minari imports without h5py, but cannot read.
    for module in ("h5py", "minari.dataset.minari_storage", "minari.serialization"):
        import_extra(module, "offline", Minari.name)
    return import_extra("minari", "offline", Minari.name)


_METADATA_FIELDS = {
    "observation_space": str,
    "action_space": str,
    "data_format": str,
    "total_episodes": int,
}


def _require_metadata(path: Path, described: Any) -> None:
    for field, kind in _METADATA_FIELDS.items():
        # For missing spaces, Minari would run the code of the environment named in the file.
        value = described.get(field) if isinstance(described, dict) else None
        if value is not None and not isinstance(value, kind):
            needed = "a text, as Minari writes it" if kind is str else "a whole number"
            raise DatasetError(f"{path / 'metadata.json'}: {field} must be {needed}: {value!r:.60}")
        if value is None:
            raise DatasetError(
                f"{path / 'metadata.json'} has no {field}: it was written neither by "
                "gtrxl_jax nor by Minari 0.5, give a dataset of theirs"
            )


def _metadata(described: dict[str, Any]) -> Metadata:
    ours = described.get("gtrxl_jax")
    if ours is not None:
        names = [field.name for field in dataclasses.fields(Metadata)]
        ours = {"spaces_inferred": False} | ours  # which earlier versions did not write
        return Metadata(**{name: ours[name] for name in names})
    env_spec = json.loads(described.get("env_spec") or "{}")
    return Metadata(
        env_name=env_spec.get("id", ""),
        env_params=env_spec.get("kwargs") or {},
        policy=described.get("algorithm_name", ""),
        version="",
    )
