"""A stack of recurrent layers whose segment form is parallel, in residual blocks.

A core of this kind is a `RecurrentLayer` and a `StackConfig` that makes it; see `cores/mingru.py`
for a short one.
"""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Inexact

from gtrxl_jax.nn.core import CoreConfig, MemoryCore, require_inputs
from gtrxl_jax.nn.cores.gtrxl import GATES, FeedForward, make_gate
from gtrxl_jax.nn.layers import Dense, LayerNorm
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.validation import choice, number

State = Any


class RecurrentLayer(nn.Module, abc.ABC, kw_only=True):
    """A recurrent layer over a segment; a step is a segment of length 1.

    Its state is a pytree of arrays `[B, ...]`. Recurrences are computed in float32 or wider, and
    states kept so, since 0.999, a common decay, is 1 in bfloat16.

    The block of the stack adds the layer's input to what the layer returns, so that a layer has to
    return its memory above all. Layers whose readout of it may be much smaller or larger than their
    input normalize it, and have no path past it at initialization. Otherwise an agent learns to
    use the present observation, and nothing of an earlier one.

    Attributes:
      config: the settings of the core.
      width: D, the width of the inputs and the outputs.
      dtype: dtype of the activations, see `MemoryCore`.
      param_dtype: dtype of the parameters.
    """

    config: Any
    width: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first step of an episode; requires no parameters."""

    @abc.abstractmethod
    def __call__(
        self, state: State, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[State, Float[Array, "B T D"]]:
        """Return the state after a segment and its outputs; `first_BT` resets the state."""

    @property
    def wide(self) -> Any:
        """The dtype of the recurrence: float32 or wider."""
        return at_least_float32(self.param_dtype)

    def dense(self, features: int, name: str, **settings: Any) -> Dense:
        """Return a linear map to `features`, in the layer's precision."""
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        return Dense(features, name=name, **precision, **settings)

    def normalize(self, y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return the readout of a memory, normalized over the features by a trained layer norm."""
        return LayerNorm(dtype=self.dtype, param_dtype=self.param_dtype, name="norm")(y)

    def record_retention(self, decay: Inexact[Array, "..."]) -> None:
        """Report the mean magnitude of the factors by which a step multiplies the state."""
        if not self.is_initializing():
            self.sow("metrics", "retention", jnp.mean(jnp.abs(decay)).astype(jnp.float32))


def gate_biases(timescale: tuple[float, float], size: int, dtype: Any) -> Float[Array, " N"]:
    """Return biases of gates z = sigmoid(... + b) by which h_t = (1 - z) h_{t-1} + z ... forgets.

    Their time constants 1 / z are spaced logarithmically over the channels (Tallec and Ollivier
    2018, Can recurrent neural networks warp time?): with biases of 0 a step would halve the state.

    Args:
      timescale: the range of 1 / z, in steps; above 1.
      size: N, the number of channels.
      dtype: dtype of the biases.
    """
    return -jnp.log(jnp.geomspace(*timescale, size, dtype=dtype) - 1)


def require_timescale(timescale: tuple[float, float]) -> None:
    """Raise ValueError if no gate z has the time constants 1 / z."""
    if not timescale[0] > 1:
        raise ValueError(f"core.timescale must be above 1, not {timescale}")


@dataclasses.dataclass(frozen=True)
class StackConfig(CoreConfig):
    """Settings of every `StackCore`. The config of a core adds its own, and makes its layers."""

    feedforward_width: int | None = None
    """Hidden width of the feed-forward network, F; `width` if not given."""
    gate: str = choice("gru", (*GATES, "none"))
    """Gate of the blocks, as for gtrxl, or none for residual connections."""
    gate_bias: float | None = number(None, at_least=-math.inf)
    """b of the gated identity initialization; the gate's own if not given (gru 2, the others 1)."""

    @abc.abstractmethod
    def make_layer(self, **shared: Any) -> RecurrentLayer:
        """Create a layer with the attributes that every `RecurrentLayer` has."""

    def make(self) -> "StackCore":
        return StackCore(config=self, **self.shared)


class RecurrentBlock(nn.Module):
    """A recurrent layer R and a feed-forward network f, each with a norm and a gate or residual.

      gate:      Y = g1(E, ReLU(R(LN(E))));    E' = g2(Y, ReLU(f(LN(Y))))
      residual:  Y = E + R(LN(E));             E' = Y + f(LN(Y))

    The former is the block of GTrXL, with R in place of attention.
    """

    config: StackConfig
    width: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.is_gated = self.config.gate != "none"
        gate = self.config.gate if self.is_gated else None, self.config.gate_bias
        self.layer = self.config.make_layer(width=self.width, **precision)
        self.layer_norm = LayerNorm(**precision)
        self.layer_gate = make_gate(*gate, **precision)
        hidden = self.config.feedforward_width or self.width
        self.feedforward = FeedForward(self.width, hidden, **precision)
        self.feedforward_norm = LayerNorm(**precision)
        self.feedforward_gate = make_gate(*gate, **precision)

    def __call__(
        self, state: State, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[State, Float[Array, "B T D"]]:
        """Return the state after the segment and the outputs."""
        state, y_BTD = self.layer(state, self.layer_norm(x_BTD), first_BT)
        x_BTD = self.layer_gate(x_BTD, nn.relu(y_BTD) if self.is_gated else y_BTD)
        y_BTD = self.feedforward(self.feedforward_norm(x_BTD))
        return state, self.feedforward_gate(x_BTD, nn.relu(y_BTD) if self.is_gated else y_BTD)


class StackCore(MemoryCore):
    """A stack of L residual blocks with a recurrent layer each.

    The memory is a tuple of the states of the layers. A step costs the same for any length of the
    episode.

    Attributes:
      config: the config that makes the layers.
    """

    config: StackConfig

    def setup(self) -> None:
        block = nn.remat(RecurrentBlock) if self.remat else RecurrentBlock
        settings = {"dtype": self.dtype, "param_dtype": self.param_dtype, "width": self.width}
        self.blocks = [block(config=self.config, **settings) for _ in range(self.config.layers)]

    def initial_memory(self, batch_size: int) -> tuple[State, ...]:
        """Return the states of a new episode."""
        # Without a parent, since a bound module may create submodules only in its setup.
        layer = self.config.make_layer(width=self.width, param_dtype=self.param_dtype, parent=None)
        return tuple(layer.initial_state(batch_size) for _ in range(self.config.layers))

    def __call__(
        self,
        memory: tuple[State, ...],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[tuple[State, ...], Float[Array, "B T D"]]:
        """Run a segment, as in learning. No gradient flows into the incoming memory."""
        require_inputs(x_BTD, first_BT, len(jax.tree.leaves(memory)[0]), self.width, "B T D")
        return self._run(jax.lax.stop_gradient(memory), x_BTD, first_BT)

    def step(
        self, cache: tuple[State, ...], x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[tuple[State, ...], Float[Array, "B D"]]:
        require_inputs(x_BD, first_B, len(jax.tree.leaves(cache)[0]), self.width, "B D")
        cache, y_BTD = self._run(cache, x_BD[:, None], first_B[:, None])
        return cache, y_BTD[:, 0]

    def _run(
        self, memory: tuple[State, ...], x_BTD: Array, first_BT: Array
    ) -> tuple[tuple[State, ...], Array]:
        x_BTD = x_BTD.astype(self.dtype or x_BTD.dtype)
        states = []
        for block, state in zip(self.blocks, memory, strict=True):
            state, x_BTD = block(state, x_BTD, first_BT)
            states.append(state)
        return tuple(states), x_BTD
