"""TrXL, TrXL-I and GTrXL: Transformer-XL memory cores (Parisotto et al. 2019, sections 2 and 3)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.attention.projected import AttentionCache
from gtrxl_jax.nn.blocks import GATE_ORDERS, Block
from gtrxl_jax.nn.core import CoreConfig, MemoryCore, width_of_head
from gtrxl_jax.nn.gates import GATES
from gtrxl_jax.nn.inputs import check_inputs, check_kind
from gtrxl_jax.ops import attention as ops
from gtrxl_jax.validation import choice, number


@struct.dataclass
class TransformerMemory:
    """The inputs of each layer at the last M steps.

    Attributes:
      inputs: one array for each of L layers, oldest step first.
      length: the number of most recent slots that belong to the current episode. Older slots have
        no influence, whatever they hold.
    """

    inputs: tuple[Float[Array, "B M D"], ...]
    length: Int[Array, " B"]


@struct.dataclass
class TransformerCache:
    """The state of acting between `start` and `finish`.

    Attributes:
      memory: the memory that acting started from, with `length` kept up to date.
      layers: each layer's projected keys, values and positions.
      new_inputs: each layer's inputs since the start, in ring buffers of R slots.
      num_steps: the number of steps since the start.
    """

    memory: TransformerMemory
    layers: tuple[AttentionCache, ...]
    new_inputs: tuple[Float[Array, "B R D"], ...]
    num_steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class TransformerConfig(CoreConfig):
    """Settings of TrXL, TrXL-I and GTrXL."""

    name: str = choice("gtrxl", ("trxl", "trxl-i", "gtrxl"))
    """trxl, trxl-i or gtrxl."""
    heads: int = 4
    """Attention heads, H."""
    head_width: int | None = None
    """Width of a head, K; width / heads if not given."""
    memory_size: int = 64
    """Number of past steps that each layer attends to, M."""
    feedforward_width: int | None = None
    """Hidden width of the feed-forward network, F; `width` if not given."""
    gate: str = choice("gru", tuple(GATES))
    """Gate of gtrxl: input, output, highway, sigtanh or gru."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialization; the paper's if not given (gru 2, the others 1)."""
    gate_order: str = choice("stream_first", GATE_ORDERS)
    """Order of the arguments of gtrxl's second gate. swapped: the fault of some implementations,
    only to reproduce their results; see `nn.blocks.Block`."""

    def check(self) -> None:
        """Raise ValueError where heads do not divide the width, or gates are set but missing."""
        width_of_head(self)
        if self.name == "gtrxl":
            return
        # Defaults are valid, so that cores can be swapped by name.
        for field in ("gate", "gate_bias", "gate_order"):
            value, default = getattr(self, field), getattr(TransformerConfig, field)
            if value not in ("", default):
                raise ValueError(
                    f"core.{field} {value} has no effect, since {self.name} has no gates: use "
                    f"core.name gtrxl, or leave it at {default}"
                )

    def make(self) -> "TransformerCore":
        return TransformerCore(
            layers=self.layers,
            heads=self.heads,
            head_width=width_of_head(self),
            memory_size=self.memory_size,
            feedforward_width=self.feedforward_width or self.width,
            norm_first=self.name != "trxl",
            gate=self.gate if self.name == "gtrxl" else None,
            gate_bias=self.gate_bias,
            gate_order=self.gate_order or GATE_ORDERS[0],
            **self.shared,
        )


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
      gate_bias: b of the gated identity initialization; None for the paper's value.
      gate_order: "stream_first", or "swapped", see `Block`.
    """

    layers: int
    heads: int
    head_width: int
    memory_size: int
    feedforward_width: int
    norm_first: bool = True
    gate: str | None = "gru"
    gate_bias: float | None = None
    gate_order: str = "stream_first"

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
                gate_order=self.gate_order,
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
