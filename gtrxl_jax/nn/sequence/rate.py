"""RATE, the Recurrent Action Transformer with Memory (arXiv 2306.09459).

A trajectory is cut into segments of T steps. With m memory tokens, segment n is the sequence

    [ M_n | R_1 o_1 a_1 ... R_T o_T a_T | M_n ]

processed by a Transformer-XL whose layers may also attend to the last hidden states of the previous
segment (the cache). All other tokens read the leading memory tokens (read tokens). A valve computes
M_{n+1} from M_n and the outputs at the trailing memory tokens (write tokens).
`memory_token_mask` defines which tokens attend to which. Distances are those between positions in
[cache | M_n | segment | M_n], so they can be negative among memory tokens. Padding is never
attended to, and the memory is updated after whole segments, including the last action.

If a PRNG key named "memory_noise" is given, acting replaces the memory tokens by noise from the
normal distribution: the ablation of section 5, question 1.

With m = 0 and no cache this is a Decision Transformer, which acts with a sliding window. Memory
tokens alone, without a valve, are a Recurrent Memory Transformer, a cache alone a Transformer-XL.
"""

import dataclasses
import itertools
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.nn.cores.gtrxl import GATES
from gtrxl_jax.nn.sequence.absorbed import AbsorbedBlock, AbsorbedWeights, Spans
from gtrxl_jax.nn.sequence.trajectory import (
    ActionHead,
    TokenWindow,
    TrajectoryModel,
    TrajectoryModelConfig,
    act_in_window,
    at_index,
    begin_in_window,
    change_segments,
    empty_window,
    observe_in_window,
    rows_where,
)
from gtrxl_jax.nn.sequence.valves import VALVES, MemoryTokens, NoValve, Valve, make_valve
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.validation import choice, number

BLOCKS = ("trxl", "trxl-i", "gtrxl")


@dataclasses.dataclass(frozen=True)
class DTConfig(TrajectoryModelConfig):
    """Settings of the Decision Transformer with RATE's blocks: RATE without memory and cache."""

    name: str = "dt"
    block: str = choice("trxl", BLOCKS)
    """Type of the blocks: trxl, trxl-i or gtrxl."""
    heads: int = 2
    """Number of attention heads, H."""
    head_width: int | None = None
    """Width of a head, K; the stream's width by default, as in RATE's paper."""
    feedforward_width: int | None = number(None, at_least=0)
    """Hidden width of the feed-forward network; the stream's width by default; 0 for none."""
    gate: str = choice("gru", tuple(GATES))
    """Gate of gtrxl: input, output, highway, sigtanh or gru."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialization; the paper's value by default (gru 2, others 1)."""
    attention_dropout: float = number(0.0, at_least=0, below=1)
    """Dropout rate of the attention weights."""

    def check(self) -> None:
        super().check()
        if self.block == "gtrxl":
            return
        for field in ("gate", "gate_bias"):
            value, default = getattr(self, field), getattr(DTConfig, field)
            if value != default:
                raise ValueError(
                    f"model.{field} {value} has no effect, since model.block {self.block} has no "
                    f"gates: use gtrxl, or leave it at {default}"
                )

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "RATE":
        """Build the model."""
        action, precision = action_spec(action_space), self.precision(param_dtype)
        feedforward_width = self.feedforward_width
        if feedforward_width is None:
            feedforward_width = self.width
        return RATE(
            embedding=self.make_embedding(observation_space, action_space, param_dtype),
            head=ActionHead(action, param_dtype),
            blocks=tuple(
                AbsorbedBlock(
                    width=self.width,
                    heads=self.heads,
                    head_width=self.head_width or self.width,
                    feedforward_width=feedforward_width,
                    norm_first=self.block != "trxl",
                    gate=self.gate if self.block == "gtrxl" else None,
                    gate_bias=self.gate_bias,
                    dropout_rate=self.dropout,
                    attention_dropout_rate=self.attention_dropout,
                    **precision,
                )
                for _ in range(self.layers)
            ),
            context=context,
            dropout_rate=self.dropout,
            **self.make_memory(param_dtype),
        )

    def make_memory(self, param_dtype: Any) -> dict[str, Any]:
        """Return the arguments of `RATE` that its memory needs."""
        return {"valve": NoValve(), "memory_tokens": 0, "cache_size": 0}


@dataclasses.dataclass(frozen=True)
class RATEConfig(DTConfig):
    """Settings of RATE."""

    name: str = "rate"
    memory_tokens: int = number(5, at_least=0)
    """Number of memory tokens, m; 0 for none."""
    cache_size: int = number(0, at_least=0)
    """Number of tokens whose hidden states are cached for the next segment, C; 0 for none."""
    valve: str = choice("ca-2", tuple(VALVES))
    """Memory Retention Valve: ca-2, ca-1, g, gru, lstm or none."""
    valve_heads: int = 2
    """Number of attention heads of the valves ca-2 and ca-1."""

    @property
    def is_recurrent(self) -> bool:
        return bool(self.memory_tokens or self.cache_size)

    def check(self) -> None:
        super().check()
        if self.memory_tokens and self.valve.startswith("ca"):
            self.require_divisible_width("valve_heads")

    def make_memory(self, param_dtype: Any) -> dict[str, Any]:
        valve = make_valve(self.valve, self.valve_heads, **self.precision(param_dtype))
        sizes = {"memory_tokens": self.memory_tokens, "cache_size": self.cache_size}
        return {"valve": valve, **sizes}


@dataclasses.dataclass(frozen=True)
class RMTConfig(DTConfig):
    """Settings of the Recurrent Memory Transformer (Bulatov et al. 2022): memory tokens alone.

    It is RATE without a valve and a cache.
    """

    name: str = "rmt"
    memory_tokens: int = 5
    """Number of memory tokens, m."""

    is_recurrent = True

    def make_memory(self, param_dtype: Any) -> dict[str, Any]:
        return {"valve": NoValve(), "memory_tokens": self.memory_tokens, "cache_size": 0}


@dataclasses.dataclass(frozen=True)
class TransformerXLConfig(DTConfig):
    """Settings of Transformer-XL (Dai et al. 2019): a cache alone. It is RATE without tokens."""

    name: str = "trxl"
    cache_size: int = 90
    """Number of tokens whose hidden states are cached for the next segment, C."""

    is_recurrent = True

    def make_memory(self, param_dtype: Any) -> dict[str, Any]:
        return {"valve": NoValve(), "memory_tokens": 0, "cache_size": self.cache_size}


@struct.dataclass
class RATEMemory:
    """The state carried from one segment to the next.

    Attributes:
      tokens: the memory tokens M_n and the valve's state.
      cache: each layer's inputs at the last C step tokens.
      cached: the number of cache slots that have been written.
    """

    tokens: MemoryTokens
    cache: tuple[Float[Array, "B C D"], ...]
    cached: Int[Array, " B"]


@struct.dataclass
class RATEState:
    """The state of acting.

    Attributes:
      tokens: M_n of the current segment.
      weights: each layer's weight products, which stay constant.
      slots: each layer's inputs at [cache | read | 3 T | write].
      action: the token of the last action, which is processed together with the tokens of the next
        step.
      cached: the number of cache slots that have been written.
      step: the number of steps of the current segment whose action has been observed.
      segment: the number of segments before the current one in the episode.
    """

    tokens: MemoryTokens
    weights: tuple[AbsorbedWeights, ...]
    slots: tuple[Float[Array, "B S D"], ...]
    action: Float[Array, "B D"]
    cached: Int[Array, " B"]
    step: Int[Array, " B"]
    segment: Int[Array, " B"]


class RATE(TrajectoryModel):
    """The model, a stack of `AbsorbedBlock`.

    Attributes:
      embedding: maps steps to tokens.
      head: maps outputs to a policy.
      valve: the Memory Retention Valve.
      blocks: the L layers.
      context: T, the number of steps of a segment.
      memory_tokens: m, the number of memory tokens.
      cache_size: C, the size of the cache in tokens.
      dropout_rate: dropout rate of the tokens.
    """

    head: nn.Module
    valve: Valve
    blocks: tuple[AbsorbedBlock, ...]
    context: int
    memory_tokens: int
    cache_size: int
    dropout_rate: float = 0.0

    def setup(self) -> None:
        self.dropout = nn.Dropout(self.dropout_rate)
        # "Normally distributed random trainable memory vectors" (section 3).
        self.initial_tokens = self.param(
            "initial_tokens",
            nn.initializers.normal(1.0),
            (self.memory_tokens, self.blocks[0].width),
            self.blocks[0].param_dtype,
        )

    @property
    def _dtype(self) -> Any:
        return self.blocks[0].dtype or self.blocks[0].param_dtype

    @property
    def slides(self) -> bool:
        """Whether segments are independent, so that acting slides a window step by step."""
        return not self.memory_tokens and not self.cache_size

    def _first_tokens(self, batch_size: int) -> MemoryTokens:
        tokens_BMD = jnp.broadcast_to(
            self.initial_tokens.astype(self._dtype), (batch_size, *self.initial_tokens.shape)
        )
        return self.valve.initial(tokens_BMD)

    def initial_memory(self, batch_size: int) -> RATEMemory:
        """Return the memory before the first segment: trained tokens M_0 and an empty cache."""
        empty = jnp.zeros((batch_size, self.cache_size, self.blocks[0].width), self._dtype)
        return RATEMemory(
            tokens=self._first_tokens(batch_size),
            cache=(empty,) * len(self.blocks),
            cached=jnp.zeros(batch_size, jnp.int32),
        )

    def features(
        self, memory: RATEMemory, segment: Segments, deterministic: bool = True
    ) -> tuple[RATEMemory, Float[Array, "B T D"]]:
        """Run one segment; return the memory after it and what the head gets at each step.

        Gradients flow into the memory's tokens, but not into its cache (Dai et al. 2019).
        """
        tokens_BT3D, mask_BT = self.embedding(segment), segment.mask
        batch, num_steps = mask_BT.shape
        tokens = memory.tokens.tokens
        step_tokens = tokens_BT3D.reshape(batch, 3 * num_steps, -1)
        x_BQD = jnp.concatenate([tokens, step_tokens, tokens], axis=1)
        x_BQD = self.dropout(x_BQD, deterministic)
        mask_BQS = memory_token_mask(mask_BT, memory.cached, self.cache_size, self.memory_tokens)
        read, write = self.memory_tokens, self.memory_tokens + 3 * num_steps
        *_, last = self.blocks
        every, useful = memory_token_spans(num_steps, self.cache_size, self.memory_tokens)
        cache = []
        for block, cache_BCD in zip(self.blocks, memory.cache, strict=True):
            stream_BTD = jnp.concatenate([cache_BCD, x_BQD[:, read:write]], axis=1)
            newest = stream_BTD.shape[1] - self.cache_size
            cache.append(jax.lax.stop_gradient(stream_BTD[:, newest:]))
            spans = useful if block is last else every
            x_BQD = block(cache_BCD, x_BQD, mask_BQS, deterministic, spans)
        valid_B = 3 * jnp.sum(mask_BT, axis=1, dtype=jnp.int32)
        memory = RATEMemory(
            tokens=self._retain(memory.tokens, x_BQD[:, num_steps:]),
            cache=tuple(cache),
            cached=jnp.minimum(memory.cached + valid_B, self.cache_size),
        )
        return memory, x_BQD[:, :num_steps]

    def memory_vectors(self, memory: RATEMemory | RATEState) -> Float[Array, "B 1 M D"]:
        """Return the memory tokens, also of a state of acting."""
        return memory.tokens.tokens[:, None]

    def _retain(self, tokens: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        return self.valve(tokens, written_BMD) if self.memory_tokens else tokens

    def _noise_key(self) -> Key[Array, ""] | None:
        return self.make_rng("memory_noise") if self.has_rng("memory_noise") else None

    def _replace_by_noise(
        self, tokens: MemoryTokens, segment_B: Int[Array, " B"], noise_key: Key[Array, ""] | None
    ) -> MemoryTokens:
        """Replace the tokens by noise if there is a key.

        The noise differs between rows, and between the segments of an episode.
        """
        if noise_key is None:
            return tokens
        batch, *shape = tokens.tokens.shape

        def noise(row: Array, segment: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(noise_key, row), segment)
            return jax.random.normal(key, shape, tokens.tokens.dtype)

        noise_BMD = jax.vmap(noise)(jnp.arange(batch, dtype=jnp.int32), segment_B)
        return dataclasses.replace(tokens, tokens=noise_BMD)

    def start(self, batch_size: int) -> RATEState | TokenWindow:
        """Start acting in B new episodes."""
        if self.slides:
            return empty_window(batch_size, self.context, self.blocks[0].width, self._dtype)
        num_slots = self.cache_size + 2 * self.memory_tokens + 3 * self.context
        empty_BSD = jnp.zeros((batch_size, num_slots, self.blocks[0].width), self._dtype)
        zero_B = jnp.zeros(batch_size, jnp.int32)
        state = RATEState(
            tokens=self._replace_by_noise(
                self._first_tokens(batch_size), zero_B, self._noise_key()
            ),
            weights=tuple(block.absorb_weights(num_slots, self._dtype) for block in self.blocks),
            slots=tuple(block.init_cache(empty_BSD) for block in self.blocks),
            action=empty_BSD[:, 0],
            cached=zero_B,
            step=zero_B,
            segment=zero_B,
        )
        return self._read(state)

    def decode(
        self,
        state: RATEState | TokenWindow,
        return_to_go_B: Float[Array, " B"],
        observation: Any,
        first_B: Bool[Array, " B"],
    ) -> tuple[RATEState | TokenWindow, ActionDistribution]:
        """Return the state and the policy at a step `[B]`.

        Args:
          state: the state returned by `start` or by `observe_action`.
          return_to_go_B: the return-to-go.
          observation: the observation.
          first_B: where an episode begins, with a state like the state of `start`.
        """
        tokens_B2D = self.embedding.observe(return_to_go_B, observation)
        if isinstance(state, TokenWindow):
            state = observe_in_window(begin_in_window(state, first_B), tokens_B2D)
            return state, self.head(self._in_window(state))
        state = self._begin_segments(state, first_B)
        # The last action is processed here too, if this segment has one. Otherwise the slot before
        # the first step holds something else, which must not be overwritten.
        read = self.cache_size + self.memory_tokens
        before_B = read + 3 * state.step - 1
        x_B3D = jnp.concatenate([state.action[:, None], tokens_B2D.astype(self._dtype)], axis=1)
        exists_B3 = jnp.array([[False, True, True]]) | (state.step > 0)[:, None]
        seen_B3S = self._seen_by_steps(
            state, before_B[:, None] + jnp.arange(3, dtype=jnp.int32)[None]
        )
        # Of the last layer, only the output at the o token is used.
        needed = slice(2, None)
        state, y_B1D = self._extend(state, x_B3D, before_B, exists_B3, seen_B3S, needed)
        return state, self.head(y_B1D[:, 0])

    def _in_window(self, window: TokenWindow) -> Float[Array, "B D"]:
        """Return the output at the current step's o token; the last layer computes no other."""
        batch, steps, _, width = window.tokens.shape
        x_BSD = window.tokens.reshape(batch, 3 * steps, width)
        causal_SS = jnp.asarray(np.tri(3 * steps, dtype=bool))
        mask_BSS = jnp.broadcast_to(causal_SS[None], (batch, *causal_SS.shape))
        *blocks, last = self.blocks
        spans, _ = memory_token_spans(steps, 0, 0)
        for block in blocks:
            x_BSD = block(x_BSD[:, :0], x_BSD, mask_BSS, True, spans)
        place_B = 3 * window.index + 1
        weights = last.absorb_weights(3 * steps, x_BSD.dtype)
        _, y_B1D = last.decode_step(
            weights,
            last.init_cache(x_BSD),
            at_index(x_BSD, place_B),
            place_B,
            jnp.ones((batch, 1), bool),
            causal_SS[place_B][:, None],
        )
        return y_B1D[:, 0]

    def observe_action(
        self, state: RATEState | TokenWindow, action: Any
    ) -> RATEState | TokenWindow:
        """Record the action `[B]`. At a segment's end, the next `decode` updates the memory."""
        token_BD = self.embedding.act(action)
        if isinstance(state, TokenWindow):
            return act_in_window(state, token_BD)
        return dataclasses.replace(state, action=token_BD.astype(self._dtype), step=state.step + 1)

    def _begin_segments(self, state: RATEState, first_B: Bool[Array, " B"]) -> RATEState:
        """Begin the next segment in rows whose last one is complete, and an episode where first."""
        begins_B, noise_key = first_B | (state.step == self.context), self._noise_key()

        def change(model: RATE, state: RATEState) -> RATEState:
            return model._next_segment(state, first_B, begins_B, noise_key)

        return change_segments(self, state, begins_B, change)

    def _next_segment(
        self,
        state: RATEState,
        first_B: Bool[Array, " B"],
        begins_B: Bool[Array, " B"],
        noise_key: Key[Array, ""] | None,
    ) -> RATEState:
        """Write the memory of the last segment and read it at the start of the next.

        Where an episode begins, that is the initial memory. Other rows do not change.
        """
        batch = len(first_B)
        read = self.cache_size + self.memory_tokens
        write = read + 3 * self.context
        slot_S = jnp.arange(write + self.memory_tokens, dtype=jnp.int32)
        by_action_B1S = self._seen_by_steps(state, jnp.full((batch, 1), write - 1, jnp.int32))
        by_write_BMS = jnp.broadcast_to(
            slot_S >= self.cache_size, (batch, self.memory_tokens, len(slot_S))
        )
        # Without memory tokens no output is used, but at least one query is required.
        needed = slice(1 if self.memory_tokens else 0, None)
        written, y_BMD = self._extend(
            state,
            jnp.concatenate([state.action[:, None], state.tokens.tokens], axis=1),
            jnp.full(batch, write - 1, jnp.int32),
            jnp.ones((batch, 1 + self.memory_tokens), bool),
            jnp.concatenate([by_action_B1S, by_write_BMS], axis=1),
            needed,
        )

        def keep_newest(x_BSD: Array) -> Array:
            stream = jnp.concatenate([x_BSD[:, : self.cache_size], x_BSD[:, read:write]], axis=1)
            newest = stream[:, stream.shape[1] - self.cache_size :]
            return jax.lax.dynamic_update_slice_in_dim(x_BSD, newest, 0, axis=1)

        segment_B = jnp.where(first_B, 0, state.segment + 1)
        tokens = rows_where(first_B, self._first_tokens(batch), self._retain(state.tokens, y_BMD))
        cached_B = jnp.minimum(state.cached + 3 * self.context, self.cache_size)
        following = self._read(
            RATEState(
                tokens=self._replace_by_noise(tokens, segment_B, noise_key),
                weights=state.weights,
                slots=tuple(keep_newest(z) for z in written.slots),
                action=state.action,
                cached=jnp.where(first_B, 0, cached_B),
                step=jnp.zeros(batch, jnp.int32),
                segment=segment_B,
            )
        )
        old, new = (dataclasses.replace(x, weights=()) for x in (state, following))
        return dataclasses.replace(rows_where(begins_B, new, old), weights=state.weights)

    def _read(self, state: RATEState) -> RATEState:
        """Process the memory tokens as the read tokens of a new segment."""
        batch = len(state.step)
        read = self.cache_size + self.memory_tokens
        num_slots = read + 3 * self.context + self.memory_tokens
        slot_S = jnp.arange(num_slots, dtype=jnp.int32)
        seen_S = (slot_S >= self.cache_size) & (slot_S < read)
        return self._extend(
            state,
            state.tokens.tokens,
            jnp.full(batch, self.cache_size, jnp.int32),
            jnp.ones((batch, self.memory_tokens), bool),
            jnp.broadcast_to(seen_S, (batch, self.memory_tokens, num_slots)),
        )[0]

    def _seen_by_steps(self, state: RATEState, slot_BT: Int[Array, "B T"]) -> Bool[Array, "B T S"]:
        """Return which slots step tokens attend to, given the slots that they are in."""
        num_slots = self.cache_size + 2 * self.memory_tokens + 3 * self.context
        slot_11S = jnp.arange(num_slots, dtype=jnp.int32)[None, None]
        oldest_B11 = (self.cache_size - state.cached)[:, None, None]
        return (slot_11S <= slot_BT[..., None]) & (slot_11S >= oldest_B11)

    def _extend(
        self,
        state: RATEState,
        x_BTD: Float[Array, "B T D"],
        slot_B: Int[Array, " B"],
        exists_BT: Bool[Array, "B T"],
        seen_BTS: Bool[Array, "B T S"],
        needed: slice = slice(None),
    ) -> tuple[RATEState, Float[Array, "B Q D"]]:
        """Run tokens through the layers, writing them into the slots starting at `slot_B`.

        Returns:
          The state, and the last layer's outputs at the tokens that are needed.
        """
        if not x_BTD.shape[1]:
            return state, x_BTD
        *_, last = self.blocks
        slots = []
        for block, weights, slots_BSD in zip(self.blocks, state.weights, state.slots, strict=True):
            queries = needed if block is last else slice(None)
            slots_BSD, x_BTD = block.decode_step(
                weights, slots_BSD, x_BTD, slot_B, exists_BT, seen_BTS, queries
            )
            slots.append(slots_BSD)
        return dataclasses.replace(state, slots=tuple(slots)), x_BTD


def memory_token_mask(
    step_mask_BT: Bool[Array, "B T"],
    cached_B: Int[Array, " B"],
    cache_size: int,
    memory_tokens: int,
) -> Bool[Array, "B Q S"]:
    """Compute which keys each token of a RATE segment may attend to (arXiv 2306.09459, section 3).

    The keys are [cache | read tokens | 3 T step tokens | write tokens], the queries all of them but
    the cache. Read tokens attend to the read tokens. A step token attends to the cache, the read
    tokens, and the step tokens up to itself. Write tokens attend to everything but the cache.
    Padding is attended to only by itself.

    Args:
      step_mask_BT: true where there is a step, false for padding.
      cached_B: the number of most recent cache slots that have been written.
      cache_size: C, the number of cache slots.
      memory_tokens: m, the number of memory tokens.
    """
    chex.assert_rank([step_mask_BT, cached_B], [2, 1])
    batch, steps = step_mask_BT.shape
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
            jnp.repeat(step_mask_BT, 3, axis=1),
            jnp.ones((batch, memory_tokens), bool),
        ],
        axis=1,
    )
    seen_QS = by_read_QS | by_step_QS | by_write_QS
    return (jnp.asarray(seen_QS)[None] & exists_BS[:, None]) | jnp.asarray(query_Q == key_S)[None]


def memory_token_spans(steps: int, cache_size: int, memory_tokens: int) -> tuple[Spans, Spans]:
    """Return runs of the queries of `memory_token_mask` for which hidden keys can be omitted.

    Args:
      steps: T, the number of steps of a segment.
      cache_size: C, the number of cache slots.
      memory_tokens: m, the number of memory tokens.

    Returns:
      The spans of all queries, in order; and the spans of the T tokens o (the second of a step's
      three) and the m write tokens, the only ones that the last layer needs.
    """
    write = memory_tokens + 3 * steps
    num_tokens = write + memory_tokens
    # More runs omit few more keys and take longer to compile; shorter ones are not worthwhile.
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
