"""Relative multi-head attention over a memory, for a segment and for one cached step.

Dai et al. 2019, "Transformer-XL", section 3.3; Parisotto et al. 2019, "Stabilizing Transformers for
Reinforcement Learning", appendix C. Dimension letters: B batch, T queries, M memory slots,
S = M + T keys, N = M + 1 distances (0 is the query itself), H heads, K head width, D model width.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops.promotion import at_least_float32


def sinusoids(distance_N: Int[Array, " N"], width: int, dtype: DTypeLike) -> Float[Array, "N D"]:
    """Return encodings Phi_d of distances d of either sign (Vaswani et al. 2017, section 3.5).

    Sines fill the first half of the width, cosines the second.
    """
    half = (width + 1) // 2
    rates_F = 10000.0 ** (-jnp.arange(half, dtype=dtype) / half)
    angles_NF = distance_N.astype(dtype)[:, None] * rates_F[None, :]
    return jnp.concatenate([jnp.sin(angles_NF), jnp.cos(angles_NF)], axis=-1)[:, :width]


def segment_mask(
    first_BT: Bool[Array, "B T"], length_B: Int[Array, " B"], memory_size: int
) -> Bool[Array, "B T S"]:
    """Compute which keys each query of a segment may attend to.

    A query attends to itself, and to the steps of its own episode among the `memory_size` before it
    that have been written.

    Args:
      first_BT: true on the first step of an episode.
      length_B: the number of most recent memory slots that belong to the episode running at the
        start of the segment; older slots belong to an earlier episode or were never written.
      memory_size: M, the number of memory slots.
    """
    chex.assert_rank([first_BT, length_B], [2, 1])
    num_queries = first_BT.shape[1]
    key_S = jnp.arange(-memory_size, num_queries, dtype=jnp.int32)
    query_T = jnp.arange(num_queries, dtype=jnp.int32)
    distance_TS = query_T[:, None] - key_S[None, :]
    window_TS = (distance_TS >= 0) & (distance_TS <= memory_size)
    # Number the episodes from the one running at the start (0); other slots belong to none (-1).
    episode_BT = jnp.cumsum(first_BT.astype(jnp.int32), axis=1)
    alive_BM = key_S[None, :memory_size] >= -length_B[:, None]
    episode_BS = jnp.concatenate([jnp.where(alive_BM, 0, -1), episode_BT], axis=1)
    return window_TS[None] & (episode_BT[:, :, None] == episode_BS[:, None, :])


def length_after(
    first_BT: Bool[Array, "B T"], length_B: Int[Array, " B"], memory_size: int
) -> Int[Array, " B"]:
    """Return the memory's length after a segment: the current episode's steps, at most M."""
    num_steps = first_BT.shape[1]
    step_T = jnp.arange(num_steps, dtype=length_B.dtype)
    since_first_BT = jnp.where(first_BT, num_steps - step_T[None, :], num_steps + 1)
    since_first_B = jnp.min(since_first_BT, axis=1)
    return jnp.minimum(
        jnp.where(since_first_B <= num_steps, since_first_B, length_B + num_steps), memory_size
    )


def skew(scores_xTN: Float[Array, "... T N"]) -> Float[Array, "... T N+T-1"]:
    """Shift score n of query t to position t + n: from scores by distance to scores by key.

    The last axis is ordered from the farthest distance to the nearest, so that position s is the
    same key for every query. With n = 0 for d = M and n = M for d = 0, it is key s of the S = M + T
    keys. Positions without a score get 0; the mask must exclude them.
    """
    *lead, num_queries, num_distances = scores_xTN.shape
    num_keys = num_queries + num_distances - 1
    # Reading rows of length S + 1 as rows of length S shifts each row by one more position.
    padded = jnp.pad(scores_xTN, [(0, 0)] * (len(lead) + 1) + [(0, num_queries)])
    flat = padded.reshape(*lead, num_queries * (num_keys + 1))
    return flat[..., : num_queries * num_keys].reshape(*lead, num_queries, num_keys)


@jax.custom_jvp
def masked_softmax(
    scores_xS: Float[Array, "... S"], mask_xS: Bool[Array, "... S"]
) -> Float[Array, "... S"]:
    """Compute the softmax over the last axis; masked entries have weight and gradient exactly 0."""
    return jax.nn.softmax(jnp.where(mask_xS, scores_xS, -jnp.inf), axis=-1)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> Any:
    """Differentiate by the output alone, so that no intermediate results are stored."""
    weights_xS = masked_softmax(*primals)
    along_xS = weights_xS * tangents[0]
    return weights_xS, along_xS - weights_xS * jnp.sum(along_xS, axis=-1, keepdims=True)


def weigh_at_once(
    scores_BHTS: Float[Array, "B H T S"],
    mask_BTS: Bool[Array, "B T S"],
    value_BSHK: Float[Array, "B S H K"],
) -> Float[Array, "B T H K"]:
    """Weigh values by the masked softmax of scores, without the weights themselves.

    A value of 1 beside the others sums up the weights in the same product, and so do the gradients:
    on TPUs a sum over the keys, and to divide all weights by it, take longer than the product.
    """
    scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, -jnp.inf)
    largest_BHT1 = jax.lax.stop_gradient(jnp.max(scores_BHTS, axis=-1, keepdims=True))
    powers_BHTS = jnp.exp(scores_BHTS - largest_BHT1)
    one_BSH1 = jnp.ones_like(value_BSHK[..., :1])
    sums_BHTK1 = jnp.einsum(
        "bhts,bshk->bthk",
        powers_BHTS.astype(value_BSHK.dtype),
        jnp.concatenate([value_BSHK, one_BSH1], axis=-1),
        preferred_element_type=scores_BHTS.dtype,
    )
    return (sums_BHTK1[..., :-1] / sums_BHTK1[..., -1:]).astype(value_BSHK.dtype)


def shifted_scores(
    query_BTHK: Float[Array, "B T H K"], position_NHK: Float[Array, "N H K"]
) -> Float[Array, "B H T S"]:
    """Compute the scores Q_i . R_{i-j} from R, in float32 or wider, for S = T + N - 1 keys.

    Args:
      query_BTHK: Q of the queries, the last T of the S steps.
      position_NHK: R_d, from the farthest distance to the nearest: d = N - 1 .. 0. Farther keys get
        some finite score; the mask must exclude them, and later ones.
    """
    wide = at_least_float32(query_BTHK.dtype)
    return skew(jnp.einsum("bthk,nhk->bhtn", query_BTHK, position_NHK, preferred_element_type=wide))


def rotated_scores(
    query_BTHK: Float[Array, "B T H K"],
    kernel_DHK: Float[Array, "D H K"],
    num_keys: int,
    phi_dtype: DTypeLike,
) -> Float[Array, "B H T S"]:
    """Compute the scores Q_i . R_{i-j} from W_R, R_d = W_R Phi_d, in float32 or wider.

    Phi_d are sines and cosines, of which p_i = W_R^T Q_i are the coefficients. With those of i - j
    as products of those of i and j, the scores are (p_i rotated by i) . Phi_j: more operations than
    those of `shifted_scores`, but no shift, which takes longer on TPUs.

    Args:
      query_BTHK: Q of the queries, the last T of the S steps.
      kernel_DHK: W_R.
      num_keys: S.
      phi_dtype: the dtype in which Phi is computed.
    """
    num_queries, width = query_BTHK.shape[1], kernel_DHK.shape[0]
    dtype, wide = query_BTHK.dtype, at_least_float32(query_BTHK.dtype)
    step_S = jnp.arange(num_keys, dtype=jnp.int32) - (num_keys - num_queries)
    phi_SF = sinusoids(step_S, width + width % 2, phi_dtype)
    key_sine_SF, key_cosine_SF = jnp.split(phi_SF.astype(dtype), 2, axis=1)
    phi_11TF = phi_SF[None, None, -num_queries:].astype(wide)
    sine_11TF, cosine_11TF = jnp.split(phi_11TF, 2, axis=-1)
    kernel_DHK = jnp.pad(kernel_DHK, [(0, width % 2), (0, 0), (0, 0)])
    of_sine_BHTF, of_cosine_BHTF = (
        jnp.einsum("bthk,fhk->bhtf", query_BTHK, half_FHK, preferred_element_type=wide)
        for half_FHK in jnp.split(kernel_DHK, 2)
    )
    scores = partial(jnp.einsum, "bhtf,sf->bhts", preferred_element_type=wide)
    times_cosine_BHTF = of_sine_BHTF * sine_11TF + of_cosine_BHTF * cosine_11TF
    times_sine_BHTF = of_cosine_BHTF * sine_11TF - of_sine_BHTF * cosine_11TF
    # Two products, since to concatenate the halves takes longer.
    return scores(times_cosine_BHTF.astype(dtype), key_cosine_SF) + scores(
        times_sine_BHTF.astype(dtype), key_sine_SF
    )


def segment_attention(
    query_BTHK: Float[Array, "B T H K"],
    key_BSHK: Float[Array, "B S H K"],
    value_BSHK: Float[Array, "B S H K"],
    position_BHTS: Float[Array, "B H T S"],
    mask_BTS: Bool[Array, "B T S"],
    at_once: bool = False,
) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
    """Attend from every query of a segment to the memory and the segment.

    s_ij = ((Q_i + u) . K_j + (Q_i + v) . R_{i-j}) / sqrt(K)  (Dai et al. 2019, section 3.3).

    Args:
      query_BTHK: (Q_i + u) / sqrt(K) of the segment.
      key_BSHK: K of the memory, followed by K of the segment.
      value_BSHK: V, in the same order.
      position_BHTS: (Q_i + v) . R_{i-j} / sqrt(K), see `shifted_scores` and `rotated_scores`.
      mask_BTS: see `segment_mask`; each query must see at least itself.
      at_once: whether to compute the values without the weights, see `weigh_at_once`.

    Returns:
      The weighted values, and the weights in float32 or wider.
    """
    chex.assert_rank([query_BTHK, key_BSHK, position_BHTS, mask_BTS], [4, 4, 4, 3])
    content_BHTS = jnp.einsum(
        "bthk,bshk->bhts", query_BTHK, key_BSHK, preferred_element_type=position_BHTS.dtype
    )
    scores_BHTS = content_BHTS + position_BHTS
    weights_BHTS = masked_softmax(scores_BHTS, mask_BTS[:, None])
    if at_once:
        return weigh_at_once(scores_BHTS, mask_BTS, value_BSHK), weights_BHTS
    out_BTHK = jnp.einsum("bhts,bshk->bthk", weights_BHTS.astype(value_BSHK.dtype), value_BSHK)
    return out_BTHK, weights_BHTS


def ring_ages(slot: Int[Array, ""], num_slots: int) -> Int[Array, " N"]:
    """Return how many steps ago each slot of a ring was written, if `slot` was written last."""
    return (slot - jnp.arange(num_slots, dtype=slot.dtype)) % num_slots


def write_slot(
    ring: Float[Array, "*batch N I"], x: Float[Array, "*batch_I"], slot: Int[Array, ""]
) -> Float[Array, "*batch N I"]:
    """Write a step to a slot of a ring buffer; x has as many elements as one of its slots."""
    x = x.reshape(*ring.shape[:-2], ring.shape[-1]).astype(ring.dtype)
    return jax.lax.dynamic_update_index_in_dim(ring, x, slot, axis=ring.ndim - 2)


def cached_attention(
    query_BI: Float[Array, "B I"],
    own_key_BI: Float[Array, "B I"],
    own_value_BI: Float[Array, "B I"],
    key: Float[Array, "*layout"],
    value: Float[Array, "*layout"],
    position: Float[Array, "*positions"],
    content_bias_HK: Float[Array, "H K"],
    position_bias_HK: Float[Array, "H K"],
    slot: Int[Array, ""],
    mask_BN: Bool[Array, "B N"],
) -> Float[Array, "B I"]:
    """Attend from one query per row to a ring of N = M + 1 keys and values, including its own.

    The equation is the same as in `segment_attention`, on keys that were projected when written.
    I = H K, and the ring and the positions have one of two layouts. If each head has its own rows,
    there is a product for each head, the fastest on a CPU. If all heads share the rows, the query
    of a head is a row of I numbers, zero outside of the head's columns, so that the heads share one
    product: H times the operations, on a matrix unit that is idle otherwise.

    Args:
      query_BI: the query of the current step.
      own_key_BI: its key, which takes the place of `slot` in the ring.
      own_value_BI: its value, likewise.
      key: the ring of keys, `[B, H, N, K]` or `[B, N, I]`.
      value: the ring of values, in the layout of the keys.
      position: R_d for d = M .. 0, `[H, N, K]` or `[N, I]`.
      content_bias_HK: u, added to the query in the content term.
      position_bias_HK: v, added to the query in the position term.
      slot: the slot of the current step.
      mask_BN: which slots the query may attend to.

    Returns:
      The weighted values.
    """
    chex.assert_rank([query_BI, mask_BN], [2, 2])
    heads, width = content_bias_HK.shape
    wide = at_least_float32(query_BI.dtype)
    shared = key.ndim == 3
    if shared:
        is_own_1N1 = (jnp.arange(key.shape[1], dtype=slot.dtype) == slot)[None, :, None]
        key = jnp.where(is_own_1N1, own_key_BI[:, None].astype(key.dtype), key)
        value = jnp.where(is_own_1N1, own_value_BI[:, None].astype(value.dtype), value)
        keys, positions = "bni", "ni"
    else:
        key, value = write_slot(key, own_key_BI, slot), write_slot(value, own_value_BI, slot)
        keys, positions = "bhni", "hni"
    columns_HI = jnp.asarray(np.repeat(np.eye(heads), width, axis=1), query_BI.dtype)

    def scores(equation: str, bias_HK: Array, other: Array) -> Array:
        biased_BI = (query_BI + bias_HK.reshape(1, -1)) * width**-0.5
        if shared:
            query = biased_BI[:, None] * columns_HI[None]
        else:
            query = biased_BI.reshape(-1, heads, width)
        return jnp.einsum(equation, query.astype(other.dtype), other, preferred_element_type=wide)

    by_distance_BHN = scores(f"bhi,{positions}->bhn", position_bias_HK, position)
    # Slot j holds distance (slot - j) mod N: roll the distances M .. 0 by slot + 1.
    position_BHN = jnp.roll(by_distance_BHN, slot + 1, axis=-1)
    scores_BHN = scores(f"bhi,{keys}->bhn", content_bias_HK, key) + position_BHN
    if not shared:
        weights_BHN = masked_softmax(scores_BHN, mask_BN[:, None])
        out_BHK = jnp.einsum("bhn,bhnk->bhk", weights_BHN.astype(value.dtype), value)
        return out_BHK.reshape(query_BI.shape)
    # Divided after the product: to divide the weights, TPUs would run the division by itself.
    scores_BHN = jnp.where(mask_BN[:, None], scores_BHN, -jnp.inf)
    powers_BHN = jnp.exp(scores_BHN - jnp.max(scores_BHN, axis=-1, keepdims=True))
    out_BHI = jnp.einsum(
        "bhn,bni->bhi", powers_BHN.astype(value.dtype), value, preferred_element_type=wide
    )
    out_BHI = out_BHI * columns_HI[None].astype(wide) / jnp.sum(powers_BHN, axis=-1, keepdims=True)
    return jnp.sum(out_BHI, axis=1).astype(query_BI.dtype)


def by_distance(weights_BHTS: Float[Array, "B H T S"]) -> Float[Array, "B H T W"]:
    """Return the weights of each of the last T of S inputs on itself and the W - 1 inputs before.

    W is S - T + 1; the most distant input comes first.
    """
    steps, keys = weights_BHTS.shape[2:]
    query_T1, place_W = jnp.arange(steps)[:, None], jnp.arange(keys - steps + 1)[None]
    return jnp.take_along_axis(weights_BHTS, (query_T1 + place_W)[None, None], axis=3)
