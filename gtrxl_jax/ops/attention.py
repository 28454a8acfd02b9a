"""Relative multi-head attention over a memory, for a segment and for one cached step.

Dai et al. 2019, "Transformer-XL", section 3.3; Parisotto et al. 2019, "Stabilizing Transformers for
Reinforcement Learning", appendix C. One-letter dimensions: B batch, T queries, M memory slots,
S = M + T keys, N = M + 1 distances (0 is the query itself), H heads, K head width, D model width.
"""

import itertools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Spans = tuple[tuple[slice, int], ...]
"""Runs of queries, and how many keys each may see at most: what a causal mask hides from all of a
run need not be computed."""


def sinusoids(
    distance_N: Int[Array, " N"], width: int, dtype: jnp.dtype = jnp.float32
) -> Float[Array, "N D"]:
    """The encodings Phi_d of distances d, of either sign (Vaswani et al. 2017, section 3.5).

    Sines fill the first half of the width, cosines the second.
    """
    half = (width + 1) // 2
    rates_F = 10000.0 ** (-jnp.arange(half, dtype=dtype) / half)
    angles_NF = distance_N.astype(dtype)[:, None] * rates_F[None, :]
    return jnp.concatenate([jnp.sin(angles_NF), jnp.cos(angles_NF)], axis=-1)[:, :width]


def segment_mask(
    first_BT: Bool[Array, "B T"], length_B: Int[Array, " B"], memory_size: int
) -> Bool[Array, "B T S"]:
    """Which keys each query of a segment may see.

    A query sees itself and the `memory_size` steps before it, as far as they belong to its own
    episode and have been written.

    Args:
      first_BT: true on the first step of an episode.
      length_B: how many of the last memory slots belong to the episode that was running when the
        segment began; the older slots are of an earlier episode, or were never written.
      memory_size: M.
    """
    chex.assert_rank([first_BT, length_B], [2, 1])
    num_queries = first_BT.shape[1]
    key_S = jnp.arange(-memory_size, num_queries, dtype=jnp.int32)
    query_T = jnp.arange(num_queries, dtype=jnp.int32)
    distance_TS = query_T[:, None] - key_S[None, :]
    window_TS = (distance_TS >= 0) & (distance_TS <= memory_size)
    # Episodes are numbered from the one that was running at the start (0); a dead slot is in none.
    episode_BT = jnp.cumsum(first_BT.astype(jnp.int32), axis=1)
    alive_BM = key_S[None, :memory_size] >= -length_B[:, None]
    episode_BS = jnp.concatenate([jnp.where(alive_BM, 0, -1), episode_BT], axis=1)
    return window_TS[None] & (episode_BT[:, :, None] == episode_BS[:, None, :])


def length_after(
    first_BT: Bool[Array, "B T"], length_B: Int[Array, " B"], memory_size: int
) -> Int[Array, " B"]:
    """The memory's live length after a segment: the steps of the running episode, at most M."""
    num_steps = first_BT.shape[1]
    step_T = jnp.arange(num_steps, dtype=length_B.dtype)
    since_first_BT = jnp.where(first_BT, num_steps - step_T[None, :], num_steps + 1)
    since_first_B = jnp.min(since_first_BT, axis=1)
    return jnp.minimum(
        jnp.where(since_first_B <= num_steps, since_first_B, length_B + num_steps), memory_size
    )


def skew(scores_xTN: Float[Array, "... T N"]) -> Float[Array, "... T N+T-1"]:
    """Move score n of query t to place t + n: from scores by distance to scores by key.

    The last axis is ordered from the farthest distance to the nearest, so that place s of every
    query is one key. With n = 0 for d = M and n = M for d = 0, it is key s of the S = M + T.
    Places without a score get 0; the mask must exclude them.
    """
    *lead, num_queries, num_distances = scores_xTN.shape
    num_keys = num_queries + num_distances - 1
    # A row of S + 1 read again as a row of S starts one place later each time.
    padded = jnp.pad(scores_xTN, [(0, 0)] * (len(lead) + 1) + [(0, num_queries)])
    flat = padded.reshape(*lead, num_queries * (num_keys + 1))
    return flat[..., : num_queries * num_keys].reshape(*lead, num_queries, num_keys)


@jax.custom_jvp
def masked_softmax(
    scores_xS: Float[Array, "... S"], mask_xS: Bool[Array, "... S"]
) -> Float[Array, "... S"]:
    """Softmax over the last axis with weight and gradient exactly 0 where the mask is false."""
    return jax.nn.softmax(jnp.where(mask_xS, scores_xS, -jnp.inf), axis=-1)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> Any:
    """By its own output: otherwise every step of its computation is kept for the gradient."""
    weights_xS = masked_softmax(*primals)
    along_xS = weights_xS * tangents[0]
    return weights_xS, along_xS - weights_xS * jnp.sum(along_xS, axis=-1, keepdims=True)


def segment_attention(
    query_BTHK: Float[Array, "B T H K"],
    key_BSHK: Float[Array, "B S H K"],
    value_BSHK: Float[Array, "B S H K"],
    position_NHK: Float[Array, "N H K"],
    content_bias_HK: Float[Array, "H K"],
    position_bias_HK: Float[Array, "H K"],
    mask_BTS: Bool[Array, "B T S"],
    drop: Callable[[Array], Array] = lambda weights: weights,
) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
    """Every query of a segment attends to the memory and to the segment.

    s_ij = ((Q_i + u) . K_j + (Q_i + v) . R_{i-j}) / sqrt(K)  (Dai et al. 2019, section 3.3).

    Args:
      query_BTHK: Q of the segment.
      key_BSHK: K of the memory, then of the segment.
      value_BSHK: V, likewise.
      position_NHK: R_d, from the farthest distance to the nearest: d = M .. 0.
      content_bias_HK: u.
      position_bias_HK: v.
      mask_BTS: see `segment_mask`; each query must see at least itself.
      drop: dropout of the weights.

    Returns:
      The weighted values, and the weights in float32 or wider.
    """
    chex.assert_rank([query_BTHK, key_BSHK, position_NHK, mask_BTS], [4, 4, 3, 3])
    wide = np.promote_types(query_BTHK.dtype, np.float32)
    scale = query_BTHK.shape[-1] ** -0.5
    content_BHTS = jnp.einsum(
        "bthk,bshk->bhts",
        (query_BTHK + content_bias_HK[None, None]) * scale,
        key_BSHK,
        preferred_element_type=wide,
    )
    position_BHTN = jnp.einsum(
        "bthk,nhk->bhtn",
        (query_BTHK + position_bias_HK[None, None]) * scale,
        position_NHK,
        preferred_element_type=wide,
    )
    weights_BHTS = masked_softmax(content_BHTS + skew(position_BHTN), mask_BTS[:, None])
    dropped_BHTS = drop(weights_BHTS.astype(value_BSHK.dtype))
    out_BTHK = jnp.einsum("bhts,bshk->bthk", dropped_BHTS, value_BSHK)
    return out_BTHK, weights_BHTS


def ring_ages(slot: Int[Array, ""], num_slots: int) -> Int[Array, " N"]:
    """How many steps ago each slot of a ring was written, when `slot` was written just now."""
    return (slot - jnp.arange(num_slots, dtype=slot.dtype)) % num_slots


def cached_attention(
    query_BHK: Float[Array, "B H K"],
    key_BHNK: Float[Array, "B H N K"],
    value_BHNK: Float[Array, "B H N K"],
    position_HNK: Float[Array, "H N K"],
    content_bias_HK: Float[Array, "H K"],
    position_bias_HK: Float[Array, "H K"],
    slot: Int[Array, ""],
    mask_BN: Bool[Array, "B N"],
) -> tuple[Float[Array, "B H K"], Float[Array, "B H N"]]:
    """One query a row attends to a ring of N = M + 1 keys and values, its own among them.

    The same equation as `segment_attention`, over keys that were projected when they were written.

    Args:
      query_BHK: the query of the present step.
      key_BHNK: the ring of keys.
      value_BHNK: the ring of values.
      position_HNK: R_d for d = 0 .. M.
      content_bias_HK: u.
      position_bias_HK: v.
      slot: the slot that the present step was written to.
      mask_BN: which slots the query may see.

    Returns:
      The weighted values, and the weights by slot, in float32 or wider.
    """
    chex.assert_rank([query_BHK, key_BHNK, position_HNK, mask_BN], [3, 4, 3, 2])
    wide = np.promote_types(query_BHK.dtype, np.float32)
    scale = query_BHK.shape[-1] ** -0.5
    content_BHN = jnp.einsum(
        "bhk,bhnk->bhn",
        (query_BHK + content_bias_HK[None]) * scale,
        key_BHNK,
        preferred_element_type=wide,
    )
    by_distance_BHN = jnp.einsum(
        "bhk,hnk->bhn",
        (query_BHK + position_bias_HK[None]) * scale,
        position_HNK,
        preferred_element_type=wide,
    )
    # Slot j holds distance (slot - j) mod N: the distances reversed, then turned by slot + 1.
    position_BHN = jnp.roll(by_distance_BHN[..., ::-1], slot + 1, axis=-1)
    weights_BHN = masked_softmax(content_BHN + position_BHN, mask_BN[:, None])
    out_BHK = jnp.einsum("bhn,bhnk->bhk", weights_BHN.astype(value_BHNK.dtype), value_BHNK)
    return out_BHK, weights_BHN


def memory_token_mask(
    step_mask_BK: Bool[Array, "B K"],
    cached_B: Int[Array, " B"],
    cache_size: int,
    memory_tokens: int,
) -> Bool[Array, "B Q S"]:
    """Which keys each token of a RATE segment may see (arXiv 2306.09459, section 3).

    The keys are [cache | read tokens | 3 K tokens of the steps | write tokens], the queries all of
    them but the cache. Read tokens see the read tokens. A step's token sees the cache, the read
    tokens, and the steps' tokens up to itself. Write tokens see everything but the cache. What is
    padding is seen by nothing but itself.

    Args:
      step_mask_BK: whether there is a step.
      cached_B: how many of the last cache slots have been written.
      cache_size: C.
      memory_tokens: m.
    """
    chex.assert_rank([step_mask_BK, cached_B], [2, 1])
    batch, steps = step_mask_BK.shape
    read, write = cache_size + memory_tokens, cache_size + memory_tokens + 3 * steps
    key_S = np.arange(write + memory_tokens)
    query_Q = key_S[cache_size:, None]
    by_read_QS = (query_Q < read) & (key_S >= cache_size) & (key_S < read)
    by_step_QS = (query_Q >= read) & (query_Q < write) & (key_S <= query_Q)
    by_write_QS = (query_Q >= write) & (key_S >= cache_size)
    exists_BS = jnp.concatenate(
        [
            jnp.arange(cache_size, dtype=jnp.int32)[None] >= cache_size - cached_B[:, None],
            jnp.ones((batch, memory_tokens), bool),
            jnp.repeat(step_mask_BK, 3, axis=1),
            jnp.ones((batch, memory_tokens), bool),
        ],
        axis=1,
    )
    seen_QS = by_read_QS | by_step_QS | by_write_QS
    return (jnp.asarray(seen_QS)[None] & exists_BS[:, None]) | jnp.asarray(query_Q == key_S)[None]


def memory_token_spans(steps: int, cache_size: int, memory_tokens: int) -> tuple[Spans, Spans]:
    """Runs of the queries of `memory_token_mask`, over which its hidden keys can be left out.

    Args:
      steps: K.
      cache_size: C.
      memory_tokens: m.

    Returns:
      Of all queries, in order; and of the K tokens o (the second of a step's three) and the m write
      tokens, which are all that a last layer needs.
    """
    write = memory_tokens + 3 * steps
    num_tokens = write + memory_tokens
    # More runs leave out little more and take longer to compile, shorter ones are not worth it.
    runs = min(max(steps // 8, 1), 3)
    cuts = [memory_tokens + 3 * round(steps * run / runs) for run in range(runs + 1)]
    ends = [*cuts[1:-1], num_tokens]
    every = [(slice(start, end), cache_size + end) for start, end in itertools.pairwise([0, *ends])]
    useful = [
        (slice(start + 1, end, 3), cache_size + end) for start, end in itertools.pairwise(cuts)
    ]
    if memory_tokens:
        useful.append((slice(write, num_tokens), cache_size + num_tokens))
    return tuple(every), tuple(useful)
