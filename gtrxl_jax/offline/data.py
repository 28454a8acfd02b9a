"""The data of an offline run: held in memory, or read from disk as they are sampled.

Both yield the same batch for the same key, except that returns-to-go of non-integer rewards may
differ by rounding.
"""

import contextlib
import itertools
from collections.abc import Generator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from gtrxl_jax.data.loader import load_segments
from gtrxl_jax.data.minari import MinariReader
from gtrxl_jax.data.segments import Sampling
from gtrxl_jax.data.trajectories import Trajectories
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.offline.environments import require_spaces, warn_of_other_environment
from gtrxl_jax.parallel.placement import local_rows, replicated, split_local_rows

THREADS = 4
"""The number of threads that read a dataset, one batch each."""


Feed = Generator[tuple[int, Any], None, None]


@runtime_checkable
class Data(Protocol):
    """The data of a run."""

    def returns(self) -> Float[np.ndarray, " E"]:
        """Return the sum of each episode's rewards."""

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and the data of each iteration from `first` on. Close after use.

        Args:
          first: number of the first iteration, counted from 1.
          key: a PRNG key; the batch of update n, counted from 0, is sampled with `fold_in(key, n)`.
          mesh: the devices on which the data are placed.

        Raises:
          ValueError: if the data are damaged, or a stage of the curriculum has no episodes.
        """


class InMemory:
    """Data replicated on every device, from which the program of an iteration samples.

    The data of an iteration are the `Trajectories`, and a tuple with the indices of the episodes of
    each stage.
    """

    def __init__(self, config: OfflineConfig, trajectories: Trajectories):
        self._config = config
        self._trajectories = trajectories

    def returns(self) -> Float[np.ndarray, " E"]:
        rewards_ET = np.asarray(self._trajectories.rewards)
        length_E = np.asarray(self._trajectories.length)
        inside_ET = np.arange(rewards_ET.shape[1])[None] < length_E[:, None]
        return np.where(inside_ET, rewards_ET, 0).sum(axis=1, dtype=np.float64)

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and all trajectories, with the episodes of stages, see `Data.feed`."""
        config, length_E = self._config, np.asarray(self._trajectories.length)
        of_stages = tuple(episodes_of(config, n, length_E) for n in config.stages)
        placed = replicated((self._trajectories, of_stages), mesh)
        for number in range(first, config.num_iterations + 1):
            yield config.stage(number), placed


class Streamed:
    """Data read from disk by threads, one iteration ahead.

    The data of an iteration are the `Segments` of its updates, `[U, B, N, K]`. Each batch is split
    over the devices, and a process reads only its own part.
    """

    def __init__(self, config: OfflineConfig, sampling: Sampling):
        self._config = config
        self._sampling = sampling

    def returns(self) -> Float[np.ndarray, " E"]:
        """Return the sum of each episode's rewards, read from disk."""
        with MinariReader(self._config.data.path) as reader:
            require_spaces(self._config, reader.spaces)
            sums = [reader.rewards(e).sum(dtype=np.float64) for e in range(reader.num_episodes)]
        return np.array(sums)

    def feed(self, first: int, key: Key[Array, ""], mesh: Mesh) -> Feed:
        """Yield the stage and the segments of each iteration's updates, see `Data.feed`."""
        config = self._config
        updates, batch_size = config.updates_per_iteration, config.batch_size
        rows = local_rows(mesh, batch_size)
        with MinariReader(config.data.path) as reader:
            require_spaces(config, reader.spaces)
            warn_of_other_environment(config, reader.metadata)
            # For all stages now, so that one without episodes raises before training begins.
            episodes = [episodes_of(config, n, reader.length) for n in config.stages]
            iterations = range(first, config.num_iterations + 1)
            for stage, group in itertools.groupby(iterations, config.stage):
                numbers = list(group)
                batches = load_segments(
                    reader,
                    key,
                    batch_size,
                    *config.windows(stage),
                    self._sampling,
                    episodes=episodes[stage],
                    rows=rows,
                    first=(numbers[0] - 1) * updates,
                    ahead=max(updates, THREADS),
                    threads=THREADS,
                )
                with contextlib.closing(batches):
                    for _ in numbers:
                        read = [next(batches) for _ in range(updates)]
                        stacked = jax.tree.map(lambda *x: np.stack(x), *read)
                        yield stage, split_local_rows(stacked, mesh, batch_size, axis=1)


def episodes_of(
    config: OfflineConfig, segments: int, length: Int[np.ndarray, " E"]
) -> Int[np.ndarray, " F"]:
    """Return the indices of a stage's episodes: with a curriculum, those that fit its segments.

    Raises:
      ValueError: if there are none.
    """
    if not config.curriculum:
        return np.arange(len(length), dtype=np.int32)
    longest = segments * config.context
    (index,) = np.nonzero(length <= longest)
    if not index.size:
        raise ValueError(
            f"curriculum requires episodes of at most {longest} steps, but the shortest has "
            f"{np.min(length)}: add shorter episodes, or disable curriculum"
        )
    return index.astype(np.int32)


def best_tenth(returns: Float[np.ndarray, " E"]) -> float:
    """Return the mean return of the best tenth of the episodes."""
    return float(np.sort(returns)[-max(len(returns) // 10, 1) :].mean())
