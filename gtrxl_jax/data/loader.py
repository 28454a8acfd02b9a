"""Load segments of datasets that do not fit into memory, reading windows as they are drawn.

Dimensions in names: B windows, K segments, T steps of a segment, S = K*T.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Int, Key, UInt

from gtrxl_jax.data.datasets import DatasetReader, naming
from gtrxl_jax.data.trajectories import require_rewards, require_steps, returns_to_go
from gtrxl_jax.data.windows import Sampling, draw_windows
from gtrxl_jax.extras import import_extra
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import agent_action
from gtrxl_jax.validation import require_count

if TYPE_CHECKING:
    import grain


def load_segments(
    reader: DatasetReader,
    key: Key[Array, ""] | UInt[Array, "2"],
    batch: int,
    segments: int,
    unroll: int,
    sampling: Sampling | None = None,
    *,
    episodes: Int[np.ndarray, " E"] | None = None,
    rows: Int[np.ndarray, " b"] | None = None,
    needs: tuple[str, ...] = (),
    first: int = 0,
    threads: int = 4,
    ahead: int = 8,
) -> "grain.DatasetIterator[Segments]":
    """Return an endless iterator over batches, prefetched by threads. Requires the extra "offline".

    Batch i equals the result of `sample_segments` for the key `fold_in(key, i)` and the same data
    in memory, regardless of the number of threads, so the two are interchangeable. For each window,
    only its own steps and the rewards of its episode are read.

    The iterator's `get_state()` returns a small JSON-serializable dict. After `set_state`, also in
    another process, the iterator continues from there with bit-identical batches. Call its
    `close()` when done.

    Args:
      reader: the dataset, which must stay open.
      key: one PRNG key.
      batch: B, the number of windows.
      segments: K.
      unroll: T.
      sampling: how windows are drawn; by default from the start of any episode.
      episodes: indices of the episodes to draw from; all by default.
      rows: rows of each batch to read; all by default. Processes that share a batch read only their
        own rows.
      needs: names of optional fields of `Segments`.
      first: index i of the first batch.
      threads: number of batches read concurrently.
      ahead: number of batches to prefetch.

    Returns:
      The iterator. Its batches are NumPy arrays.

    Raises:
      ValueError: if a number is below 1, or a start or weight is unknown. On iteration: if the data
        are damaged or have invalid values, see `check`.
      TypeError: if a number is not an integer.
      ImportError: if the extra "offline" is not installed.
    """
    grain = import_extra("grain", "offline", "load_segments")
    sampling = sampling or Sampling()
    numbers = dict(batch=batch, segments=segments, unroll=unroll, threads=threads, ahead=ahead)
    for field, number in numbers.items():
        require_count(field, number)
    # On CPU, since the host waits for these few numbers; JAX_PLATFORMS may leave it out.
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        cpu = jax.local_devices()[0]
    key = jax.device_put(key, cpu)
    episodes = np.arange(reader.num_episodes) if episodes is None else episodes
    rows = np.arange(batch) if rows is None else rows

    @jax.jit
    def draw(episodes: Any, key: Any, index: Any) -> Any:
        key = jax.random.fold_in(key, index)
        start, weight = sampling.start, sampling.weight
        return draw_windows(reader.length, key, batch, segments * unroll, start, weight, episodes)

    def read(index: int) -> Segments:
        with jax.default_device(cpu):
            episode, start = jax.device_get(draw(episodes, key, np.uint32(index)))
        return read_segments(reader, episode[rows], start[rows], segments, unroll, needs)

    jax.eval_shape(draw, episodes, key, np.uint32(0))  # raises for invalid sampling
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    batches = grain.MapDataset.range(first, 2**32).map(read)
    return iter(batches.to_iter_dataset(options))


def read_segments(
    reader: DatasetReader,
    episode: Int[np.ndarray, " B"],
    start: Int[np.ndarray, " B"],
    segments: int,
    unroll: int,
    needs: tuple[str, ...] = (),
) -> Segments:
    """Read the windows that begin at the given steps of the given episodes, as NumPy arrays.

    The result equals the result of `take_segments`.

    Raises:
      ValueError: if the data are damaged or have invalid values, see `check`.
    """
    size = segments * unroll
    step_BS = start.astype(np.int32)[:, None] + np.arange(size, dtype=np.int32)
    mask_BS = step_BS < reader.length[episode][:, None]
    windows = []
    for e, steps, mask in zip(episode, step_BS, mask_BS, strict=True):
        begin, stop = int(steps[0]), int(steps[0] + mask.sum())
        windows.append(_read_window(reader, int(e), begin, stop, needs))

    def padded(*parts: Any) -> np.ndarray:
        result = np.zeros((len(parts), size, *parts[0].shape[1:]), parts[0].dtype)
        for row, part in zip(result, parts, strict=True):
            row[: len(part)] = part
        return result

    leaves = jax.tree.map(padded, *windows)
    leaves |= {"timesteps": np.where(mask_BS, step_BS, 0).astype(np.int32), "mask": mask_BS}
    return Segments(**jax.tree.map(lambda x: x.reshape(-1, segments, unroll, *x.shape[2:]), leaves))


def _read_window(
    reader: DatasetReader, episode: int, begin: int, stop: int, needs: tuple[str, ...]
) -> dict[str, Any]:
    """Read and check steps of an episode, whose rewards are read in full for returns-to-go."""
    reader.require_whole(episode)
    rewards_T = reader.rewards(episode)
    # With the observation after the window's last action, where next observations are needed.
    observed = stop - begin + ("next_observations" in needs)
    observations = reader.observations(episode, begin, begin + observed)
    actions = reader.actions(episode, begin, stop)
    number = reader.numbers[episode]
    one_S, one_T = np.ones((1, stop - begin), bool), np.ones((1, len(rewards_T)), bool)
    with naming(reader.path):
        require_rewards(rewards_T[None], one_T, (number, 0))
        require_steps(
            reader.spaces,
            jax.tree.map(lambda x: x[None], observations),
            jax.tree.map(lambda x: x[None], actions),
            np.ones((1, observed), bool),
            one_S,
            (number, begin),
        )
    (to_go_T,) = returns_to_go(rewards_T[None], reader.length[episode : episode + 1])
    last_S = np.arange(begin, stop) == len(rewards_T) - 1
    fields = {
        "observations": jax.tree.map(lambda x: x[: stop - begin], observations),
        "actions": agent_action(reader.spaces.action, actions),
        "returns_to_go": to_go_T[begin:stop],
    }
    optional = {
        "rewards": lambda: rewards_T[begin:stop],
        "last": lambda: last_S,
        "terminated": lambda: last_S & reader.terminated(episode),
        "next_observations": lambda: jax.tree.map(lambda x: x[1:], observations),
    }
    return fields | {name: optional[name]() for name in needs}
