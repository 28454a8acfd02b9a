"""Blocks of TrXL, TrXL-I and GTrXL: attention and feed-forward with norms and gates."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.attention.absorbed import AbsorbedAttention, AbsorbedWeights
from gtrxl_jax.nn.attention.projected import AttentionCache, RelativeAttention
from gtrxl_jax.nn.gates import make_gate
from gtrxl_jax.nn.linear import Dense
from gtrxl_jax.nn.norm import LayerNorm
from gtrxl_jax.ops import attention as ops

GATE_ORDERS = ("stream_first", "swapped")
"""The orders of the arguments of the second gate, see `Block`."""


class FeedForward(nn.Module):
    """f: Linear(D, F), ReLU, Linear(F, D), with no activation at its output."""

    width: int
    feedforward_width: int
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "... D"], deterministic: bool = True
    ) -> Float[Array, "... D"]:
        x = Dense(self.feedforward_width, dtype=self.dtype, param_dtype=self.param_dtype)(x)
        x = nn.Dropout(self.dropout_rate)(nn.relu(x), deterministic)
        return Dense(self.width, dtype=self.dtype, param_dtype=self.param_dtype)(x)


class Block(nn.Module):
    """One layer: attention and a feed-forward network, each with a norm and a gate or residual.

    With the input E and the gates g1 and g2:

      norm first (TrXL-I, GTrXL):  Y = g1(E, ReLU(Attn(LN(Mem, E))));  E' = g2(Y, ReLU(f(LN(Y))))
      norm last (TrXL):            Y = LN(E + Attn(Mem, E));           E' = LN(Y + f(Y))

    Without a feed-forward network E' = Y. The other attributes are as in `TransformerCore`.

    With the gate order "swapped", a norm-first block with gates has

      E' = g2(f(LN(Y)), ReLU(Y))

    This is a fault, kept only to reproduce the results of implementations that have it, such as
    POBAX (Tao et al. 2025, `models/transformerXL.py`). At the initialization near the identity in
    the first argument, such a block passes on f(LN(Y)) and hardly any of its stream, so that little
    of a layer's input reaches the next one directly.

    Attributes:
      feedforward_width: F; 0 omits the feed-forward network.
      dropout_rate: dropout rate of the outputs of Attn and f, and of f's hidden units.
      attention_dropout_rate: dropout rate of the attention weights.
      gate_order: "stream_first", the paper's, or "swapped".
      absorbed: use `AbsorbedAttention`, which acts through `init_cache` and `decode_step`;
        otherwise `RelativeAttention`, which acts through `start` and `step`.
    """

    width: int
    heads: int
    head_width: int
    feedforward_width: int
    norm_first: bool
    gate: str | None
    gate_bias: float | None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    gate_order: str = "stream_first"
    absorbed: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        attention = AbsorbedAttention if self.absorbed else RelativeAttention
        self.attention: Any = attention(
            self.width, self.heads, self.head_width, self.attention_dropout_rate, **precision
        )
        self.attention_norm = LayerNorm(**precision)
        self.attention_gate = make_gate(self.gate, self.gate_bias, **precision)
        self.dropout = nn.Dropout(self.dropout_rate)
        if self.feedforward_width:
            self.feedforward = FeedForward(
                self.width, self.feedforward_width, self.dropout_rate, **precision
            )
            self.feedforward_norm = LayerNorm(**precision)
            self.feedforward_gate = make_gate(self.gate, self.gate_bias, **precision)

    def _attention_input(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return self.attention_norm(x) if self.norm_first else x

    def _after_attention(
        self,
        x: Float[Array, "... D"],
        attended: Float[Array, "... D"],
        deterministic: bool = True,
    ) -> Float[Array, "... D"]:
        """Apply the rest of the layer, which is position-wise."""
        attended = self.dropout(attended, deterministic)
        if self.norm_first:
            x = self.attention_gate(x, nn.relu(attended))
        else:
            x = self.attention_norm(self.attention_gate(x, attended))
        if not self.feedforward_width:
            return x
        y = self.feedforward(self.feedforward_norm(x) if self.norm_first else x, deterministic)
        y = self.dropout(y, deterministic)
        if self.gate_order == "swapped":
            return self.feedforward_gate(y, nn.relu(x))
        if self.norm_first:
            return self.feedforward_gate(x, nn.relu(y))
        return self.feedforward_norm(self.feedforward_gate(x, y))

    def __call__(
        self,
        memory_BMD: Float[Array, "B M D"],
        x_BTD: Float[Array, "B T D"],
        mask_BTS: Bool[Array, "B T S"],
        deterministic: bool = True,
        spans: ops.Spans | None = None,
    ) -> Float[Array, "B Q D"]:
        """Run a segment; `spans` (absorbed attention) restrict the outputs to their Q queries."""
        stream_BSD = jnp.concatenate([jax.lax.stop_gradient(memory_BMD), x_BTD], axis=1)
        attend: Any = self.attention if spans is None else partial(self.attention, spans=spans)
        attended_BTD = attend(self._attention_input(stream_BSD), mask_BTS, deterministic)
        if spans is not None:
            x_BTD = jnp.concatenate([x_BTD[:, queries] for queries, _ in spans], axis=1)
        return self._after_attention(x_BTD, attended_BTD, deterministic)

    def absorb_weights(self, num_slots: int, dtype: DTypeLike) -> AbsorbedWeights:
        """Return the weight products that `decode_step` uses, for S slots."""
        return self.attention.absorb_weights(num_slots, dtype)

    def init_cache(self, x_BSD: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """Return slots for `decode_step` that hold these inputs."""
        return self._attention_input(x_BSD)

    def decode_step(
        self,
        weights: AbsorbedWeights,
        slots_BSD: Float[Array, "B S D"],
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
        mask_BTS: Bool[Array, "B T S"],
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B T D"]]:
        slots_BSD, attended_BTD = self.attention.decode_step(
            weights, slots_BSD, self._attention_input(x_BTD), slot_B, exists_BT, mask_BTS
        )
        return slots_BSD, self._after_attention(x_BTD, attended_BTD)

    def start(self, memory_BMD: Float[Array, "B M D"]) -> AttentionCache:
        return self.attention.start(self._attention_input(memory_BMD))

    def step(
        self,
        cache: AttentionCache,
        x_BD: Float[Array, "B D"],
        slot: Int[Array, ""],
        mask_BN: Bool[Array, "B N"],
    ) -> tuple[AttentionCache, Float[Array, "B D"]]:
        cache, attended_BD = self.attention.step(cache, self._attention_input(x_BD), slot, mask_BN)
        return cache, self._after_attention(x_BD, attended_BD)
