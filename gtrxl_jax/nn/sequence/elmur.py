"""ELMUR, a transformer with a memory in each layer (Cherepanov et al. 2025, arXiv 2510.07151).

"ELMUR: External Layer Memory with Update/Rewrite for long-horizon RL". A trajectory is cut into
segments of T steps. Each layer has a memory of M slots m_j, each with an anchor p_j, the step at
which it was written. In a segment, the tokens x read the memory, which then reads them:

    x = LN(x + SelfAttn(x));    x = LN(x + Attn(x, m; E[t - p]));    y = LN(x + f(x))
    u = LN(m + Attn(m, y; E[p - t]));    u = LN(u + f_m(u))

E is a trained bias of each head, by the distance of a token's step t from an anchor. One slot is
rewritten: the first that is empty, or else the one that was written least recently,

    m_j <- u_j  if it was empty,    lambda u_j + (1 - lambda) m_j  otherwise.

The equations are the paper's. What it leaves open, or where its code differs, is decided so:

  - The gradient flows from a segment through the memory into the one before, as far as `bptt` says.
    The authors stop it there, so that nothing trains what is written: `bptt` 0.
  - The tokens are those of RATE: return-to-go, observation and action. The authors mostly use
    observations alone.
  - Empty slots hold trained vectors, the same in all episodes. The authors draw them anew. Both let
    tokens read them. Their anchor is -1.
  - Positions are steps, from the start of the episode or the window, and a slot's anchor is the
    last step of the segment that wrote it. Distances beyond the table have its outermost biases.
  - f and f_m have one hidden layer. The authors also have mixtures of experts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.cores.gtrxl import FeedForward
from gtrxl_jax.nn.layers import Dense, KeyValue, LayerNorm
from gtrxl_jax.nn.sequence.absorbed import AbsorbedAttention, AbsorbedWeights
from gtrxl_jax.nn.sequence.trajectory import (
    ActionHead,
    TrajectoryModel,
    TrajectoryModelConfig,
    change_segments,
    rows_where,
)
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.validation import number

EMPTY = -1
"""The anchor of slots that have not been written."""


@dataclasses.dataclass(frozen=True)
class ELMURConfig(TrajectoryModelConfig):
    """Settings of ELMUR."""

    name: str = "elmur"
    heads: int = 2
    """Number of attention heads, of width D / heads."""
    feedforward_width: int | None = None
    """Hidden width of both feed-forward networks; the stream's width by default."""
    memory_slots: int = 16
    """Number of slots of each layer's memory, M."""
    blend: float = number(0.05, at_most=1)
    """lambda, the part of a rewritten slot that is new; the authors have 0.79 with 2 slots for
    T-Maze."""
    max_distance: int = 1024
    """The largest distance, in steps, with a bias of its own."""
    attention_dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the attention weights."""

    is_recurrent = True

    def check(self) -> None:
        super().check()
        self.require_divisible_width("heads")

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "ELMUR":
        """Build the model."""
        action, precision = action_spec(action_space), self.precision(param_dtype)
        return ELMUR(
            embedding=self.make_embedding(observation_space, action_space, param_dtype),
            head=ActionHead(action, param_dtype),
            blocks=tuple(
                ELMURBlock(
                    width=self.width,
                    heads=self.heads,
                    feedforward_width=self.feedforward_width or self.width,
                    slots=self.memory_slots,
                    blend=self.blend,
                    max_distance=self.max_distance,
                    dropout_rate=self.dropout,
                    attention_dropout_rate=self.attention_dropout,
                    **precision,
                )
                for _ in range(self.layers)
            ),
            context=context,
            dropout_rate=self.dropout,
        )


@struct.dataclass
class LayerMemory:
    """The memory of a layer.

    Attributes:
      vectors: m.
      anchors: p, the steps at which the slots were written; `EMPTY` for those that were not.
    """

    vectors: Float[Array, "B M D"]
    anchors: Int[Array, "B M"]


@struct.dataclass
class ELMURMemory:
    """The state carried from one segment to the next.

    Attributes:
      layers: the memory of each layer.
      steps: the number of steps before the segment.
    """

    layers: tuple[LayerMemory, ...]
    steps: Int[Array, " B"]


@struct.dataclass
class ELMURState:
    """The state of acting.

    Slot 0 of a segment's tokens is unused, so that the three tokens that are processed together,
    the last action and the step's R and o, always have slots.

    Attributes:
      memory: the memory before the current segment.
      reads: the projections of each layer's memory, from which tokens read.
      weights: each layer's weight products, which stay constant.
      inputs: each layer's inputs at the S = 1 + 3 T slots.
      outputs: each layer's outputs there, which the memory reads when the segment ends.
      action: the token of the last action, processed with the tokens of the next step.
      step: the number of steps of the current segment whose action has been observed.
    """

    memory: ELMURMemory
    reads: tuple[KeyValue, ...]
    weights: tuple[AbsorbedWeights, ...]
    inputs: tuple[Float[Array, "B S D"], ...]
    outputs: tuple[Float[Array, "B S D"], ...]
    action: Float[Array, "B D"]
    step: Int[Array, " B"]


class CrossAttention(nn.Module):
    """softmax(Q K' / sqrt(K) + bias) V with several heads; there is no residual.

    Attributes:
      width: D, the width of the inputs and the output.
      heads: H.
      dropout_rate: dropout rate of the attention weights.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.query = Dense(self.width, use_bias=False, **precision)
        self.key_value = Dense(2 * self.width, use_bias=False, **precision)
        self.output = Dense(self.width, use_bias=False, **precision)
        self.dropout = nn.Dropout(self.dropout_rate)

    def project(self, source_BND: Float[Array, "B N D"]) -> KeyValue:
        """Return the keys and values of what is attended to."""
        return KeyValue(*jnp.split(self.key_value(source_BND), 2, axis=-1))

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        source: KeyValue,
        bias_BTNH: Float[Array, "B T N H"],
        exists_BN: Bool[Array, "B N"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Attend from each of the T inputs to the N sources, of those that exist."""

        def heads(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], self.heads, -1)

        q, k, v = heads(self.query(x_BTD)), heads(source.key), heads(source.value)
        scores = jnp.einsum("bthk,bnhk->bhtn", q * q.shape[-1] ** -0.5, k)
        scores = scores.astype(at_least_float32(scores.dtype))
        scores += jnp.moveaxis(bias_BTNH, -1, 1).astype(scores.dtype)
        if exists_BN is not None:
            scores = jnp.where(exists_BN[:, None, None], scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores)
        if not self.is_initializing():
            self.sow("attention", "weights", weights)
        weights = self.dropout(weights.astype(v.dtype), deterministic)
        out = jnp.einsum("bhtn,bnhk->bthk", weights, v)
        return self.output(out.reshape(*x_BTD.shape[:2], self.width))


class ELMURBlock(nn.Module):
    """A layer: tokens that read a memory, and a memory that reads the tokens.

    Attributes:
      width: D.
      heads: H.
      feedforward_width: F, the hidden width of both feed-forward networks.
      slots: M.
      blend: lambda.
      max_distance: the largest distance with a bias of its own.
      dropout_rate: dropout rate of the outputs of attention and of the feed-forward networks.
      attention_dropout_rate: dropout rate of the attention weights.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    feedforward_width: int
    slots: int
    blend: float
    max_distance: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.attention = AbsorbedAttention(
            self.width,
            self.heads,
            self.width // self.heads,
            dropout_rate=self.attention_dropout_rate,
            **precision,
        )
        cross = self.width, self.heads, self.attention_dropout_rate
        self.read = CrossAttention(*cross, **precision)
        self.write = CrossAttention(*cross, **precision)
        hidden = self.width, self.feedforward_width, self.dropout_rate
        self.feedforward = FeedForward(*hidden, **precision)
        self.memory_feedforward = FeedForward(*hidden, **precision)
        self.attention_norm = LayerNorm(**precision)
        self.read_norm = LayerNorm(**precision)
        self.feedforward_norm = LayerNorm(**precision)
        self.write_norm = LayerNorm(**precision)
        self.memory_norm = LayerNorm(**precision)
        self.dropout = nn.Dropout(self.dropout_rate)
        small = nn.initializers.normal(0.02)
        shape = (2 * self.max_distance + 1, self.heads)
        self.relative_bias = self.param("relative_bias", small, shape, self.param_dtype)
        self.initial_vectors = self.param(
            "initial_vectors", small, (self.slots, self.width), self.param_dtype
        )

    def initial_memory(self, batch_size: int) -> LayerMemory:
        """Return a memory of empty slots."""
        vectors = self.initial_vectors.astype(self.dtype or self.param_dtype)
        return LayerMemory(
            jnp.broadcast_to(vectors[None], (batch_size, *vectors.shape)),
            jnp.full((batch_size, self.slots), EMPTY, jnp.int32),
        )

    def biases(
        self, query_BT: Int[Array, "B T"], source_BN: Int[Array, "B N"]
    ) -> Float[Array, "B T N H"]:
        """Return E at the distances of the queries from what they attend to."""
        distance_BTN = query_BT[..., None] - source_BN[:, None]
        farthest = self.max_distance
        return self.relative_bias[jnp.clip(distance_BTN, -farthest, farthest) + farthest]

    def __call__(
        self,
        memory: LayerMemory,
        x_BSD: Float[Array, "B S D"],
        step_BS: Int[Array, "B S"],
        exists_BS: Bool[Array, "B S"],
        deterministic: bool,
    ) -> tuple[LayerMemory, Float[Array, "B S D"]]:
        """Run a segment.

        Args:
          memory: the memory before it.
          x_BSD: its tokens.
          step_BS: the step of each token.
          exists_BS: which tokens are real.
          deterministic: disables dropout.
        """
        causal_SS = jnp.asarray(np.tri(x_BSD.shape[1], dtype=bool))
        # Padding attends to itself, so that no row of the softmax is empty.
        itself_SS = jnp.eye(x_BSD.shape[1], dtype=bool)
        seen_BSS = (causal_SS[None] & exists_BS[:, None]) | itself_SS[None]
        attended_BSD = self.attention(x_BSD, seen_BSS, deterministic)
        reads = self.read.project(memory.vectors)
        y_BSD = self.after_attention(
            x_BSD, attended_BSD, reads, memory.anchors, step_BS, deterministic
        )
        return self.rewrite(memory, y_BSD, step_BS, exists_BS, deterministic), y_BSD

    def after_attention(
        self,
        x_BTD: Float[Array, "B T D"],
        attended_BTD: Float[Array, "B T D"],
        reads: KeyValue,
        anchors_BM: Int[Array, "B M"],
        step_BT: Int[Array, "B T"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """Apply all that follows the tokens' attention to one another; see `__call__`."""
        x_BTD = self.attention_norm(x_BTD + self.dropout(attended_BTD, deterministic))
        bias_BTMH = self.biases(step_BT, anchors_BM)
        read_BTD = self.read(x_BTD, reads, bias_BTMH, None, deterministic)
        x_BTD = self.read_norm(x_BTD + self.dropout(read_BTD, deterministic))
        y_BTD = self.dropout(self.feedforward(x_BTD, deterministic), deterministic)
        return self.feedforward_norm(x_BTD + y_BTD)

    def rewrite(
        self,
        memory: LayerMemory,
        y_BSD: Float[Array, "B S D"],
        step_BS: Int[Array, "B S"],
        exists_BS: Bool[Array, "B S"],
        deterministic: bool = True,
    ) -> LayerMemory:
        """Return the memory after a segment whose tokens had the outputs y."""
        old_BMD, anchors_BM = memory.vectors, memory.anchors
        bias_BMSH = self.biases(anchors_BM, step_BS)
        source = self.write.project(y_BSD)
        written_BMD = self.write(old_BMD, source, bias_BMSH, exists_BS, deterministic)
        u_BMD = self.write_norm(old_BMD + self.dropout(written_BMD, deterministic))
        written_BMD = self.dropout(self.memory_feedforward(u_BMD, deterministic), deterministic)
        u_BMD = self.memory_norm(u_BMD + written_BMD)
        # The first empty slot has the lowest anchor too.
        chosen_B1 = jnp.argmin(anchors_BM, axis=1, keepdims=True)
        chosen_BM = jnp.arange(self.slots)[None] == chosen_B1
        part_BM = jnp.where(anchors_BM == EMPTY, 1.0, self.blend).astype(u_BMD.dtype)
        part_BMD = jnp.where(chosen_BM, part_BM, 0)[..., None]
        last_B1 = jnp.max(jnp.where(exists_BS, step_BS, 0), axis=1, keepdims=True)
        return LayerMemory(
            part_BMD * u_BMD + (1 - part_BMD) * old_BMD,
            jnp.where(chosen_BM, last_B1, anchors_BM),
        )

    def absorb_weights(self, num_slots: int, dtype: Any) -> AbsorbedWeights:
        """Return the weight products that `decode_step` uses, for S slots."""
        return self.attention.absorb_weights(num_slots, dtype)

    def project_memory(self, memory: LayerMemory) -> KeyValue:
        """Return the projections of a memory from which tokens read."""
        return self.read.project(memory.vectors)

    def decode_step(
        self,
        weights: AbsorbedWeights,
        inputs_BSD: Float[Array, "B S D"],
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
        seen_BTS: Bool[Array, "B T S"],
        reads: KeyValue,
        anchors_BM: Int[Array, "B M"],
        step_BT: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B T D"]]:
        """Run T tokens, written into the slots starting at `slot_B`; see `AbsorbedAttention`."""
        inputs_BSD, attended_BTD = self.attention.decode_step(
            weights, inputs_BSD, x_BTD, slot_B, exists_BT, seen_BTS
        )
        return inputs_BSD, self.after_attention(x_BTD, attended_BTD, reads, anchors_BM, step_BT)


class ELMUR(TrajectoryModel):
    """The model, with the interface of `gtrxl_jax.nn.sequence.model`.

    Attributes:
      embedding: maps steps to tokens.
      head: maps outputs to a policy.
      blocks: the L layers.
      context: T, the number of steps of a segment.
      dropout_rate: dropout rate of the tokens.
    """

    head: nn.Module
    blocks: tuple[ELMURBlock, ...]
    context: int
    dropout_rate: float = 0.0

    def setup(self) -> None:
        self.dropout = nn.Dropout(self.dropout_rate)

    @property
    def _dtype(self) -> Any:
        return self.blocks[0].dtype or self.blocks[0].param_dtype

    def initial_memory(self, batch_size: int) -> ELMURMemory:
        """Return the memory before the first segment: trained vectors in empty slots."""
        layers = tuple(block.initial_memory(batch_size) for block in self.blocks)
        return ELMURMemory(layers, jnp.zeros(batch_size, jnp.int32))

    def features(
        self, memory: ELMURMemory, segment: Segments, deterministic: bool = True
    ) -> tuple[ELMURMemory, Float[Array, "B T D"]]:
        """Run a segment; return the memory after it and what the head gets at each step."""
        batch, num_steps = segment.mask.shape
        x_BSD = self.embedding(segment).reshape(batch, 3 * num_steps, -1)
        x_BSD = self.dropout(x_BSD, deterministic)
        step_BT = memory.steps[:, None] + jnp.arange(num_steps, dtype=jnp.int32)[None]
        step_BS, exists_BS = (jnp.repeat(x, 3, axis=1) for x in (step_BT, segment.mask))
        layers = []
        for block, layer in zip(self.blocks, memory.layers, strict=True):
            layer, x_BSD = block(layer, x_BSD, step_BS, exists_BS, deterministic)
            layers.append(layer)
        steps_B = memory.steps + jnp.sum(segment.mask, axis=1, dtype=jnp.int32)
        return ELMURMemory(tuple(layers), steps_B), x_BSD[:, 1::3]

    def memory_vectors(self, memory: ELMURMemory | ELMURState) -> Float[Array, "B L M D"]:
        """Return the vectors of each layer's memory, also of a state of acting."""
        layers = memory.memory.layers if isinstance(memory, ELMURState) else memory.layers
        return jnp.stack([layer.vectors for layer in layers], axis=1)

    def start(self, batch_size: int) -> ELMURState:
        """Start acting in B new episodes."""
        num_slots = 1 + 3 * self.context
        empty_BSD = jnp.zeros((batch_size, num_slots, self.blocks[0].width), self._dtype)
        memory = self.initial_memory(batch_size)
        return ELMURState(
            memory=memory,
            reads=self._project(memory),
            weights=tuple(block.absorb_weights(num_slots, self._dtype) for block in self.blocks),
            inputs=(empty_BSD,) * len(self.blocks),
            outputs=(empty_BSD,) * len(self.blocks),
            action=empty_BSD[:, 0],
            step=jnp.zeros(batch_size, jnp.int32),
        )

    def decode(
        self,
        state: ELMURState,
        return_to_go_B: Float[Array, " B"],
        observation: Any,
        first_B: Bool[Array, " B"],
    ) -> tuple[ELMURState, ActionDistribution]:
        """Return the state and the policy at a step `[B]`, with a new memory where `first_B`."""
        tokens_B2D = self.embedding.observe(return_to_go_B, observation)
        state = self._begin_segments(state, first_B)
        x_B3D = jnp.concatenate([state.action[:, None], tokens_B2D.astype(self._dtype)], axis=1)
        # The first step of a segment has no action before it.
        exists_B3 = jnp.array([[False, True, True]]) | (state.step > 0)[:, None]
        state, y_B3D = self._extend(state, x_B3D, 3 * state.step, exists_B3)
        return state, self.head(y_B3D[:, 2])

    def observe_action(self, state: ELMURState, action: Any) -> ELMURState:
        """Record the action `[B]`. At a segment's end, the next `decode` updates the memory."""
        token_BD = self.embedding.act(action).astype(self._dtype)
        return dataclasses.replace(state, action=token_BD, step=state.step + 1)

    def _project(self, memory: ELMURMemory) -> tuple[KeyValue, ...]:
        return tuple(
            block.project_memory(layer)
            for block, layer in zip(self.blocks, memory.layers, strict=True)
        )

    def _extend(
        self,
        state: ELMURState,
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
    ) -> tuple[ELMURState, Float[Array, "B T D"]]:
        """Run tokens through the layers, writing them into the slots starting at `slot_B`."""
        slot_BT = slot_B[:, None] + jnp.arange(x_BTD.shape[1], dtype=jnp.int32)[None]
        slot_11S = jnp.arange(1 + 3 * self.context, dtype=jnp.int32)[None, None]
        # What is in the unused slot attends to itself, so that no row of the softmax is empty.
        own_BTS = slot_11S == slot_BT[..., None]
        seen_BTS = own_BTS | (slot_11S >= 1) & (slot_11S < slot_BT[..., None])
        step_BT = state.memory.steps[:, None] + (slot_BT - 1) // 3
        put = jax.vmap(
            lambda old, new, slot: jax.lax.dynamic_update_slice_in_dim(old, new, slot, 0)
        )
        inputs, outputs = [], []
        layers = (
            self.blocks,
            state.weights,
            state.inputs,
            state.outputs,
            state.reads,
            state.memory.layers,
        )
        for block, weights, inputs_BSD, outputs_BSD, reads, memory in zip(*layers, strict=True):
            inputs_BSD, x_BTD = block.decode_step(
                weights,
                inputs_BSD,
                x_BTD,
                slot_B,
                exists_BT,
                seen_BTS,
                reads,
                memory.anchors,
                step_BT,
            )
            inputs.append(inputs_BSD)
            outputs.append(put(outputs_BSD, x_BTD, slot_B))
        state = dataclasses.replace(state, inputs=tuple(inputs), outputs=tuple(outputs))
        return state, x_BTD

    def _begin_segments(self, state: ELMURState, first_B: Bool[Array, " B"]) -> ELMURState:
        """Begin the next segment in rows whose last one is complete, and an episode where first."""
        begins_B = first_B | (state.step == self.context)

        def change(model: ELMUR, state: ELMURState) -> ELMURState:
            return model._next_segment(state, first_B, begins_B)

        return change_segments(self, state, begins_B, change)

    def _next_segment(
        self, state: ELMURState, first_B: Bool[Array, " B"], begins_B: Bool[Array, " B"]
    ) -> ELMURState:
        """Rewrite the memory after the last segment, or forget it where an episode begins.

        Rows where no segment begins do not change.
        """
        batch, context = len(first_B), self.context
        last_B, exists_B1 = jnp.full(batch, 3 * context, jnp.int32), jnp.ones((batch, 1), bool)
        done, _ = self._extend(state, state.action[:, None], last_B, exists_B1)
        step_S = jnp.repeat(jnp.arange(context, dtype=jnp.int32), 3)
        step_BS = state.memory.steps[:, None] + step_S[None]
        exists_BS = jnp.ones((batch, 3 * context), bool)
        layers = tuple(
            block.rewrite(layer, outputs_BSD[:, 1:], step_BS, exists_BS)
            for block, layer, outputs_BSD in zip(
                self.blocks, state.memory.layers, done.outputs, strict=True
            )
        )
        after = ELMURMemory(layers, state.memory.steps + context)
        memory = rows_where(first_B, self.initial_memory(batch), after)
        memory = rows_where(begins_B, memory, state.memory)
        return dataclasses.replace(
            state,
            memory=memory,
            reads=self._project(memory),
            step=jnp.where(begins_B, 0, state.step),
        )
