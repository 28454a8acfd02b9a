"""Read parts of a dataset in Minari's format.

Reading never executes or unpickles data and never accesses the network.
"""

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from PIL import Image

import gtrxl_jax
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, clip_rounding
from gtrxl_jax.extras import install_command
from gtrxl_jax.specs.spaces import kind_of, map_leaves, parts_of, text_tokens

Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The provenance of a dataset. All fields may be missing in files written by other programs.

    Attributes:
      env_name: name of the environment, for `make_env`, or for gymnasium in Minari's own datasets.
      env_params: the environment parameters that differ from their defaults.
      policy: name of the policy that acted.
      seed: seed of the collection.
      version: version of this package that wrote the data.
    """

    env_name: str = ""
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str = ""
    seed: int | None = None
    version: str = gtrxl_jax.__version__


class MinariReader:
    """A dataset on disk that is read in parts. Threads may share a reader.

    Args:
      path: see `load`; the same errors are raised here, except errors of single episodes.
      leave_out: numbers of episodes that are left out, as if the dataset did not have them.

    Attributes:
      path: the folder of its files.
      metadata: its provenance.
      spaces: the spaces of its observations and actions.
      numbers: the number of each episode in the file.
      length: the number of actions of each episode; 0 for one whose rewards cannot be read, which
        raises when it is.
    """

    path: Path
    metadata: Metadata
    spaces: Spaces
    numbers: tuple[int, ...]
    length: Int[np.ndarray, " E"]

    def __init__(self, path: Folder, *, leave_out: Collection[int] = ()):
        minari = import_minari()
        import h5py

        self.path = _find(path)
        with _reading(self.path):
            described = json.loads((self.path / "metadata.json").read_text("utf-8"))
        _require_metadata(self.path, described)
        with _reading(self.path):
            spaces = [
                minari.serialization.deserialize_space(described[field])
                for field in ("observation_space", "action_space")
            ]
            self.metadata = _metadata(described)
        with naming(self.path):
            self.spaces = dataset_spaces(*spaces)
        self._whole: set[int] = set()
        self._jpeg_encoding = described.get("jpeg_encoding", True)
        self._is_image = minari.dataset.minari_storage.is_image_space
        with _reading(self.path):
            self._file = h5py.File(self.path / "main_data.hdf5", "r")
        try:
            total = described["total_episodes"]
            with _reading(self.path):
                found = len(self._file.keys())
            if total > 2 * found:
                raise ValueError(
                    f"{self.path} is damaged: it has {found:,} episodes, and {total:,} in its "
                    "metadata.json"
                )
            self.numbers = tuple(n for n in range(total) if n not in leave_out)
            if not self.numbers:
                raise ValueError(f"{self.path} contains no episodes")
            self.length = np.array([self._length(e) for e in range(len(self.numbers))], np.int32)
        except BaseException:
            self.close()
            raise

    @property
    def num_episodes(self) -> int:
        """The number of episodes, E."""
        return len(self.length)

    def rewards(self, episode: int) -> Float[np.ndarray, " n"]:
        """Return all rewards of an episode, float32."""
        with self._reading(episode):
            return self._part(episode, "rewards")[:].astype(np.float32)

    def terminated(self, episode: int) -> bool:
        """Return whether an episode terminated; otherwise it was truncated."""
        with self._reading(episode):
            return bool(self._part(episode, "terminations")[-1])

    def observations(self, episode: int, start: int, stop: int) -> Any:
        """Return the observations start .. stop - 1 of an episode.

        An episode has one more observation than actions.
        """
        return self._read(episode, "observations", self.spaces.observation, start, stop)

    def actions(self, episode: int, start: int, stop: int) -> Any:
        """Return the actions start .. stop - 1 of an episode, see `clip_rounding`."""
        space = self.spaces.action
        return clip_rounding(self._read(episode, "actions", space, start, stop), space)

    def episode(self, episode: int) -> Trajectories:
        """Return one whole episode as trajectories with E = 1. Its values are not checked.

        Raises:
          ValueError: if parts of it are damaged, missing, or of different lengths.
        """
        self.require_whole(episode)
        length = int(self.length[episode])
        return Trajectories(
            observations=jax.tree.map(lambda x: x[None], self.observations(episode, 0, length + 1)),
            actions=jax.tree.map(lambda x: x[None], self.actions(episode, 0, length)),
            rewards=self.rewards(episode)[None],
            length=np.array([length], np.int32),
            terminated=np.array([self.terminated(episode)]),
            spaces=self.spaces,
        )

    def require_whole(self, episode: int) -> None:
        """Raise ValueError if parts of an episode are missing or of different lengths.

        The parts are only measured. What is known to be whole is not measured again.
        """
        if episode in self._whole:
            return
        number = self.numbers[episode]
        with self._reading(episode):
            length = len(self._part(episode, "rewards"))
        if not length:
            raise ValueError(f"{self.path}: episode {number} is empty")
        expected = {"actions": length, "terminations": length, "truncations": length}
        spaces = {"observations": self.spaces.observation, "actions": self.spaces.action}
        for field, steps in {"observations": length + 1, **expected}.items():
            with self._reading(episode):
                nodes = _nodes(self._part(episode, field), spaces.get(field))
                lengths = [len(node) for node in jax.tree.leaves(nodes)]
            for found in lengths:
                if found != steps:
                    raise ValueError(
                        f"{self.path}: episode {number} has {length} rewards and {found} "
                        f"{field}, not {steps}"
                    )
        for field in ("rewards", "terminations", "truncations"):
            shape = self._part(episode, field).shape[1:]
            if shape:
                raise ValueError(
                    f"{self.path}: episode {number}: each of its {field} has shape {list(shape)}: "
                    f"store one number for each step, such as {field}[:, 0]"
                )
        self._whole.add(episode)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> "MinariReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        def read(space: Any, node: Any, field: str) -> np.ndarray:
            values = node[start:stop]
            if kind_of(space) == "text":
                return text_tokens(space, values)
            if self._jpeg_encoding and self._is_image(space):
                images = [np.asarray(Image.open(io.BytesIO(image))) for image in values]
                return np.stack(images).astype(space.dtype)
            one = f"one of their space is {space.dtype.name}{list(space.shape)}"
            if not np.can_cast(values.dtype, space.dtype, "same_kind") or (
                values.shape[1:] != space.shape
            ):
                stored = f"{values.dtype.name}{list(values.shape[1:])}"
                raise ValueError(f"{field} are {stored}, but {one}")
            # Choices are stored as int64 but are int32 here.
            cast = values.astype(space.dtype)
            if np.issubdtype(values.dtype, np.integer) and (cast != values).any():
                raise ValueError(f"{field} are up to {np.abs(values).max()}, but {one}")
            return cast

        with self._reading(episode):
            return map_leaves(read, space, _nodes(self._part(episode, field), space), field=field)

    def _part(self, episode: int, name: str) -> Any:
        """Return a node of an episode."""
        return _inside(_inside(self._file, f"episode_{self.numbers[episode]}"), name)

    def _length(self, episode: int) -> int:
        with contextlib.suppress(Exception):  # raised by `require_whole`, for this episode only
            return len(self._part(episode, "rewards"))
        return 0

    def _reading(self, episode: int) -> AbstractContextManager[None]:
        return _reading(self.path, self.numbers[episode])


def _inside(group: Any, name: str) -> Any:
    """Return a node of a group that is in the file itself: links would read any other file.

    Raises:
      KeyError: if there is none.
      ValueError: if it is a link, or its data are in another file.
    """
    import h5py

    if name not in group.keys():  # noqa: SIM118, `in group` follows links
        raise KeyError(f"there is no {name}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link, and only data in the file itself are read")
    node = group[name]
    if isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
        raise ValueError(f"{name} is in another file, and only data in the file itself are read")
    return node


def _nodes(node: Any, space: Any) -> Any:
    """Return the arrays of a part of an episode, nested as its space is."""
    if (parts := parts_of(space)) is None:
        return node
    if kind_of(space) == "dict":
        return {name: _nodes(_inside(node, name), part) for name, part in parts.items()}
    return tuple(_nodes(_inside(node, f"_index_{n}"), part) for n, part in parts.items())


def import_minari() -> ModuleType:
    """Import the optional package.

    Raises:
      ImportError: if it is not installed.
    """
    try:
        import h5py  # noqa: F401  minari imports without it, but cannot read
        import minari
        import minari.dataset.minari_storage
        import minari.serialization
    except ImportError:
        command = install_command("offline")
        raise ImportError(f"offline data require minari: {command}") from None
    return minari


def _find(path: Folder) -> Path:
    """Return the folder of the dataset's files."""
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    for folder in (Path(path), Path(path, "data"), Path(root, path, "data")):
        if (folder / "metadata.json").is_file():
            return folder
    raise FileNotFoundError(
        f"{path} holds no Minari dataset: it has no data/metadata.json, and there is no dataset of "
        f"that name in {root}"
    )


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
        if not isinstance(value, kind):
            raise ValueError(
                f"{path / 'metadata.json'} has no {field}: it was written neither by "
                "gtrxl_jax nor by Minari 0.5"
            )
    if described["data_format"] != "hdf5":
        raise ValueError(
            f"{path} has data_format {described['data_format']!r}: only 'hdf5' is supported"
        )


def _metadata(described: dict[str, Any]) -> Metadata:
    ours = described.get("gtrxl_jax")
    if ours is not None:
        names = [field.name for field in dataclasses.fields(Metadata)]
        return Metadata(**{name: ours[name] for name in names})
    env_spec = json.loads(described.get("env_spec") or "{}")
    return Metadata(
        env_name=env_spec.get("id", ""),
        env_params=env_spec.get("kwargs") or {},
        policy=described.get("algorithm_name", ""),
        version="",
    )


@contextlib.contextmanager
def _reading(path: Path, episode: int | None = None) -> Iterator[None]:
    """Raise one ValueError for every error that a damaged or foreign file causes."""
    try:
        yield
    except Exception as error:
        where = path if episode is None else f"{path}: episode {episode}"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{where} cannot be read as a Minari dataset, it is damaged or of another format: "
            f"{reason}"
        ) from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the dataset's path to the messages of errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None
