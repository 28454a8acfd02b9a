"""TrXL, TrXL-I and GTrXL: Transformer-XL memory cores (Parisotto et al. 2019, sections 2 and 3)."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.attention.absorbed import AbsorbedAttention, AbsorbedWeights
from gtrxl_jax.nn.attention.projected import AttentionCache, RelativeAttention
from gtrxl_jax.nn.core import MemoryCore
from gtrxl_jax.nn.gates import make_gate
from gtrxl_jax.nn.inputs import check_inputs, check_kind
from gtrxl_jax.nn.norm import LayerNorm
from gtrxl_jax.ops import attention as ops


@struct.dataclass
class TransformerMemory:
    """The inputs of each layer at the last M steps.

    Attributes:
      inputs: a tuple of L arrays `[B, M, D]`, oldest first.
      length: int `[B]`, the number of most recent slots that belong to the current episode. Older
        slots have no influence, whatever they hold.
    """

    inputs: tuple[jax.Array, ...]
    length: jax.Array


@struct.dataclass
class TransformerCache:
    """The state of acting between `start` and `finish`.

    Attributes:
      memory: the memory that acting started from, with `length` kept up to date.
      layers: each layer's projected keys, values and positions.
      new_inputs: a tuple of L ring buffers `[B, R, D]`, each layer's inputs since the start.
      num_steps: int, the number of steps since the start.
    """

    memory: TransformerMemory
    layers: tuple[AttentionCache, ...]
    new_inputs: tuple[jax.Array, ...]
    num_steps: jax.Array


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
        x = nn.Dense(self.feedforward_width, dtype=self.dtype, param_dtype=self.param_dtype)(x)
        x = nn.Dropout(self.dropout_rate)(nn.relu(x), deterministic)
        return nn.Dense(self.width, dtype=self.dtype, param_dtype=self.param_dtype)(x)


class Block(nn.Module):
    """One layer: attention and a feed-forward network, each with a norm and a gate or residual.

    With the input E and the gates g1 and g2:

      norm first (TrXL-I, GTrXL):  Y = g1(E, ReLU(Attn(LN(Mem, E))));  E' = g2(Y, ReLU(f(LN(Y))))
      norm last (TrXL):            Y = LN(E + Attn(Mem, E));           E' = LN(Y + f(Y))

    Without a feed-forward network E' = Y. The other attributes are as in `TransformerCore`.

    Attributes:
      feedforward_width: F; 0 omits the feed-forward network.
      dropout_rate: dropout rate of the outputs of Attn and f, and of f's hidden units.
      attention_dropout_rate: dropout rate of the attention weights.
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
    ) -> Float[Array, "B T D"]:
        """Run a segment; `spans` (absorbed attention) restrict the outputs to their queries."""
        stream_BSD = jnp.concatenate([jax.lax.stop_gradient(memory_BMD), x_BTD], axis=1)
        attend: Any = self.attention if spans is None else partial(self.attention, spans=spans)
        attended_BTD = attend(self._attention_input(stream_BSD), mask_BTS, deterministic)
        if spans is not None:
            x_BTD = jnp.concatenate([x_BTD[:, queries] for queries, _ in spans], axis=1)
        return self._after_attention(x_BTD, attended_BTD, deterministic)

    def absorb_weights(self, num_slots: int, dtype: jnp.dtype) -> AbsorbedWeights:
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
        slot: Int[Array, ""] | int,
        exists_T: Bool[Array, " T"],
        mask_BTS: Bool[Array, "B T S"],
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B T D"]]:
        slots_BSD, attended_BTD = self.attention.decode_step(
            weights, slots_BSD, self._attention_input(x_BTD), slot, exists_T, mask_BTS
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


class TransformerCore(MemoryCore):
    """A stack of L blocks with a memory of M steps each.

    TrXL is `norm_first=False, gate=None`; TrXL-I is `norm_first=True, gate=None`; GTrXL is
    `norm_first=True` with one of the gates of `gtrxl_jax.nn.gates.GATES`. The softmax is in float32
    or wider.

    Attributes:
      layers: L, the number of layers.
      heads: H, the number of heads.
      head_width: K, the width of a head.
      memory_size: M, the number of past steps that each layer attends to.
      feedforward_width: F, the hidden width of the feed-forward network.
      norm_first: use the identity map reordering.
      gate: the name of the gate, or None for residual connections.
      gate_bias: b of the gated identity initialisation; None for the paper's value.
    """

    layers: int
    heads: int
    head_width: int
    memory_size: int
    feedforward_width: int
    norm_first: bool = True
    gate: str | None = "gru"
    gate_bias: float | None = None

    def setup(self) -> None:
        block = nn.remat(Block, methods=["__call__"]) if self.remat else Block
        self.blocks = [
            block(
                width=self.width,
                heads=self.heads,
                head_width=self.head_width,
                feedforward_width=self.feedforward_width,
                norm_first=self.norm_first,
                gate=self.gate,
                gate_bias=self.gate_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            for _ in range(self.layers)
        ]

    def initial_memory(self, batch_size: int) -> TransformerMemory:
        """Return an empty memory for `batch_size` rows."""
        shape = (batch_size, self.memory_size, self.width)
        dtype = self.dtype or self.param_dtype
        return TransformerMemory(
            inputs=tuple(jnp.zeros(shape, dtype) for _ in range(self.layers)),
            length=jnp.zeros(batch_size, jnp.int32),
        )

    def __call__(
        self,
        memory: TransformerMemory,
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[TransformerMemory, Float[Array, "B T D"]]:
        """Run a segment, as in learning. No gradient flows into the incoming memory."""
        check_kind("memory", memory, TransformerMemory, "convert a cache with `finish`")
        check_inputs(x_BTD, first_BT, memory.length.shape[0], self.width, "B T D")
        num_steps = x_BTD.shape[1]
        mask_BTS = ops.segment_mask(first_BT, memory.length, self.memory_size)
        x_BTD = x_BTD.astype(self.dtype or x_BTD.dtype)
        inputs = []
        for block, memory_BMD in zip(self.blocks, memory.inputs, strict=True):
            stream_BSD = jnp.concatenate([memory_BMD, x_BTD], axis=1)
            inputs.append(jax.lax.stop_gradient(stream_BSD[:, num_steps:]))
            x_BTD = block(memory_BMD, x_BTD, mask_BTS)
        length_B = ops.length_after(first_BT, memory.length, self.memory_size)
        return TransformerMemory(inputs=tuple(inputs), length=length_B), x_BTD

    def start(self, memory: TransformerMemory, num_steps: int | None = None) -> TransformerCache:
        """Start acting: project keys, values and positions once, for fixed parameters.

        Args:
          memory: the memory to start from.
          num_steps: the maximum number of steps before `finish`; None for any number. The cache
            holds min(num_steps, M) inputs of each layer, M for None. If more steps are taken than
            it can hold for `finish`, the returned memory is NaN.
        """
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, or None for any number: {num_steps}")
        check_kind("memory", memory, TransformerMemory, "`start` is called once, before any step")
        ring = self.memory_size if num_steps is None else min(num_steps, self.memory_size)
        memory = jax.lax.stop_gradient(memory)
        layers = zip(self.blocks, memory.inputs, strict=True)
        return TransformerCache(
            memory=memory,
            layers=tuple(block.start(memory_BMD) for block, memory_BMD in layers),
            new_inputs=tuple(jnp.zeros_like(memory_BMD[:, :ring]) for memory_BMD in memory.inputs),
            num_steps=jnp.zeros((), jnp.int32),
        )

    def step(
        self, cache: TransformerCache, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[TransformerCache, Float[Array, "B D"]]:
        """Run one step of acting: equal to the segment form, at the cost of one query per layer."""
        check_kind("cache", cache, TransformerCache, "`start` makes a cache from a memory")
        check_inputs(x_BD, first_B, cache.memory.length.shape[0], self.width, "B D")
        ring_slots = self.memory_size + 1
        slot = (cache.num_steps + self.memory_size) % ring_slots
        length_B = jnp.where(first_B, 0, cache.memory.length)
        mask_BN = ops.ring_ages(slot, ring_slots)[None, :] <= length_B[:, None]
        x_BD = x_BD.astype(self.dtype or x_BD.dtype)
        layers, new_inputs = [], []
        for block, layer, inputs_BRD in zip(
            self.blocks, cache.layers, cache.new_inputs, strict=True
        ):
            newest = cache.num_steps % inputs_BRD.shape[1]
            new_inputs.append(jax.lax.dynamic_update_index_in_dim(inputs_BRD, x_BD, newest, axis=1))
            layer, x_BD = block.step(layer, x_BD, slot, mask_BN)
            layers.append(layer)
        length_B = jnp.minimum(length_B + 1, self.memory_size)
        cache = TransformerCache(
            memory=dataclasses.replace(cache.memory, length=length_B),
            layers=tuple(layers),
            new_inputs=tuple(new_inputs),
            num_steps=cache.num_steps + 1,
        )
        return cache, x_BD

    def finish(self, cache: TransformerCache) -> TransformerMemory:
        """Finish acting; return the memory that the segment form would have returned."""
        check_kind("cache", cache, TransformerCache, "`start` makes a cache from a memory")
        # Indices since the start of the steps in the memory; negative ones precede the start.
        step_M = cache.num_steps - self.memory_size + jnp.arange(self.memory_size, dtype=jnp.int32)

        def newest(old_BMD: Array, ring_BRD: Array) -> Array:
            ring = ring_BRD.shape[1]
            source_M = jnp.where(
                step_M < 0, step_M + self.memory_size, step_M % ring + self.memory_size
            )
            merged_BMD = jnp.take(jnp.concatenate([old_BMD, ring_BRD], axis=1), source_M, axis=1)
            if ring == self.memory_size:
                return merged_BMD
            return jnp.where(cache.num_steps > ring, jnp.nan, merged_BMD)

        inputs = tuple(map(newest, cache.memory.inputs, cache.new_inputs))
        return dataclasses.replace(cache.memory, inputs=inputs)
