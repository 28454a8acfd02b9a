"""Layers: linear maps, layer normalization, and attention with relative positions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from flax.linen.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops import attention as ops


def by_rows(
    linear: Callable[[Float[Array, "R I"]], Float[Array, "R O"]], x: Float[Array, "... I"]
) -> Float[Array, "... O"]:
    """Apply a linear map to x with its leading axes joined into one, R.

    With more axes, XLA computes the gradient of a matrix on CPUs from a transposed copy of the
    output's gradient, which takes two to three times as long, and does not fuse the addition of a
    bias into the matrix product.

    Args:
      linear: the map.
      x: any number of leading axes.
    """
    y = linear(x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], y.shape[-1])


class Dense(nn.Dense):
    """`nn.Dense` that computes by rows, see `by_rows`."""

    def __call__(self, inputs: Float[Array, "... I"]) -> Float[Array, "... O"]:
        return by_rows(super().__call__, inputs)


def square_products(
    x: Float[Array, "... D"], count: int, name: str, **precision: Any
) -> list[Float[Array, "... D"]]:
    """Return `count` products of x with square matrices, computed as one multiplication.

    Called in a compact method, it makes a submodule `name`; `precision` are `nn.Dense`'s dtypes.
    """
    dense = Dense(count * x.shape[-1], use_bias=False, name=name, **precision)
    return jnp.split(dense(x), count, axis=-1)


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (Ba et al. 2016), with statistics in float32 or wider.

    `flax.linen.LayerNorm` relies on implicit dtype promotion for bfloat16 and float64, which
    JAX's strict dtype promotion forbids.
    """

    dtype: Any = None
    param_dtype: Any = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        width = x.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones_init(), (width,), self.param_dtype)
        bias_D = self.param("bias", nn.initializers.zeros_init(), (width,), self.param_dtype)
        wide = np.promote_types(x.dtype, np.float32)
        z = x.astype(wide)
        z = z - jnp.mean(z, axis=-1, keepdims=True)
        # E[x^2] - E[x]^2 would lose precision when the stream has a large mean.
        z = z * jax.lax.rsqrt(jnp.mean(z * z, axis=-1, keepdims=True) + self.epsilon)
        lead = (1,) * (x.ndim - 1) + (width,)
        z = z * scale_D.astype(wide).reshape(lead) + bias_D.astype(wide).reshape(lead)
        return z.astype(self.dtype or x.dtype)


class Kernel(nn.Module):
    """The kernel of a linear map without bias, as a parameter named as in `nn.Dense`."""

    shape: tuple[int, int]
    param_dtype: Any

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        return self.param("kernel", nn.initializers.lecun_normal(), self.shape, self.param_dtype)


class AttentionLayer(nn.Module):
    """The parameters of attention with relative positions (Dai et al. 2019; GTrXL, appendix C).

    W_Q, W_K, W_V, W_R and W_O have no bias; u and v are trained and initialized to zero. The
    attention weights are recorded in the collection "attention". `RelativeAttention` and RATE's
    `AbsorbedAttention` are the same function of the same parameters.

    Attributes:
      width: D, the width of the input and the output.
      heads: H, the number of heads.
      head_width: K, the width of a head.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    head_width: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        inner = self.heads * self.head_width
        self.query = Kernel((self.width, inner), self.param_dtype)
        self.key_value = Kernel((self.width, 2 * inner), self.param_dtype)
        self.position = Kernel((self.width, inner), self.param_dtype)
        self.output = Kernel((inner, self.width), self.param_dtype)
        shape = (self.heads, self.head_width)
        zeros = nn.initializers.zeros_init()
        self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
        self.position_bias = self.param("position_bias", zeros, shape, self.param_dtype)


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
    """Attention with keys and values projected once, for segments and for cached steps."""

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
