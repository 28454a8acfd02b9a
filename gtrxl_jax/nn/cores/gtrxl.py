"""GTrXL, the gated Transformer-XL of Parisotto et al. 2019, and TrXL and TrXL-I.

From the bottom up: the gates (section 3.2), the block (section 3), and the stack with its memory.
The block and the stack have two forms: `__call__` runs a segment, as in learning; `start`, `step`
and `finish` act one step at a time on a cache. Attention (appendix C) is in `nn.layers`, as a
module, and in `ops.attention`, as functions of arrays.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.nn.core import CoreConfig, MemoryCore, require_inputs, resolve_head_width
from gtrxl_jax.nn.layers import (
    UNROLLED_STEPS,
    AttentionCache,
    Dense,
    KeyValue,
    LayerNorm,
    Layers,
    RelativeAttention,
    cast_kernels,
    map_layers,
    run_layers,
    square_products,
    stack_layers,
    stream_dtype,
    unstack_layers,
)
from gtrxl_jax.ops import attention as ops
from gtrxl_jax.validation import choice, number, require_choice

REPORTS = ("metrics", "losses", "attention")
"""The collections to which blocks may report."""

GATE_ORDERS = ("stream_first", "swapped")
"""The orders of the arguments of the second gate, see `Block`."""


class Gate(nn.Module):
    """A gate g(x, y) of the stream x and the output y of a submodule, each `[..., D]`.

    The bias b is a trained vector with one entry per feature. As b grows, each gate that has one
    approaches the identity in x: the gated identity initialization, b = 2 for GRU and 1 for the
    others in the paper. The parameters of a gate are b and its matrices of width x width: 1, 1, 1,
    2 and 6 in the order of `GATES`.

    Each gate reports its mean opening as a metric: the sigmoid that scales y (for the Input gate,
    the one that scales x).

    Attributes:
      initial_bias: initial value of all elements of b, which sets how close to the identity the
        gate starts.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    initial_bias: float = 1.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def matrices(self, x: Float[Array, "... D"], count: int, name: str) -> list[Array]:
        return square_products(x, count, name, dtype=self.dtype, param_dtype=self.param_dtype)

    def trained_bias(self, like: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return b with the dtype and rank of `like`."""
        width = like.shape[-1]
        initial = nn.initializers.constant(self.initial_bias)
        bias_D = self.param("bias", initial, (width,), self.param_dtype)
        return bias_D.astype(like.dtype).reshape((1,) * (like.ndim - 1) + (width,))

    def record(self, opening: Float[Array, "... D"]) -> None:
        if not self.is_initializing():
            self.sow("metrics", "opening", jnp.mean(opening.astype(jnp.float32)))


class Residual(nn.Module):
    """No gate: x + y, the residual connection of TrXL and TrXL-I."""

    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return x + y


class InputGate(Gate):
    """sigmoid(W x) * x + y, without a bias."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        keep = nn.sigmoid(w_x)
        self.record(keep)
        return keep * x + y


class OutputGate(Gate):
    """x + sigmoid(W x - b) * y."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        opening = nn.sigmoid(w_x - self.trained_bias(w_x))
        self.record(opening)
        return x + opening * y


class HighwayGate(Gate):
    """s * x + (1 - s) * y with s = sigmoid(W x + b)."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        keep = nn.sigmoid(w_x + self.trained_bias(w_x))
        self.record(1 - keep)
        return keep * x + (1 - keep) * y


class SigTanhGate(Gate):
    """x + sigmoid(W y - b) * tanh(U y)."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        w_y, u_y = self.matrices(y, 2, "y")
        opening = nn.sigmoid(w_y - self.trained_bias(w_y))
        self.record(opening)
        return x + opening * jnp.tanh(u_y)


class GRUGate(Gate):
    """(1 - z) * x + z * h, a GRU in depth whose state is the stream.

    r = sigmoid(W_r y + U_r x);  z = sigmoid(W_z y + U_z x - b);  h = tanh(W_g y + U_g (r * x)).
    """

    initial_bias: float = 2.0

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        w_r, w_z, w_g = self.matrices(y, 3, "y")
        u_r, u_z = self.matrices(x, 2, "x")
        reset = nn.sigmoid(w_r + u_r)
        opening = nn.sigmoid(w_z + u_z - self.trained_bias(w_z))
        (u_g,) = self.matrices(reset * x, 1, "reset_x")
        self.record(opening)
        return (1 - opening) * x + opening * jnp.tanh(w_g + u_g)


GATES: dict[str, type[Gate]] = {
    "input": InputGate,
    "output": OutputGate,
    "highway": HighwayGate,
    "sigtanh": SigTanhGate,
    "gru": GRUGate,
}


def make_gate(name: str | None, bias: float | None, dtype: Any, param_dtype: Any) -> nn.Module:
    """Return the gate called `name` (None: a `Residual`); `bias` None selects its default."""
    if name is None:
        return Residual()
    gate = GATES[require_choice("gate", name, GATES)]
    return gate(gate.initial_bias if bias is None else bias, dtype, param_dtype)


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
        settings = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "result_dtype": x.dtype,
        }
        x = Dense(self.feedforward_width, **settings)(x)
        x = nn.Dropout(self.dropout_rate)(nn.relu(x), deterministic)
        return Dense(self.width, **settings)(x)


class Block(nn.Module):
    """A layer of attention and a feed-forward network, each with a norm and a gate or residual.

    This is all of it but attention, which subclasses set up: `RelativeBlock` here, and RATE's
    `AbsorbedBlock`.

    With the input E and the gates g1 and g2:

      norm first (TrXL-I, GTrXL):  Y = g1(E, ReLU(Attn(LN(Mem, E))));  E' = g2(Y, ReLU(f(LN(Y))))
      norm last (TrXL):            Y = LN(E + Attn(Mem, E));           E' = LN(Y + f(Y))

    Without a feed-forward network E' = Y.

    With the gate order "swapped", a norm-first block with gates has

      E' = g2(f(LN(Y)), ReLU(Y))

    This is a fault, kept only to reproduce the results of implementations that have it, such as
    POBAX (Tao et al. 2025, `models/transformerXL.py`). At the initialization near the identity in
    the first argument, such a block passes on f(LN(Y)) and hardly any of its stream, so that little
    of a layer's input reaches the next one directly.

    Attributes:
      width: D, the width of the stream.
      heads: H, the number of attention heads.
      head_width: K, the width of a head.
      feedforward_width: F, the hidden width of the feed-forward network; 0 for none.
      norm_first: whether norms precede attention and the feed-forward network.
      gate: the name of the gates, or None for residual connections.
      gate_bias: b of the gated identity initialization; None for the paper's value.
      dropout_rate: dropout rate of the outputs of Attn and f, and of f's hidden units.
      gate_order: "stream_first", the paper's, or "swapped".
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    head_width: int
    feedforward_width: int
    norm_first: bool
    gate: str | None
    gate_bias: float | None
    dropout_rate: float = 0.0
    gate_order: str = "stream_first"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.attention_norm = LayerNorm(param_dtype=self.param_dtype)
        self.attention_gate = make_gate(self.gate, self.gate_bias, **precision)
        self.dropout = nn.Dropout(self.dropout_rate)
        if self.feedforward_width:
            self.feedforward = FeedForward(
                self.width, self.feedforward_width, self.dropout_rate, **precision
            )
            self.feedforward_norm = LayerNorm(param_dtype=self.param_dtype)
            self.feedforward_gate = make_gate(self.gate, self.gate_bias, **precision)

    def attention_input(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return what attention gets of the stream: LN(x), or x if the norm is last."""
        return self.attention_norm(x) if self.norm_first else x

    def after_attention(
        self,
        x: Float[Array, "... D"],
        attended: Float[Array, "... D"],
        deterministic: bool = True,
    ) -> Float[Array, "... D"]:
        """Apply all that follows attention, a function of each position by itself."""
        attended = self.dropout(attended.astype(x.dtype), deterministic)
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


class RelativeBlock(Block):
    """The block of GTrXL, TrXL-I and TrXL; for `recency`, see `nn.layers.AttentionLayer`."""

    recency: float = 0.0

    def setup(self) -> None:
        super().setup()
        self.attention = RelativeAttention(
            self.width, self.heads, self.head_width, self.recency, self.dtype, self.param_dtype
        )

    def __call__(
        self,
        memory_BMD: Float[Array, "B M D"],
        x_BTD: Float[Array, "B T D"],
        mask_BTS: Bool[Array, "B T S"],
    ) -> Float[Array, "B T D"]:
        """Run a segment; no gradient flows into the memory."""
        memory_BMD = jax.lax.stop_gradient(memory_BMD)
        stream_BSD = jnp.concatenate([memory_BMD, x_BTD.astype(memory_BMD.dtype)], axis=1)
        stream_BSD = stream_BSD.astype(x_BTD.dtype)
        attended_BTD = self.attention(self.attention_input(stream_BSD), mask_BTS)
        return self.after_attention(x_BTD, attended_BTD)

    def start(self, memory_BMD: Float[Array, "B M D"]) -> AttentionCache:
        """Return the projections of the memory, with which `step` acts."""
        return self.attention.start(self.attention_input(memory_BMD))

    def step(
        self,
        cache: AttentionCache,
        x_BD: Float[Array, "B D"],
        slot: Int[Array, ""],
        mask_BN: Bool[Array, "B N"],
    ) -> tuple[KeyValue, Float[Array, "B D"]]:
        """Run one step; return what to write to `slot` of the cache, and the output."""
        own, attended_BD = self.attention.step(cache, self.attention_input(x_BD), slot, mask_BN)
        return own, self.after_attention(x_BD, attended_BD)


@dataclasses.dataclass(frozen=True)
class GTrXLConfig(CoreConfig):
    """Settings of GTrXL, TrXL-I and TrXL."""

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
    only to reproduce their results; see `Block`."""

    recency: float = number(0.0, at_least=0)
    """How far attention prefers recent steps at first: weights fall as the distance to this power
    in the last head, to half of it in the one before, and so on, and not in the first. 0, as in the
    paper: not at all, so that among hundreds of memories the last few hardly count. Try 2 where
    those matter too."""

    def check(self) -> None:
        """Raise ValueError where heads do not divide the width, or settings do not fit."""
        resolve_head_width(self)
        if self.recency and self.width == 1:
            raise ValueError(
                f"core.recency {self.recency:g} needs positions of several features, but "
                "core.width is 1: raise it, or leave core.recency at 0"
            )
        if self.recency and self.heads == 1:
            raise ValueError(
                f"core.recency {self.recency:g} has no effect on the first of core.heads, which is "
                "the only one: use at least 2 heads, or leave it at 0"
            )
        if self.name == "gtrxl":
            return
        # Defaults are valid, so that cores can be swapped by name.
        for field in ("gate", "gate_bias", "gate_order"):
            value, default = getattr(self, field), getattr(GTrXLConfig, field)
            if value != default:
                raise ValueError(
                    f"core.{field} {value} has no effect, since {self.name} has no gates: use "
                    f"core.name gtrxl, or leave it at {default}"
                )

    def make(self) -> "GTrXLCore":
        return GTrXLCore(config=self, **self.shared)


@struct.dataclass
class GTrXLMemory:
    """The inputs of each layer at the last M steps.

    Attributes:
      inputs: the inputs, oldest step first.
      length: the number of most recent slots that belong to the current episode. Older slots have
        no influence, whatever they hold.
    """

    inputs: Float[Array, "B L M D"]
    length: Int[Array, " B"]


@struct.dataclass
class LayerCache:
    """What a layer has cached.

    Attributes:
      attention: its projected keys, values and positions.
      new_inputs: its inputs since the start, in a ring buffer of R slots.
    """

    attention: AttentionCache
    new_inputs: Float[Array, "... R D"]


@struct.dataclass
class GTrXLCache:
    """The state of acting between `start` and `finish`.

    Attributes:
      memory: the memory that acting started from, with `length` kept up to date.
      params: the parameters of each layer, in the precision in which they are used.
      layers: a `LayerCache` for each layer.
      num_steps: the number of steps since the start.
    """

    memory: GTrXLMemory
    params: Layers
    layers: Layers
    num_steps: Int[Array, ""]


class GTrXLCore(MemoryCore):
    """A stack of L blocks with a memory of M steps each.

    The parameters of all blocks are in one tree, "blocks", of arrays with a leading axis L.

    Attributes:
      config: the settings of the blocks and of the memory.
    """

    config: GTrXLConfig

    def setup(self) -> None:
        # Given parameters, `param` would trace their initialization to compare shapes, each time
        # that the core is applied: a tenth of the time to trace a program.
        if not self.has_variable("params", "blocks"):
            self.blocks = self.param("blocks", self._init_blocks)
            return
        self.blocks = self.get_variable("params", "blocks")
        layers = jax.tree.leaves(self.blocks)[0].shape[0]
        if layers != self.config.layers:
            raise ValueError(f"layers is {self.config.layers}, the parameters are of {layers}")

    @property
    def _block(self) -> RelativeBlock:
        """A block without parameters, which are given to its methods."""
        config = self.config
        return RelativeBlock(
            width=self.width,
            heads=config.heads,
            head_width=resolve_head_width(config),
            feedforward_width=config.feedforward_width or self.width,
            norm_first=config.name != "trxl",
            gate=config.gate if config.name == "gtrxl" else None,
            gate_bias=config.gate_bias,
            gate_order=config.gate_order or GATE_ORDERS[0],
            recency=config.recency,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            parent=None,
        )

    def _init_blocks(self, key: Key[Array, ""]) -> Any:
        """Return the parameters `[L, ...]` of the blocks, each initialized with its own key."""
        step_11D = jnp.zeros((1, 1, self.width), self.dtype or self.param_dtype)
        mask_112 = jnp.ones((1, 1, 2), bool)

        def init(key: Key[Array, ""]) -> Any:
            return self._block.init(key, step_11D, step_11D, mask_112)["params"]

        return jax.vmap(init)(jax.random.split(key, self.config.layers))

    def initial_memory(self, batch_size: int) -> GTrXLMemory:
        """Return an empty memory for `batch_size` rows."""
        shape = (batch_size, self.config.layers, self.config.memory_size, self.width)
        return GTrXLMemory(
            inputs=jnp.zeros(shape, self.dtype or self.param_dtype),
            length=jnp.zeros(batch_size, jnp.int32),
        )

    def __call__(
        self,
        memory: GTrXLMemory,
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[GTrXLMemory, Float[Array, "B T D"]]:
        """Run a segment, as in learning. No gradient flows into the incoming memory."""
        self._check_memory(memory, "convert a cache with `finish`")
        require_inputs(x_BTD, first_BT, memory.length.shape[0], self.width, "B T D")
        num_steps = x_BTD.shape[1]
        mask_BTS = ops.segment_mask(first_BT, memory.length, self.config.memory_size)
        block, collections = self._block, self._reported_collections()

        def run(x_BTD: Array, params: Any, memory_BMD: Array) -> Any:
            stream_BSD = jnp.concatenate([memory_BMD, x_BTD.astype(memory_BMD.dtype)], axis=1)
            newest_BMD = jax.lax.stop_gradient(stream_BSD[:, num_steps:])
            x_BTD, reports = block.apply(
                {"params": params}, memory_BMD, x_BTD, mask_BTS, mutable=collections
            )
            return x_BTD, (newest_BMD, reports)

        dtype = self.dtype or x_BTD.dtype
        x_BTD = x_BTD.astype(stream_dtype(dtype))
        inputs = jnp.moveaxis(memory.inputs, 1, 0)
        params = cast_kernels(self.blocks, self.dtype)
        x_BTD, results = run_layers(run, x_BTD, params, inputs, remat=self.remat)
        self._report(map_layers(lambda result: result[1], results))
        newest = stack_layers(map_layers(lambda result: result[0], results), axis=1)
        length_B = ops.length_after(first_BT, memory.length, self.config.memory_size)
        return GTrXLMemory(inputs=newest, length=length_B), x_BTD.astype(dtype)

    def _check_memory(self, memory: Any, remedy: str) -> None:
        """Check the type and the sizes of a memory, which costs nothing once compiled.

        Raises:
          TypeError: if it is not a `GTrXLMemory`; for a cache, the message ends with `remedy`.
          ValueError: if it is of a core with other layers, memory size or width.
        """
        if not isinstance(memory, GTrXLCache):  # such as a dict, restored without its type
            remedy = "start with the core's own `initial_memory`, and restore a saved one into it"
        require_kind("memory", memory, GTrXLMemory, remedy)
        sizes = (self.config.layers, self.config.memory_size, self.width)
        if memory.inputs.shape[1:] != sizes:
            raise ValueError(
                f"memory has layers, memory_size and width {memory.inputs.shape[1:]}, but the core "
                f"has {sizes}: start with the core's own `initial_memory`"
            )

    def _reported_collections(self) -> list[str]:
        if self.is_initializing():
            return []
        return [name for name in REPORTS if self.is_mutable_collection(name)]

    def _report(self, reports: Layers) -> None:
        """Report what each block has: "blocks_0/attention_gate/opening"."""
        for layer, collections in enumerate(unstack_layers(reports)):
            for path, value in jax.tree.leaves_with_path(collections):
                collection, *names = (key.key for key in path[:-1])
                self.sow(collection, "/".join([f"blocks_{layer}", *names]), value)

    def start(self, memory: GTrXLMemory, num_steps: int | None = None) -> GTrXLCache:
        """Start acting: project keys, values and positions once, for fixed parameters.

        Args:
          memory: the memory to start from.
          num_steps: the maximum number of steps before `finish`; None for any number. The cache
            holds min(num_steps, M) inputs of each layer, M for None. If more steps are taken than
            it can hold for `finish`, the returned memory is NaN.
        """
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, or None for any number: {num_steps}")
        self._check_memory(memory, "`start` is called once, before any step")
        ring = self.config.memory_size
        if num_steps is not None:
            ring = min(num_steps, ring)
        memory, block = jax.lax.stop_gradient(memory), self._block

        def project(_: None, params: Any, memory_BMD: Array) -> Any:
            attention: Any = block.apply({"params": params}, memory_BMD, method="start")
            return None, LayerCache(attention, jnp.zeros_like(memory_BMD[:, :ring]))

        params = cast_kernels(self.blocks, self.dtype)
        _, layers = run_layers(project, None, params, jnp.moveaxis(memory.inputs, 1, 0))
        if isinstance(layers, list) or self.config.layers <= UNROLLED_STEPS:
            params = unstack_layers(params)
        return GTrXLCache(
            memory=memory,
            params=params,
            layers=layers,
            num_steps=jnp.zeros((), jnp.int32),
        )

    def step(
        self, cache: GTrXLCache, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[GTrXLCache, Float[Array, "B D"]]:
        """Run one step of acting: equal to the segment form, at the cost of one query per layer."""
        require_kind("cache", cache, GTrXLCache, "`start` makes a cache from a memory")
        require_inputs(x_BD, first_B, cache.memory.length.shape[0], self.width, "B D")
        memory_size, block = self.config.memory_size, self._block
        collections = self._reported_collections()
        ring_slots = memory_size + 1
        slot = (cache.num_steps + memory_size) % ring_slots
        length_B = jnp.where(first_B, 0, cache.memory.length)
        mask_BN = ops.ring_ages(slot, ring_slots)[None, :] <= length_B[:, None]

        def run(x_BD: Array, params: Any, layer: LayerCache) -> Any:
            (own, y_BD), reports = block.apply(
                {"params": params},
                layer.attention,
                x_BD,
                slot,
                mask_BN,
                method="step",
                mutable=collections,
            )
            return y_BD, ((own, x_BD), reports)

        def write(layer: LayerCache, new: Any) -> LayerCache:
            own, x_BD = new
            newest = cache.num_steps % layer.new_inputs.shape[-2]
            return LayerCache(
                attention=layer.attention.write(own, slot),
                new_inputs=ops.write_slot(layer.new_inputs, x_BD, newest),
            )

        dtype = self.dtype or x_BD.dtype
        x_BD = x_BD.astype(stream_dtype(dtype))
        x_BD, results = run_layers(run, x_BD, cache.params, cache.layers)
        self._report(map_layers(lambda result: result[1], results))
        layers = map_layers(write, cache.layers, map_layers(lambda result: result[0], results))
        length_B = jnp.minimum(length_B + 1, memory_size)
        cache = dataclasses.replace(
            cache,
            memory=dataclasses.replace(cache.memory, length=length_B),
            layers=layers,
            num_steps=cache.num_steps + 1,
        )
        return cache, x_BD.astype(dtype)

    def finish(self, cache: GTrXLCache) -> GTrXLMemory:
        """Finish acting; return the memory that the segment form would have returned."""
        require_kind("cache", cache, GTrXLCache, "`start` makes a cache from a memory")
        memory_size = self.config.memory_size
        # Indices since the start of the steps in the memory; negative ones precede the start.
        step_M = cache.num_steps - memory_size + jnp.arange(memory_size, dtype=jnp.int32)
        new_BLRD = stack_layers(map_layers(lambda layer: layer.new_inputs, cache.layers), axis=1)
        ring = new_BLRD.shape[2]
        source_M = jnp.where(step_M < 0, step_M + memory_size, step_M % ring + memory_size)
        both = jnp.concatenate([cache.memory.inputs, new_BLRD], axis=2)
        inputs = jnp.take(both, source_M, axis=2)
        if ring < memory_size:
            inputs = jnp.where(cache.num_steps > ring, jnp.nan, inputs)
        return dataclasses.replace(cache.memory, inputs=inputs)


def require_kind(name: str, value: Any, kind: type, remedy: str) -> None:
    """Raise unless a memory or a cache is of its type, so that the two are not confused.

    Raises:
      TypeError: if `value` is not of type `kind`; the message ends with `remedy`.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}: {remedy}")
