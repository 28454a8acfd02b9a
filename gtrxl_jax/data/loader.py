"""Segments from data that do not fit into memory: windows are read as they are drawn.

Dimensions in names: B windows, N segments, K steps of a segment, S = N*K.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt

from gtrxl_jax.data.reader import MinariReader
from gtrxl_jax.data.segments import Sampling, Segments, draw_windows, require_count
from gtrxl_jax.data.trajectories import check_steps

if TYPE_CHECKING:
    import grain


def load_segments(
    reader: MinariReader,
    key: Key[Array, ""] | UInt[Array, "2"],
    batch: int,
    segments: int,
    context: int,
    sampling: Sampling | None = None,
    *,
    episodes: Int[np.ndarray, " E"] | None = None,
    rows: Int[np.ndarray, " b"] | None = None,
    first: int = 0,
    threads: int = 4,
    ahead: int = 8,
) -> "grain.DatasetIterator[Segments]":
    """An endless iterator over batches, read ahead by threads. Needs the extra "offline".

    Batch i is what `sample_segments` gives for the key `fold_in(key, i)` and the data in memory,
    whatever the number of threads, so either may replace the other. Of each window only its own
    steps are read, and the rewards of its episode.

    `get_state()` is a small dict that JSON can hold, and `set_state` takes the iterator there, in
    another process, too: the batches that follow are the same, bit by bit. `close()` it at the end.

    Args:
      reader: the data, left open.
      key: one PRNG key.
      batch: B, how many windows.
      segments: N.
      context: K.
      sampling: how windows are drawn; from the start of any episode, if not given.
      episodes: those to draw from; all if not given.
      rows: of each batch, those to read; all if not given. Processes that share a batch need not
        read one another's part.
      first: i of the first batch.
      threads: how many batches are read at once.
      ahead: how many batches are kept ready.

    Returns:
      The iterator. Its batches are numpy arrays.

    Raises:
      ValueError: a number below 1, or an unknown start or weight. Later: the data are damaged, or
        have invalid values, see `check`.
      TypeError: a number is not a whole one.
      ImportError: the extra "offline" is not installed.
    """
    try:
        import grain
    except ImportError:
        raise ImportError(
            "segments are read ahead with grain: pip install gtrxl_jax[offline]"
        ) from None
    sampling = sampling or Sampling()
    numbers = dict(batch=batch, segments=segments, context=context, threads=threads, ahead=ahead)
    for field, number in numbers.items():
        require_count(field, number)
    # A few numbers, and the host waits for them: no work for an accelerator.
    cpu = jax.local_devices(backend="cpu")[0]
    key = jax.device_put(key, cpu)
    episodes = np.arange(reader.num_episodes) if episodes is None else episodes
    rows = np.arange(batch) if rows is None else rows
    length = reader.length[episodes]

    @jax.jit
    def draw(length: Any, key: Any, index: Any) -> Any:
        key = jax.random.fold_in(key, index)
        return draw_windows(length, key, batch, sampling.start, sampling.weight)

    def read(index: int) -> Segments:
        with jax.default_device(cpu):
            drawn, start = jax.device_get(draw(length, key, np.uint32(index)))
        return read_segments(reader, episodes[drawn[rows]], start[rows], segments, context)

    jax.eval_shape(draw, length, key, np.uint32(0))  # refuses what cannot be
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    batches = grain.MapDataset.range(first, 2**32).map(read)
    return iter(batches.to_iter_dataset(options))


def read_segments(
    reader: MinariReader,
    episode: Int[np.ndarray, " B"],
    start: Int[np.ndarray, " B"],
    segments: int,
    context: int,
) -> Segments:
    """Read the windows that begin at those steps of those episodes, into numpy arrays.

    The result is that of `take_segments`.

    Raises:
      ValueError: the data are damaged, or have invalid values, see `check`.
    """
    size = segments * context
    step_BS = start.astype(np.int32)[:, None] + np.arange(size, dtype=np.int32)
    mask_BS = step_BS < reader.length[episode][:, None]
    windows = []
    for e, steps, mask in zip(episode, step_BS, mask_BS, strict=True):
        begin, stop = int(steps[0]), int(steps[0] + mask.sum())
        windows.append(
            {
                "observations": reader.observations(int(e), begin, stop),
                "actions": reader.actions(int(e), begin, stop),
                "returns_to_go": _returns_to_go(reader.rewards(int(e)))[begin:stop],
            }
        )

    def padded(*parts: Any) -> np.ndarray:
        result = np.zeros((len(parts), size, *parts[0].shape[1:]), parts[0].dtype)
        for row, part in zip(result, parts, strict=True):
            row[: len(part)] = part
        return result

    leaves = jax.tree.map(padded, *windows)
    check_steps(
        reader.spaces,
        leaves["observations"],
        leaves["actions"],
        leaves["returns_to_go"],
        mask_BS,
        mask_BS,
    )
    leaves |= {"timesteps": np.where(mask_BS, step_BS, 0).astype(np.int32), "mask": mask_BS}
    return Segments(
        **jax.tree.map(lambda x: x.reshape(-1, segments, context, *x.shape[2:]), leaves)
    )


def _returns_to_go(rewards: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.cumsum(rewards[::-1], dtype=np.float64)[::-1].astype(np.float32)
