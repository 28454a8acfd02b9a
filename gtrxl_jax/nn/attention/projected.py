"""Relative multi-head attention as a layer, for segments and for single cached steps."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops import attention as ops


@struct.dataclass
class AttentionCache:
    """The projections that one layer caches while its parameters stay fixed.

    Attributes:
      key, value: `[B, H, N, K]`, ring buffers of N = M + 1 slots.
      position: `[H, N, K]`, W_R Phi_d for the distances d = 0 .. M.
    """

    key: jax.Array
    value: jax.Array
    position: jax.Array


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions (Dai et al. 2019; GTrXL, appendix C).

    W_Q, W_K, W_V, W_R and W_O have no bias; u and v are trained and initialised to zero. The
    attention weights are recorded in the collection "attention".

    Attributes:
      width: D, the width of the input and the output.
      heads: H, the number of heads.
      head_width: K, the width of a head.
      dropout_rate: dropout rate of the attention weights.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    head_width: int
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        def dense(width: int) -> nn.Dense:
            return nn.Dense(width, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype)

        self.dropout = nn.Dropout(self.dropout_rate)
        inner = self.heads * self.head_width
        self.query = dense(inner)
        self.key_value = dense(2 * inner)
        self.position = dense(inner)
        self.output = dense(self.width)
        shape = (self.heads, self.head_width)
        zeros = nn.initializers.zeros_init()
        self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
        self.position_bias = self.param("position_bias", zeros, shape, self.param_dtype)

    def _heads(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch H K"]:
        return x.reshape(*x.shape[:-1], self.heads, self.head_width)

    def _keys_values(self, x: Float[Array, "*batch D"]) -> tuple[Array, Array]:
        key, value = jnp.split(self.key_value(x), 2, axis=-1)
        return self._heads(key), self._heads(value)

    def _positions(self, farthest: int, dtype: jnp.dtype) -> Float[Array, "N H K"]:
        """Return W_R Phi_d for the distances d = farthest .. 0, in this order."""
        # Phi in the parameters' precision: bfloat16 cannot separate neighbouring distances.
        distance_N = jnp.arange(farthest, -1, -1, dtype=jnp.int32)
        phi_ND = ops.sinusoids(distance_N, self.width, self.param_dtype)
        return self._heads(self.position(phi_ND.astype(dtype)))

    def _biases(self, dtype: jnp.dtype) -> tuple[Array, Array]:
        return self.content_bias.astype(dtype), self.position_bias.astype(dtype)

    def __call__(
        self,
        x_BSD: Float[Array, "B S D"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Attend from each of the last T of the S inputs to itself and the S - T before it."""
        num_queries, num_keys = mask_BTS.shape[1:]
        query_BTHK = self._heads(self.query(x_BSD[:, num_keys - num_queries :]))
        out_BTHK, weights_BHTS = ops.segment_attention(
            query_BTHK,
            *self._keys_values(x_BSD),
            self._positions(num_keys - num_queries, query_BTHK.dtype),
            *self._biases(query_BTHK.dtype),
            mask_BTS,
            drop=functools.partial(self.dropout, deterministic=deterministic),
        )
        if self.is_mutable_collection("attention") and not self.is_initializing():
            self.sow("attention", "weights", ops.by_distance(weights_BHTS))
        return self.output(out_BTHK.reshape(*out_BTHK.shape[:2], -1))

    def start(self, x_BMD: Float[Array, "B M D"]) -> AttentionCache:
        """Project the memory into ring buffers whose last slot is free."""
        ring_pad = [(0, 0), (0, 1), (0, 0), (0, 0)]
        key_BNHK, value_BNHK = (jnp.pad(z, ring_pad) for z in self._keys_values(x_BMD))
        return AttentionCache(
            key=key_BNHK.swapaxes(1, 2),
            value=value_BNHK.swapaxes(1, 2),
            position=self._positions(x_BMD.shape[1], key_BNHK.dtype)[::-1].swapaxes(0, 1),
        )

    def step(
        self,
        cache: AttentionCache,
        x_BD: Float[Array, "B D"],
        slot: Int[Array, ""],
        mask_BN: Bool[Array, "B N"],
    ) -> tuple[AttentionCache, Float[Array, "B D"]]:
        """Write one step into the ring buffers at `slot` and attend to them."""
        query_BHK = self._heads(self.query(x_BD))
        key_BHK, value_BHK = self._keys_values(x_BD)
        cache = dataclasses.replace(
            cache,
            key=jax.lax.dynamic_update_index_in_dim(cache.key, key_BHK, slot, axis=2),
            value=jax.lax.dynamic_update_index_in_dim(cache.value, value_BHK, slot, axis=2),
        )
        out_BHK, _ = ops.cached_attention(
            query_BHK,
            cache.key,
            cache.value,
            cache.position,
            *self._biases(query_BHK.dtype),
            slot,
            mask_BN,
        )
        return cache, self.output(out_BHK.reshape(out_BHK.shape[0], -1))
