"""Relative multi-head attention as a layer, for segments and for single cached steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from flax.linen.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.attention.layer import AttentionLayer, Kernel
from gtrxl_jax.ops import attention as ops
from gtrxl_jax.ops.linear import by_rows


@struct.dataclass
class AttentionCache:
    """The projections that one layer caches while its parameters stay fixed.

    Attributes:
      key, value: ring buffers of N = M + 1 slots.
      position: W_R Phi_d for the distances d = 0 .. M.
    """

    key: Float[Array, "B H N K"]
    value: Float[Array, "B H N K"]
    position: Float[Array, "H N K"]


class RelativeAttention(AttentionLayer):
    """The layer with keys and values projected once, for segments and for cached steps."""

    def _heads(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch H K"]:
        return x.reshape(*x.shape[:-1], self.heads, self.head_width)

    def _keys_values(self, x: Float[Array, "*batch D"]) -> tuple[Array, Array]:
        key, value = jnp.split(self._linear(self.key_value, x), 2, axis=-1)
        return self._heads(key), self._heads(value)

    def _positions(self, farthest: int, dtype: DTypeLike) -> Float[Array, "N H K"]:
        """Return W_R Phi_d for the distances d = farthest .. 0, in this order."""
        # Phi in the parameters' precision: bfloat16 cannot separate neighboring distances.
        distance_N = jnp.arange(farthest, -1, -1, dtype=jnp.int32)
        phi_ND = ops.sinusoids(distance_N, self.width, self.param_dtype)
        return self._heads(self._linear(self.position, phi_ND.astype(dtype)))

    def _linear(self, kernel: Kernel, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        x, kernel_IO = promote_dtype(x, kernel(), dtype=self.dtype)
        return by_rows(lambda x_RI: x_RI @ kernel_IO, x)

    def _biases(self, dtype: DTypeLike) -> tuple[Array, Array]:
        return self.content_bias.astype(dtype), self.position_bias.astype(dtype)

    def __call__(
        self,
        x_BSD: Float[Array, "B S D"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Attend from each of the last T of the S inputs to itself and the S - T before it."""
        num_queries, num_keys = mask_BTS.shape[1:]
        query_BTHK = self._heads(self._linear(self.query, x_BSD[:, num_keys - num_queries :]))
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
        return self._linear(self.output, out_BTHK.reshape(*out_BTHK.shape[:2], -1))

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
        query_BHK = self._heads(self._linear(self.query, x_BD))
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
        return cache, self._linear(self.output, out_BHK.reshape(out_BHK.shape[0], -1))
