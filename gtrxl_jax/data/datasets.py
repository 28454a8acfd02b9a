"""Read datasets of any known format: in parts, one episode after the other, or as a whole.

Reading never executes or unpickles data, follows no link, and never accesses the network.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from gtrxl_jax.data import formats  # noqa: F401  registers the formats of the package
from gtrxl_jax.data.format import FORMATS, DatasetError, Folder, Format, Metadata
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, cast, check, clip_actions, concatenate
from gtrxl_jax.specs.spaces import dtype_of, kind_of, map_leaves, parts_of, shape_of
from gtrxl_jax.validation import require_choice


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is taken of a dataset.

    Attributes:
      keys: the keys to keep of observations that are dicts; all if empty.
      drop: the keys to leave out.
      clip_actions: how far actions may exceed the bounds of their Box, to which they are then
        clipped; they always may by rounding.
    """

    keys: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    clip_actions: float = 0.0

    def select(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return a space of observations with the selected keys only.

        Raises:
          ValueError: if a key is unknown, none is left, or the observations are no dicts.
        """
        for field, names in (("keys", self.keys), ("drop", self.drop)):
            if names and kind_of(space) != "dict":
                raise ValueError(f"{field} selects keys of dicts, and observations are no dicts")
            for name in names:
                require_choice(f"{field} (of observations)", name, parts_of(space) or ())
        if not self.keys and not self.drop:
            return space
        parts = parts_of(space) or {}
        kept = {k: v for k, v in parts.items() if k in (self.keys or parts) and k not in self.drop}
        if not kept:
            raise ValueError(f"keys and drop leave nothing of the observations {list(parts)}")
        return gymnasium.spaces.Dict(kept)


class BadEpisodeError(ValueError):
    """Raised for an episode that is damaged, or whose arrays do not match the dataset's spaces.

    Attributes:
      number: its number in the dataset.
    """

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


OnBad = Callable[[BadEpisodeError], None]


class DatasetReader:
    """A dataset on disk that is read in parts. Threads may share a reader.

    Episodes that lack their last observation are completed. One that terminated repeats the
    observation before, from which nothing is learned. One that was truncated gives up its last
    action instead, since what would follow it is unknown.

    Args:
      path: see `load`; the same errors are raised here, except errors of single episodes.
      leave_out: numbers of episodes that are left out, as if the dataset did not have them.
      selection: what is taken of it.
      spaces: of an environment; used for data whose own are inferred, if the shapes agree.

    Attributes:
      path: the folder or file of the data.
      metadata: its provenance.
      spaces: the spaces of its observations and actions.
      numbers: the number of each episode in the files.
      length: the number of actions of each episode; 0 for one whose rewards cannot be read, which
        raises when it is.
      lacks_last: whether its last observation is not stored.
      lacks_action: whether it had one more action, see `Trajectories`.
    """

    path: Path
    metadata: Metadata
    spaces: Spaces
    numbers: tuple[int, ...]
    length: Int[np.ndarray, " E"]
    lacks_last: Bool[np.ndarray, " E"]
    lacks_action: Bool[np.ndarray, " E"]

    def __init__(
        self,
        path: Folder,
        *,
        leave_out: Collection[int] = (),
        selection: Selection | None = None,
        spaces: Spaces | None = None,
    ):
        kind, self.path = find_format(path)
        self._selection = selection or Selection()
        self._whole: set[int] = set()
        with _reading(kind, self.path):
            self._format = kind(self.path)
        try:
            metadata = self._format.metadata
            inferred = metadata.spaces_inferred or not kind.declares_spaces
            self.metadata = dataclasses.replace(metadata, spaces_inferred=inferred)
            with naming(self.path):
                found = dataset_spaces(*self._format.spaces)
                if inferred and spaces is not None and _fits(found, spaces):
                    found = spaces
                observation = self._selection.select(found.observation)
                self.spaces = Spaces(observation, found.action)
            self.numbers = tuple(n for n in range(self._format.num_episodes) if n not in leave_out)
            if not self.numbers:
                raise ValueError(f"{self.path} contains no episodes: give another dataset")
            measured = [self._measure(number) for number in self.numbers]
            length, lacks_last, lacks_action = zip(*measured, strict=True)
            self.length = np.array(length, np.int32)
            self.lacks_last, self.lacks_action = np.array(lacks_last), np.array(lacks_action)
        except BaseException:
            self.close()
            raise

    @property
    def format(self) -> type[Format]:
        """The format of the files."""
        return type(self._format)

    def describe_missing(self) -> list[str]:
        """Return lines about what is missing: last observations, parts that are no episodes."""
        lines = list(self._format.notes)
        if missing := int(self.lacks_last.sum()):
            lines.append(
                f"the last observation of {missing:,} of {self.num_episodes:,} episodes is not "
                "stored: it repeats the one before where they terminated, and where they were "
                "truncated the last action is left out"
            )
        return lines

    @property
    def num_episodes(self) -> int:
        """The number of episodes, E."""
        return len(self.length)

    def rewards(self, episode: int) -> Float[np.ndarray, " n"]:
        """Return all rewards of an episode, float32."""
        with self._reading(episode):
            rewards = self._format.rewards(self.numbers[episode])
            return rewards[: self.length[episode]].astype(np.float32)

    def terminated(self, episode: int) -> bool:
        """Return whether an episode terminated; otherwise it was truncated."""
        with self._reading(episode):
            return self._format.terminated(self.numbers[episode])

    def observations(self, episode: int, start: int, stop: int) -> Any:
        """Return the observations start .. stop - 1 of an episode.

        An episode has one more observation than actions.
        """
        length = int(self.length[episode])
        if stop <= length or not self.lacks_last[episode] or not self.terminated(episode):
            return self._read(episode, "observations", self.spaces.observation, start, stop)
        first = min(start, length - 1)
        found = self._read(episode, "observations", self.spaces.observation, first, length)
        rows = np.minimum(np.arange(start, stop), length - 1) - first
        return jax.tree.map(lambda x: x[rows], found)

    def actions(self, episode: int, start: int, stop: int) -> Any:
        """Return the actions start .. stop - 1 of an episode, see `Selection.clip_actions`."""
        space = self.spaces.action
        actions = self._read(episode, "actions", space, start, stop)
        return clip_actions(actions, space, self._selection.clip_actions)

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
            lacks_action=np.array([True]) if self.lacks_action[episode] else None,
        )

    def checked_episode(self, episode: int) -> Trajectories:
        """Return one whole episode as trajectories with E = 1, after checking it.

        Raises:
          BadEpisodeError: if it is damaged, or its values are invalid, see `check`.
        """
        number = self.numbers[episode]
        try:
            trajectories = self.episode(episode)
            with naming(self.path):
                check(trajectories, number)
        except (TypeError, ValueError) as error:
            raise BadEpisodeError(str(error), number) from error
        return trajectories

    def require_whole(self, episode: int) -> None:
        """Raise ValueError if parts of an episode are missing or of different lengths.

        The parts are only measured. What is known to be whole is not measured again.
        """
        if episode in self._whole:
            return
        number = self.numbers[episode]
        with self._reading(episode):
            actions = self._format.num_actions(number)
            if actions:
                self._format.require_whole(number)
        if not actions:
            raise ValueError(f"{self.path}: episode {number} is empty")
        if not self.length[episode]:
            raise ValueError(
                f"{self.path}: episode {number} was truncated after its only action, and what "
                "followed is not stored: leave it out"
            )
        self._whole.add(episode)

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._format.close()

    def __enter__(self) -> "DatasetReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self, number: int) -> tuple[int, bool, bool]:
        """Return the length of an episode, and whether it lacks an observation and an action."""
        with contextlib.suppress(Exception):  # raised by `require_whole`, for this episode only
            actions = self._format.num_actions(number)
            if self._format.num_observations(number) != actions or not actions:
                return actions, False, self._format.lacks_action(number)
            lacks_action = not self._format.terminated(number)
            return actions - lacks_action, True, lacks_action
        return 0, False, False

    def _read(self, episode: int, field: str, space: Any, start: int, stop: int) -> Any:
        with self._reading(episode):
            found = self._format.read(self.numbers[episode], field, space, start, stop)
            return map_leaves(cast, space, found, field=field)

    def _reading(self, episode: int) -> AbstractContextManager[None]:
        return _reading(self.format, self.path, self.numbers[episode])


def find_format(path: Folder) -> tuple[type[Format], Path]:
    """Return the format of the data at a path, and their folder or file.

    Raises:
      FileNotFoundError: if there are none.
    """
    for kind in FORMATS:
        if (found := kind.find(Path(path))) is not None:
            return kind, found
    raise FileNotFoundError(
        f"{path} holds no dataset: give {', '.join(dict.fromkeys(kind.layout for kind in FORMATS))}"
    )


def load(
    path: Folder, on_bad: OnBad | None = None, selection: Selection | None = None
) -> Trajectories:
    """Read a whole dataset into memory, as NumPy arrays.

    Args:
      path: the folder or file of the dataset, or the id of one in the local Minari storage
        ("D4RL/door/human-v2").
      on_bad: see `checked_episodes`.
      selection: what is taken of it.

    Raises:
      FileNotFoundError: if there is no such dataset.
      TypeError: if `Spaces` does not support its spaces.
      ValueError: if it is damaged; a `BadEpisodeError` if a single episode is.
      ImportError: if the extra "offline" is not installed.
    """
    with DatasetReader(path, selection=selection) as reader:
        return concatenate([episode for _, episode in checked_episodes(reader, on_bad)])


def checked_episodes(
    reader: DatasetReader, on_bad: OnBad | None = None
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
            episode = reader.checked_episode(e)
        except BadEpisodeError as error:
            if on_bad is None:
                raise
            on_bad(error)
            num_bad += 1
            if num_bad == reader.num_episodes:
                raise ValueError(f"{error}; all of its {num_bad} episodes are bad") from None
            continue
        yield number, episode


def load_metadata(path: Folder) -> Metadata:
    """Return the metadata of a dataset without reading its data. Raises as `load` does."""
    with DatasetReader(path) as reader:
        return reader.metadata


def _fits(found: Spaces, given: Spaces) -> bool:
    """Return whether values of the spaces that were found are stored as those given are."""

    def fits(one: Any, other: Any) -> bool:
        parts, others = parts_of(one), parts_of(other)
        if parts is not None or others is not None:
            return (parts or {}).keys() == (others or {}).keys() and all(
                fits(part, (others or {})[name]) for name, part in (parts or {}).items()
            )
        return shape_of(one) == shape_of(other) and np.can_cast(
            dtype_of(one), dtype_of(other), "same_kind"
        )

    return fits(found.observation, given.observation) and fits(found.action, given.action)


@contextlib.contextmanager
def _reading(kind: type[Format], path: Path, episode: int | None = None) -> Iterator[None]:
    """Raise one ValueError for every error that a damaged or foreign file causes."""
    try:
        yield
    except (DatasetError, ImportError):
        raise
    except Exception as error:
        where = path if episode is None else f"{path}: episode {episode}"
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(
            f"{where} cannot be read as {kind.name}, it is damaged or of another format: {reason}"
            f"{'; get it again' if episode is None else ''}"
        ) from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the dataset's path to the messages of errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None
