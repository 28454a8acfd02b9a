"""RATE's form of the GTrXL block: attention over unprojected inputs, for wide heads."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.cores.gtrxl import Block
from gtrxl_jax.nn.layers import AttentionLayer, by_rows
from gtrxl_jax.ops.absorbed_attention import absorbed_attention, rotate_by_position
from gtrxl_jax.ops.attention import sinusoids

Spans = tuple[tuple[slice, int], ...]
"""Runs of queries, each with the number of leading keys that it may attend to: keys that a causal
mask hides from a whole run need not be computed."""


@struct.dataclass
class AbsorbedWeights:
    """The products of W_Q, W_K, W_V, W_R and W_O used by `AbsorbedAttention`.

    They depend on the parameters only, so acting computes them once.

    Attributes:
      content: maps an input to the q of each head, scaled.
      content_bias: the bias of q, scaled.
      position: maps an input to the p of each head, scaled.
      position_bias: the bias of p, scaled.
      output: maps each head's weighted inputs to the output.
      phi: Phi of the positions 0 .. S - 1 of the inputs, transposed.
    """

    content: Float[Array, "D H*D"]
    content_bias: Float[Array, "H D"]
    position: Float[Array, "D H*F"]
    position_bias: Float[Array, "H F"]
    output: Float[Array, "H*D D"]
    phi: Float[Array, "F S"]


class AbsorbedAttention(AttentionLayer):
    """Attention over unprojected inputs, computed as in `ops.absorbed_attention`.

    Its cost per pair of inputs grows with the width of the stream instead of the width of a head,
    and nothing is projected or transposed.

    Attributes:
      dropout_rate: dropout rate of the attention weights.
    """

    dropout_rate: float = 0.0

    def setup(self) -> None:
        super().setup()
        self.dropout = nn.Dropout(self.dropout_rate)

    def absorb_weights(self, num_inputs: int, dtype: DTypeLike) -> AbsorbedWeights:
        """Multiply the parameters in their own precision for S inputs, then cast to `dtype`."""

        def heads(kernel: Array) -> Float[Array, "D H K"]:
            return kernel.reshape(self.width, self.heads, self.head_width)

        query_DHK = heads(self.query())
        key_DHK, value_DHK = (heads(z) for z in jnp.split(self.key_value(), 2, axis=1))
        # An odd width has one cosine fewer than sines: pad its coefficient with 0.
        position_FHK = jnp.pad(heads(self.position()), [(0, self.width % 2), (0, 0), (0, 0)])
        output_HKD = self.output().reshape(self.heads, self.head_width, self.width)

        def fold(kernel_EHK: Array, bias_HK: Array) -> tuple[Array, Array]:
            matrix_DHE = jnp.einsum("dhk,ehk->dhe", query_DHK, kernel_EHK)
            bias_HE = jnp.einsum("hk,ehk->he", bias_HK, kernel_EHK)
            scale = self.head_width**-0.5
            return scale * matrix_DHE.reshape(self.width, -1), scale * bias_HE

        output_HDE = jnp.einsum("dhk,hke->hde", value_DHK, output_HKD)
        # Phi in the parameters' precision: bfloat16 cannot separate neighboring positions.
        place_S = jnp.arange(num_inputs, dtype=jnp.int32)
        phi_SF = sinusoids(place_S, self.width + self.width % 2, self.param_dtype)
        weights = AbsorbedWeights(
            *fold(key_DHK, self.content_bias),
            *fold(position_FHK, self.position_bias),
            output_HDE.reshape(-1, self.width),
            phi_SF.T,
        )
        return jax.tree.map(lambda z: z.astype(dtype), weights)

    def _attend(
        self,
        weights: AbsorbedWeights,
        input_BSD: Float[Array, "B S D"],
        x_BTD: Float[Array, "B T D"],
        phi_BTF: Float[Array, "#B T F"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T H S"]]:
        """Attend from queries, given the Phi of their positions, to the first S positions.

        Returns:
          The output and the attention weights.
        """
        batch, num_queries, _ = x_BTD.shape

        def project(kernel_DI: Array, bias_HE: Array) -> Float[Array, "B T H E"]:
            bias_1I = bias_HE.reshape(1, -1)
            projected_BTI = by_rows(lambda x_RD: x_RD @ kernel_DI + bias_1I, x_BTD)
            return projected_BTI.reshape(batch, num_queries, *bias_HE.shape)

        out_BTHD, weights_BTHS = absorbed_attention(
            project(weights.content, weights.content_bias),
            rotate_by_position(project(weights.position, weights.position_bias), phi_BTF),
            input_BSD,
            weights.phi[:, : input_BSD.shape[1]],
            mask_BTS,
            drop=partial(self.dropout, deterministic=deterministic),
        )
        out_BTI = out_BTHD.reshape(batch, num_queries, -1)
        return by_rows(lambda out_RI: out_RI @ weights.output, out_BTI), weights_BTHS

    def __call__(
        self,
        x_BSD: Float[Array, "B S D"],
        mask_BQS: Bool[Array, "B Q S"],
        deterministic: bool = True,
        spans: Spans | None = None,
    ) -> Float[Array, "B T D"]:
        """Attend from the last Q of the S inputs to the inputs that the mask allows.

        Args:
          x_BSD: the inputs.
          mask_BQS: which inputs each of the last Q may attend to.
          deterministic: disables dropout.
          spans: which of the last Q are queries, and how many inputs each run of them needs; None
            for all.

        Returns:
          The outputs at the T queries, in the order of the spans.
        """
        num_inputs = x_BSD.shape[1]
        first = num_inputs - mask_BQS.shape[1]
        x_BSD = x_BSD.astype(self.dtype or x_BSD.dtype)
        weights = self.absorb_weights(num_inputs, x_BSD.dtype)
        parts = []
        for queries, seen in spans or ((slice(None), num_inputs),):
            out_BTD, weights_BTHS = self._attend(
                weights,
                x_BSD[:, :seen],
                x_BSD[:, first:][:, queries],
                weights.phi[:, first:][:, queries].T[None],
                mask_BQS[:, queries, :seen],
                deterministic,
            )
            unseen = [(0, 0), (0, 0), (0, 0), (0, num_inputs - seen)]
            parts.append((out_BTD, jnp.pad(weights_BTHS, unseen)))
        out_BTD, weights_BTHS = jax.tree.map(lambda *z: jnp.concatenate(z, axis=1), *parts)
        if not self.is_initializing():
            self.sow("attention", "weights", weights_BTHS.swapaxes(1, 2))
        return out_BTD

    def decode_step(
        self,
        weights: AbsorbedWeights,
        inputs_BSD: Float[Array, "B S D"],
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
        mask_BTS: Bool[Array, "B T S"],
        queries: slice = slice(None),
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B Q D"]]:
        """Write T inputs into the slots starting at `slot_B` and attend from them to all slots.

        Equal to the segment form. Inputs that do not exist are not written, and their outputs are
        meaningless.

        Returns:
          The slots, and the outputs at Q of the inputs, by default at all.
        """
        take = partial(jax.lax.dynamic_slice_in_dim, slice_size=x_BTD.shape[1], axis=0)
        old_BTD = jax.vmap(take)(inputs_BSD, slot_B)
        x_BTD = jnp.where(exists_BT[..., None], x_BTD.astype(old_BTD.dtype), old_BTD)
        put = partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
        inputs_BSD = jax.vmap(put)(inputs_BSD, x_BTD, slot_B)
        phi_BTF = jax.vmap(take, in_axes=(None, 0))(weights.phi.T, slot_B)
        x_BQD, phi_BQF, mask_BQS = (z[:, queries] for z in (x_BTD, phi_BTF, mask_BTS))
        return inputs_BSD, self._attend(weights, inputs_BSD, x_BQD, phi_BQF, mask_BQS)[0]


class AbsorbedBlock(Block):
    """The block of RATE, over memory tokens, steps and a cache.

    Attributes:
      attention_dropout_rate: dropout rate of the attention weights.
    """

    attention_dropout_rate: float = 0.0

    def setup(self) -> None:
        super().setup()
        self.attention = AbsorbedAttention(
            self.width,
            self.heads,
            self.head_width,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            dropout_rate=self.attention_dropout_rate,
        )

    def __call__(
        self,
        cache_BCD: Float[Array, "B C D"],
        x_BTD: Float[Array, "B T D"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool,
        spans: Spans,
    ) -> Float[Array, "B Q D"]:
        """Run a segment; return the outputs at the Q queries of the spans."""
        stream_BSD = jnp.concatenate([jax.lax.stop_gradient(cache_BCD), x_BTD], axis=1)
        attended_BQD = self.attention(
            self.attention_input(stream_BSD), mask_BTS, deterministic, spans
        )
        x_BQD = jnp.concatenate([x_BTD[:, queries] for queries, _ in spans], axis=1)
        return self.after_attention(x_BQD, attended_BQD, deterministic)

    def absorb_weights(self, num_slots: int, dtype: DTypeLike) -> AbsorbedWeights:
        """Return the weight products that `decode_step` uses, for S slots."""
        return self.attention.absorb_weights(num_slots, dtype)

    def init_cache(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Return slots for `decode_step` that hold these inputs."""
        return self.attention_input(x_BSD)

    def decode_step(
        self,
        weights: AbsorbedWeights,
        slots_BSD: Float[Array, "B S D"],
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
        mask_BTS: Bool[Array, "B T S"],
        queries: slice = slice(None),
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B Q D"]]:
        """Run T inputs, written into the slots starting at `slot_B`; see `AbsorbedAttention`."""
        slots_BSD, attended_BQD = self.attention.decode_step(
            weights, slots_BSD, self.attention_input(x_BTD), slot_B, exists_BT, mask_BTS, queries
        )
        return slots_BSD, self.after_attention(x_BTD[:, queries], attended_BQD)
