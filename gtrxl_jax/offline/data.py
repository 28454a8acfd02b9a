"""The data of an offline run: held in memory, or read from disk as they are sampled.

Both yield the same batch for the same key, except that returns-to-go of non-integer rewards may
differ by rounding.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key

from gtrxl_jax.data.fingerprint import Fingerprint
from gtrxl_jax.data.loader import load_segments
from gtrxl_jax.data.outcomes import Outcomes
from gtrxl_jax.data.trajectories import Trajectories, held_out, select
from gtrxl_jax.data.windows import Sampling, draw_windows, take_segments
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.environments import (
    open_dataset,
    require_spaces,
    sound_episodes,
    warn_of_other_environment,
)
from gtrxl_jax.parallel import hosts
from gtrxl_jax.parallel.placement import local_rows, replicate, split_local_rows
from gtrxl_jax.segments import Segments

THREADS = 4
"""The number of threads that read a dataset, one batch each."""


MEASURED_STEPS, MEASURED_AT_ONCE = 2**16, 2**10
"""The number of steps from which observations are normalized, and of those read at once."""

Feed = Generator[tuple[int, tuple[Any, Segments | None]], None, None]


@runtime_checkable
class Data(Protocol):
    """The data of a run."""

    def outcomes(self) -> Outcomes:
        """Return how each episode ended."""

    def fingerprint(self) -> str:
        """Return the fingerprint of the episodes."""

    def observations(self) -> Iterator[Any]:
        """Yield batches `[n, ...]` of observations of up to `MEASURED_STEPS` steps to train on."""

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and the data of each iteration from `first` on. Close after use.

        The data are a pair: those to train on, and a batch `[B, K, T]` of windows of episodes that
        are held out, the same in all iterations of a stage; None without validation.

        Args:
          first: number of the first iteration, counted from 1.
          key: a PRNG key; the batch of update n, counted from 0, is sampled with `fold_in(key, n)`.
          mesh: the devices on which the data are placed.

        Raises:
          ValueError: if the data are damaged, or a stage of the curriculum has no episodes.
        """


class InMemory:
    """Data replicated on every device, from which the program of an iteration samples.

    The data to train on are the `Trajectories`, and a tuple with the indices of the episodes of
    each stage.
    """

    def __init__(self, config: OfflineConfig, sampling: Sampling, trajectories: Trajectories):
        self._config = config
        self._sampling = sampling
        self._trajectories = trajectories

    def outcomes(self) -> Outcomes:
        return Outcomes.of(self._trajectories)

    def fingerprint(self) -> str:
        fingerprint = Fingerprint()
        fingerprint.add(self._trajectories)
        return str(fingerprint)

    def observations(self) -> Iterator[Any]:
        data = self._trajectories
        length_E = np.asarray(data.length)
        yield from _observations(
            self._config,
            length_E,
            lambda e: jax.tree.map(lambda x: np.asarray(x[e, : length_E[e]]), data.observations),
        )

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and all trajectories, with the episodes of stages, see `Data.feed`."""
        config, length_E = self._config, np.asarray(self._trajectories.length)
        episodes = _episodes_of_stages(config, self._sampling, length_E)
        placed = replicate((self._trajectories, tuple(of.training for of in episodes)), mesh)
        for stage, numbers in _by_stage(config, first):
            validation = None
            if config.data.validation:
                segments, unroll = config.windows(stage)
                episode_B, start_B = draw_windows(
                    length_E,
                    jax.random.fold_in(_validation_key(config), 0),
                    config.batch_size,
                    segments * unroll,
                    self._sampling.start,
                    self._sampling.weight,
                    episodes[stage].validation,
                )
                # Selected on the host, since the devices hold all trajectories already.
                windows = take_segments(
                    select(self._trajectories, np.asarray(episode_B)),
                    np.arange(config.batch_size),
                    start_B,
                    segments,
                    unroll,
                    config.algorithm.needs,
                )
                validation = replicate(windows, mesh)
            for _ in numbers:
                yield stage, (placed, validation)


class Streamed:
    """Data read from disk by threads, one iteration ahead.

    The data to train on are the `Segments` of an iteration's updates, `[U, B, K, T]`. Each batch is
    split over the devices, and a process reads only its own part. All data are read and checked
    once, on first use, so that a run does not end at a bad episode when it draws it.
    """

    def __init__(self, config: OfflineConfig, sampling: Sampling):
        self._config = config
        self._sampling = sampling

    def outcomes(self) -> Outcomes:
        return self._checked.outcomes

    def fingerprint(self) -> str:
        return self._checked.fingerprint

    @functools.cached_property
    def _checked(self) -> "_Checked":
        """Read all episodes once."""
        config, fingerprint = self._config, Fingerprint()
        outcomes: dict[int, Outcomes] = {}
        with open_dataset(config) as reader:
            require_spaces(config, reader.spaces)
            with sound_episodes(config, reader) as episodes:
                for number, episode in episodes:
                    fingerprint.add(episode)
                    outcomes[number] = Outcomes.of(episode)
            bad = set(reader.numbers) - outcomes.keys()
        together = Outcomes(*map(np.concatenate, zip(*outcomes.values(), strict=True)))
        return _Checked(together, bad, str(fingerprint))

    def observations(self) -> Iterator[Any]:
        with open_dataset(self._config, self._checked.bad) as reader:
            length_E = reader.length
            yield from _observations(
                self._config, length_E, lambda e: reader.observations(e, 0, int(length_E[e]))
            )

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and the segments of each iteration's updates, see `Data.feed`."""
        config = self._config
        updates, batch_size = config.updates_per_iteration, config.batch_size
        rows = local_rows(mesh, batch_size)
        with open_dataset(config, self._checked.bad) as reader:
            warn_of_other_environment(config, reader.metadata)
            # For all stages now, so that one without episodes raises before training begins.
            episodes = _episodes_of_stages(config, self._sampling, reader.length)
            for stage, numbers in _by_stage(config, first):
                load = functools.partial(
                    load_segments,
                    reader,
                    sampling=self._sampling,
                    rows=rows,
                    batch=batch_size,
                    needs=config.algorithm.needs,
                )
                segments, unroll = config.windows(stage)
                validation = None
                if config.data.validation:
                    windows = load(
                        _validation_key(config),
                        segments=segments,
                        unroll=unroll,
                        episodes=episodes[stage].validation,
                        ahead=1,
                        threads=1,
                    )
                    with contextlib.closing(windows):
                        validation = split_local_rows(next(windows), mesh, batch_size, axis=0)
                batches = load(
                    key,
                    segments=segments,
                    unroll=unroll,
                    episodes=episodes[stage].training,
                    first=(numbers[0] - 1) * updates,
                    ahead=max(updates, THREADS),
                    threads=THREADS,
                )
                with contextlib.closing(batches):
                    for _ in numbers:
                        read = [next(batches) for _ in range(updates)]
                        stacked = jax.tree.map(lambda *x: np.stack(x), *read)
                        training = split_local_rows(stacked, mesh, batch_size, axis=1)
                        yield stage, (training, validation)


class _Checked(NamedTuple):
    """What is known of streamed data after all were read.

    Attributes:
      outcomes: how each sound episode ended.
      bad: the numbers of the others.
      fingerprint: the fingerprint of the sound episodes.
    """

    outcomes: Outcomes
    bad: set[int]
    fingerprint: str


def _observations(
    config: OfflineConfig, length: Int[np.ndarray, " E"], read: Callable[[int], Any]
) -> Iterator[Any]:
    """Yield observations of episodes drawn at random, in batches of equal size except one."""
    order_E = episodes_of(config, config.stages[-1], length).training
    order_E = np.random.default_rng(config.data.seed).permutation(order_E)
    parts: list[Any] = []
    steps = seen = 0
    for number, e in enumerate(order_E.tolist(), start=1):
        parts.append(read(e))
        steps += int(length[e])
        is_last = number == len(order_E) or seen + steps >= MEASURED_STEPS
        while steps >= MEASURED_AT_ONCE or is_last and steps:
            joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
            yield jax.tree.map(lambda x: x[:MEASURED_AT_ONCE], joined)
            seen, steps = seen + min(steps, MEASURED_AT_ONCE), max(steps - MEASURED_AT_ONCE, 0)
            parts = [jax.tree.map(lambda x: x[MEASURED_AT_ONCE:], joined)]
        if is_last:
            break


def _by_stage(config: OfflineConfig, first: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each stage with the numbers of its iterations, from iteration `first` on."""
    iterations = range(first, config.num_iterations + 1)
    for stage, numbers in itertools.groupby(iterations, config.stage):
        yield stage, list(numbers)


def _validation_key(config: OfflineConfig) -> Key[Array, ""]:
    return jax.random.key(config.data.seed)


class Episodes(NamedTuple):
    """Indices of the episodes of a stage, to train on and held out."""

    training: Int[np.ndarray, " F"]
    validation: Int[np.ndarray, " H"]


def _episodes_of_stages(
    config: OfflineConfig, sampling: Sampling, length: Int[np.ndarray, " E"]
) -> list[Episodes]:
    """Return the episodes of each stage, and print what of the data no stage trains on."""
    episodes = [episodes_of(config, segments, length) for segments in config.stages]
    if not hosts.is_first():
        return episodes
    count = len(length)
    for segments, of in zip(config.stages, episodes, strict=True):
        if config.curriculum and of.training.size < config.batch_size:
            print(
                f"stage {segments} of the curriculum trains on {of.training.size:,} of {count:,} "
                f"episodes, those of at most {segments * config.unroll} steps: if they are too "
                "few, disable curriculum",
                file=sys.stderr,
            )
    longer = int(np.sum(length > config.length))
    what = f"{longer:,} of {count:,} episodes have more than segments * unroll = {config.length}"
    if longer and config.curriculum:
        print(f"{what} steps, and the curriculum leaves them out", file=sys.stderr)
    elif longer and sampling.start == "episode":
        print(
            f"{what} steps, of which only the first are trained on, as data.start is episode: if "
            "the others matter, increase segments, or set data.start covering",
            file=sys.stderr,
        )
    return episodes


def episodes_of(config: OfflineConfig, segments: int, length: Int[np.ndarray, " E"]) -> Episodes:
    """Return the episodes of a stage: with a curriculum, those that fit its segments.

    Raises:
      ValueError: if there are none, or validation is configured and none of them is held out.
    """
    longest, fraction = segments * config.unroll, config.data.validation
    fits_E = length <= longest if config.curriculum else np.ones(len(length), bool)
    if not fits_E.any():
        raise ValueError(
            f"curriculum requires episodes of at most {longest} steps, but the shortest has "
            f"{np.min(length)}: add shorter episodes, or disable curriculum"
        )
    held_out_E = held_out(length, fraction, config.data.seed)
    training, validation = (
        np.flatnonzero(chosen_E).astype(np.int32)
        for chosen_E in (fits_E & ~held_out_E, fits_E & held_out_E)
    )
    if fraction and not validation.size:
        raise ValueError(
            f"data.validation {fraction} holds out none of {fits_E.sum()} episodes"
            f"{f' of at most {longest} steps' if config.curriculum else ''}: increase it, or add "
            "episodes"
        )
    return Episodes(training, validation)
