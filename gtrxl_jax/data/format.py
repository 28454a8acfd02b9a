"""What a format of datasets implements, and the spaces of files that declare none.

A format finds the files of a dataset and reads parts of them as they are. `DatasetReader` selects,
casts and completes what was read, and names the file and the episode in errors. Nothing is ever
executed, unpickled or fetched, and no link is followed out of a dataset.
"""

import abc
import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

import gtrxl_jax

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
      spaces_inferred: whether the spaces are those that the values suggest, see `Format`.
    """

    env_name: str = ""
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str = ""
    seed: int | None = None
    version: str = gtrxl_jax.__version__
    spaces_inferred: bool = False


class DatasetError(ValueError):
    """An error of a format whose message is complete: it names the file, the place and the remedy.

    Any other exception of a format means that a file is damaged.
    """


class Format(abc.ABC):
    """An open dataset. Episodes have the numbers of the files, from 0. Threads may share it.

    Attributes:
      name: how messages call the format, such as "a Minari dataset".
      layout: what is to be found at a path with such data, for messages.
      declares_spaces: whether the files say what their spaces are. Otherwise `spaces` are those
        that the values suggest, and give way to those of an environment of the same shapes.
      is_seekable: whether any part of the data can be read without reading all before it.
      path: the folder or file.
      metadata: its provenance.
      spaces: the spaces of one observation and one action, of gymnasium.
      num_episodes: the number of episodes.
      notes: lines about parts of the files that are no episodes.
    """

    name: ClassVar[str]
    layout: ClassVar[str]
    declares_spaces: ClassVar[bool] = False
    is_seekable: ClassVar[bool] = True

    path: Path
    metadata: Metadata
    spaces: tuple[gymnasium.Space, gymnasium.Space]
    num_episodes: int
    notes: tuple[str, ...] = ()

    @classmethod
    @abc.abstractmethod
    def find(cls, path: Path) -> Path | None:
        """Return the folder or file of the data at a path; None if these are of another format."""

    @abc.abstractmethod
    def __init__(self, path: Path):
        """Open the data that `find` found."""

    @abc.abstractmethod
    def num_actions(self, episode: int) -> int:
        """Return the number of actions of an episode."""

    @abc.abstractmethod
    def num_observations(self, episode: int) -> int:
        """Return one more than `num_actions`, or as many if the last observation is not stored."""

    def lacks_action(self, episode: int) -> bool:
        """Return whether the episode had one more action when it was recorded."""
        return False

    @abc.abstractmethod
    def rewards(self, episode: int) -> np.ndarray:
        """Return the reward of each action."""

    @abc.abstractmethod
    def terminated(self, episode: int) -> bool:
        """Return whether the episode terminated; otherwise it was truncated."""

    @abc.abstractmethod
    def read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        """Return the "observations" or "actions" start .. stop - 1, nested as their space is.

        Args:
          episode: the episode.
          field: which of them.
          space: a part of their space, with fewer keys.
          start: the first.
          stop: the end of them.

        Returns:
          Arrays of any dtype, and lists of strings for texts.
        """

    def require_whole(self, episode: int) -> None:
        """Raise if parts of an episode are missing or of different lengths; only measured."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Close the files. Idempotent."""


FORMATS: list[type[Format]] = []
"""The known formats, in the order in which they are asked whether they find data at a path."""


def register_format(kind: type[Format]) -> type[Format]:
    """Add a format, which is asked first; usable as a decorator."""
    if kind not in FORMATS:
        FORMATS.insert(0, kind)
    return kind


def inside(folder: Path, name: str) -> Path:
    """Return a file of a folder.

    Raises:
      DatasetError: if it is missing, or a link to somewhere else.
    """
    path = folder / name
    if not path.exists():
        raise DatasetError(f"{path} is missing: get the whole dataset again")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DatasetError(
            f"{path} is a link out of its folder, which is not followed: copy the file there"
        )
    return path


def observation_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> gymnasium.spaces.Box:
    """Return the space of observations of which nothing but shape and dtype is known."""
    if np.issubdtype(dtype, np.integer):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        low, high = (0, 1) if dtype == np.bool_ else (-np.inf, np.inf)  # type: ignore[assignment]
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def action_space(actions: np.ndarray) -> gymnasium.Space:
    """Return the space that all actions `[N, ...]` of a dataset suggest.

    Integers and booleans are choices up to the largest of them. Floats are within -1 and 1 or, if
    some are beyond by more than rounding, within the bounds that they reach. A number that never
    changes has no range of its own: its bounds contain -1 and 1, too.
    """
    if actions.dtype.kind in "biu":
        if actions.ndim > 1:
            nvec = actions.max(axis=0).astype(np.int64) + 1
            return gymnasium.spaces.MultiDiscrete(nvec)
        return gymnasium.spaces.Discrete(int(actions.max()) + 1)
    finite = np.where(np.isfinite(actions), actions, 0)
    low, high = finite.min(axis=0), finite.max(axis=0)
    if max(-low.min(), high.max()) <= 1 + 1e-6:
        low, high = (np.full(actions.shape[1:], bound, actions.dtype) for bound in (-1, 1))
    is_constant = low == high
    low = np.where(is_constant, np.minimum(low, -1), low)
    high = np.where(is_constant, np.maximum(high, 1), high)
    return gymnasium.spaces.Box(low, high, actions.shape[1:], actions.dtype.type)
