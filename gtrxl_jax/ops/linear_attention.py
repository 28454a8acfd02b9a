"""Linear attention with a decaying matrix memory, the recurrence of mLSTM and Mamba-2."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.recurrence import linear_recurrence


@struct.dataclass
class MatrixMemory:
    """The memory of `linear_attention`: exp(log_scale) * matrix.

    Attributes:
      matrix: the stored matrix of each head.
      log_scale: the logarithm of its scale, which prevents overflow.
    """

    matrix: Float[Array, "B H K V"]
    log_scale: Float[Array, "B H"]


def empty_memory(batch: int, heads: int, keys: int, values: int, dtype: Any) -> MatrixMemory:
    """Return a memory of zeros."""
    matrix = jnp.zeros((batch, heads, keys, values), dtype)
    return MatrixMemory(matrix, jnp.zeros((batch, heads), dtype))


def linear_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    log_decay: Float[Array, "B T H"],
    log_input: Float[Array, "B T H"],
    memory: MatrixMemory,
    first: Bool[Array, "B T"],
    *,
    chunk: int = 64,
) -> tuple[MatrixMemory, Float[Array, "B T H V"], Float[Array, "B T H"]]:
    """Compute C_t = f_t C_{t-1} + i_t k_t v_t^T and C_t^T q_t, with C = 0 before an episode.

    The segment is processed in chunks: within a chunk as attention with weights, and between chunks
    as a recurrence (Yang et al. 2024, Gated linear attention; Dao and Gu 2024, section 6). A weight
    is computed as an exponential of sums of log f and log i, relative to the largest of its row
    (Beck et al. 2024, xLSTM, equations 75 to 81), so that f and i may be any positive numbers. The
    results do not depend on this scale, so neither do the gradients.

    Args:
      q: queries.
      k: keys.
      v: values.
      log_decay: log f.
      log_input: log i.
      memory: C before the first step.
      first: true where an episode begins.
      chunk: the number of steps in a chunk.

    Returns:
      The memory after the segment; exp(-m_t) C_t^T q_t; and the log scale m_t.
    """
    steps = q.shape[1]
    chunk = min(chunk, steps)

    def pad_steps(x: Array, fill: float = 0) -> Array:
        """Pad the steps to a multiple of the chunk."""
        widths = [(0, -steps % chunk if axis == 1 else 0) for axis in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=fill)

    # A step of padding keeps the memory and writes nothing.
    q, k, v, log_decay = map(pad_steps, (q, k, v, log_decay))
    log_input, first = pad_steps(log_input, -jnp.inf), pad_steps(first, False)

    # The sum of log f since the start of the episode or chunk. Differences of sums since the start
    # of the segment would have the same values, but rounded gradients to other episodes, not zero.
    # The decay of an episode's first step is unused, as there is nothing before it.
    begins_T = jnp.arange(first.shape[1], dtype=jnp.int32) % chunk == 0
    total = linear_recurrence(
        jnp.ones((1, 1, 1), log_decay.dtype),
        jnp.where(first[..., None], 0, log_decay),
        jnp.zeros_like(log_decay[:, 0]),
        first | begins_T[None],
    )

    def chunks(x: Array) -> Array:
        """Return `[chunks, B, chunk, ...]`."""
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    inputs = tuple(map(chunks, (q, k, v, total, log_input, first)))
    memory, outputs = jax.lax.scan(_process_chunk, memory, inputs)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :steps]

    y_BTHV, log_scale_BTH = map(join, outputs)
    return memory, y_BTHV, log_scale_BTH


def _process_chunk(
    memory: MatrixMemory, inputs: tuple[Array, ...]
) -> tuple[MatrixMemory, tuple[Array, Array]]:
    q_BTHK, k_BTHK, v_BTHV, total_BTH, log_i_BTH, first_BT = inputs
    number_BT = jnp.cumsum(first_BT, axis=1, dtype=jnp.int32)

    # The log weight of the input of step s in the memory after step t, and of the old memory.
    steps = first_BT.shape[1]
    causal_TS = jnp.tri(steps, dtype=bool)
    same_BTS = causal_TS[None] & (number_BT[:, :, None] == number_BT[:, None, :])
    log_BTSH = total_BTH[:, :, None] - total_BTH[:, None] + log_i_BTH[:, None]
    log_BTSH = jnp.where(same_BTS[..., None], log_BTSH, -jnp.inf)
    log_old_BTH = total_BTH + memory.log_scale[:, None]
    log_old_BTH = jnp.where(number_BT[..., None] == 0, log_old_BTH, -jnp.inf)
    scale_BTH = jnp.maximum(jnp.max(log_BTSH, axis=2), log_old_BTH)
    scale_BTH = jax.lax.stop_gradient(scale_BTH)
    weight_BTSH = jnp.exp(log_BTSH - scale_BTH[:, :, None])
    old_BTH = jnp.exp(log_old_BTH - scale_BTH)

    scores_BTSH = weight_BTSH * jnp.einsum("bthk,bshk->btsh", q_BTHK, k_BTHK)
    y_BTHV = jnp.einsum("btsh,bshv->bthv", scores_BTSH, v_BTHV)
    y_BTHV += old_BTH[..., None] * jnp.einsum("bthk,bhkv->bthv", q_BTHK, memory.matrix)
    kept_BSHK = weight_BTSH[:, -1, :, :, None] * k_BTHK
    matrix = jnp.einsum("bshk,bshv->bhkv", kept_BSHK, v_BTHV)
    matrix += old_BTH[:, -1, :, None, None] * memory.matrix
    return MatrixMemory(matrix, scale_BTH[:, -1]), (y_BTHV, scale_BTH)
