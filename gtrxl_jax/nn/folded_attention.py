"""Relative multi-head attention over inputs that are not projected, for models with wide heads."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops.attention import sinusoids
from gtrxl_jax.ops.folded_attention import folded_attention, turn


@struct.dataclass
class FoldedWeights:
    """The products of W_Q, W_K, W_V, W_R and W_O that attention needs, see `FoldedAttention`.

    Attributes:
      query: `[D, H * (D + F)]`, from an input to the q and the p of each head, scaled.
      query_bias: `[H, D + F]`.
      output: `[H * D, D]`, from each head's weighted inputs to the output.
    """

    query: jax.Array
    query_bias: jax.Array
    output: jax.Array


@struct.dataclass
class FoldedCache:
    """What one layer keeps while it acts with fixed parameters.

    Attributes:
      weights: see there.
      phi: `[S, F]`, of the slots' places, 0 .. S - 1.
      inputs: `[B, S, D]`, in those slots.
    """

    weights: FoldedWeights
    phi: jax.Array
    inputs: jax.Array


class Matrix(nn.Module):
    """The kernel of a linear map without bias: what `nn.Dense` would have."""

    shape: tuple[int, int]
    param_dtype: Any

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        return self.param("kernel", nn.initializers.lecun_normal(), self.shape, self.param_dtype)


class FoldedAttention(nn.Module):
    """The layer of `gtrxl_jax.nn.attention.RelativeAttention`, as `gtrxl_jax.ops.folded_attention`.

    The same function of the same parameters. Its cost for a pair of inputs grows with the width of
    the stream and not with that of a head, and there is nothing to project or to transpose.

    Attributes:
      width: D, of the input and the output.
      heads: H.
      head_width: K.
      dropout_rate: of the attention weights.
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.
    """

    width: int
    heads: int
    head_width: int
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        inner = self.heads * self.head_width
        self.dropout = nn.Dropout(self.dropout_rate)
        self.query = Matrix((self.width, inner), self.param_dtype)
        self.key_value = Matrix((self.width, 2 * inner), self.param_dtype)
        self.position = Matrix((self.width, inner), self.param_dtype)
        self.output = Matrix((inner, self.width), self.param_dtype)
        shape = (self.heads, self.head_width)
        zeros = nn.initializers.zeros_init()
        self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
        self.position_bias = self.param("position_bias", zeros, shape, self.param_dtype)

    def _fold(self, dtype: jnp.dtype) -> FoldedWeights:
        """Multiply the parameters, in their own precision."""

        def heads(kernel: Array) -> Float[Array, "D H K"]:
            return kernel.reshape(self.width, self.heads, self.head_width)

        query_DHK = heads(self.query())
        key_DHK, value_DHK = (heads(z) for z in jnp.split(self.key_value(), 2, axis=1))
        # An odd width has one cosine less than sines: its coefficient is 0.
        position_FHK = jnp.pad(heads(self.position()), [(0, self.width % 2), (0, 0), (0, 0)])
        output_HKD = self.output().reshape(self.heads, self.head_width, self.width)
        scale = self.head_width**-0.5
        both = (key_DHK, position_FHK)
        query = [jnp.einsum("dhk,ehk->dhe", query_DHK, z) for z in both]
        bias = [
            jnp.einsum("hk,ehk->he", b, z)
            for b, z in zip((self.content_bias, self.position_bias), both, strict=True)
        ]
        output_HDE = jnp.einsum("dhk,hke->hde", value_DHK, output_HKD)
        weights = FoldedWeights(
            query=scale * jnp.concatenate(query, axis=-1).reshape(self.width, -1),
            query_bias=scale * jnp.concatenate(bias, axis=-1),
            output=output_HDE.reshape(-1, self.width),
        )
        return jax.tree.map(lambda z: z.astype(dtype), weights)

    def _attend(
        self,
        cache: FoldedCache,
        x_BTD: Float[Array, "B T D"],
        place: Int[Array, ""] | int,
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """T queries at the places from `place` on attend to the S inputs of a cache."""
        batch, num_queries, width = x_BTD.shape
        weights = cache.weights
        query = (x_BTD @ weights.query).reshape(batch, num_queries, self.heads, -1)
        content, position = jnp.split(query + weights.query_bias[None, None], [width], axis=-1)
        phi_TF = jax.lax.dynamic_slice_in_dim(cache.phi, place, num_queries)
        out_BTHD, weights_BTHS = folded_attention(
            content,
            turn(position, phi_TF),
            cache.inputs,
            cache.phi,
            mask_BTS,
            drop=functools.partial(self.dropout, deterministic=deterministic),
        )
        if not self.is_initializing():
            self.sow("attention", "weights", weights_BTHS.swapaxes(1, 2))
        return out_BTHD.reshape(batch, num_queries, -1) @ weights.output

    def __call__(
        self,
        x_BSD: Float[Array, "B S D"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The last T of the S inputs attend to all of them, as far as the mask allows."""
        cache = self.hold(x_BSD)
        first = x_BSD.shape[1] - mask_BTS.shape[1]
        return self._attend(cache, cache.inputs[:, first:], first, mask_BTS, deterministic)

    def hold(self, x_BSD: Float[Array, "B S D"]) -> FoldedCache:
        """Slots for `extend`, with these inputs in them."""
        x_BSD = x_BSD.astype(self.dtype or x_BSD.dtype)
        # Phi in the parameters' precision: neighbouring places are too close for bf16.
        place_S = jnp.arange(x_BSD.shape[1], dtype=jnp.int32)
        phi_SF = sinusoids(place_S, self.width + self.width % 2, self.param_dtype)
        return FoldedCache(self._fold(x_BSD.dtype), phi_SF.astype(x_BSD.dtype), x_BSD)

    def extend(
        self,
        cache: FoldedCache,
        x_BTD: Float[Array, "B T D"],
        slot: Int[Array, ""] | int,
        exists_T: Bool[Array, " T"],
        mask_BTS: Bool[Array, "B T S"],
    ) -> tuple[FoldedCache, Float[Array, "B T D"]]:
        """Write T inputs into the slots from `slot` on; they attend to the whole row of slots.

        Equal to the segment form. What does not exist is not written; its output is of no use.
        """
        old_BTD = jax.lax.dynamic_slice_in_dim(cache.inputs, slot, x_BTD.shape[1], axis=1)
        x_BTD = jnp.where(exists_T[None, :, None], x_BTD.astype(old_BTD.dtype), old_BTD)
        inputs = jax.lax.dynamic_update_slice_in_dim(cache.inputs, x_BTD, slot, axis=1)
        cache = dataclasses.replace(cache, inputs=inputs)
        return cache, self._attend(cache, x_BTD, slot, mask_BTS)
