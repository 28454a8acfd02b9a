"""Behavior cloning from observations to actions, with and without memory.

Both models have the interface of `gtrxl_jax.nn.sequence.model` and ignore returns-to-go.
"""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.recurrent import RecurrentCore
from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.nn.sequence.model import ModelConfig, SequenceModel
from gtrxl_jax.nn.sequence.trajectory import ActionHead
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec


@dataclasses.dataclass(frozen=True)
class MLPCloningConfig(ModelConfig):
    """Settings of cloning without memory."""

    name: str = "bc-mlp"
    reads_returns: ClassVar[bool] = False

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "MLPCloning":
        """Build the model."""
        return MLPCloning(
            self.make_encoder(observation_space, param_dtype),
            ActionHead(action_spec(action_space), param_dtype),
            (self.width,) * self.layers,
            self.dropout,
            **self.precision(param_dtype),
        )


@dataclasses.dataclass(frozen=True)
class RecurrentCloningConfig(ModelConfig):
    """Settings of cloning with an LSTM."""

    name: str = "bc-lstm"
    reads_returns: ClassVar[bool] = False

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "RecurrentCloning":
        """Build the model."""
        precision = self.precision(param_dtype)
        return RecurrentCloning(
            self.make_encoder(observation_space, param_dtype),
            RecurrentCore("lstm", self.layers, width=self.width, **precision),
            ActionHead(action_spec(action_space), param_dtype),
            self.dropout,
        )


class Cloning(SequenceModel):
    """A model of encoded observations alone."""

    encoder: Any

    def encode(self, observation: Any) -> Array:
        """Encode observations, see `nn.normalizer.update_normalizers`."""
        return self.encoder(observation)

    def observe_action(self, state: Any, action: Any) -> Any:
        """Return the state unchanged: actions are not inputs."""
        return state


class MLPCloning(Cloning):
    """A memoryless policy: encoder, a hidden layer with ReLU for each of `widths`, head."""

    encoder: nn.Module
    head: nn.Module
    widths: tuple[int, ...] = (64, 64)
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.hidden = [Dense(width, **precision) for width in self.widths]
        self.dropout = nn.Dropout(self.dropout_rate)

    def initial_memory(self, batch_size: int) -> tuple[()]:
        """Return an empty memory."""
        return ()

    def features(
        self, memory: tuple[()], segment: Segments, deterministic: bool = True
    ) -> tuple[tuple[()], Float[Array, "B T D"]]:
        """Return the empty memory and what the head gets at each step."""
        return memory, self._hidden(segment.observations, deterministic)

    def start(self, batch_size: int) -> tuple[()]:
        """Start acting; return an empty state."""
        return self.initial_memory(batch_size)

    def decode(
        self,
        state: tuple[()],
        return_to_go_B: Float[Array, " B"],
        observation: Any,
        first_B: Bool[Array, " B"],
    ) -> tuple[tuple[()], ActionDistribution]:
        """Return the state and the policy at a step `[B]`."""
        del return_to_go_B, first_B
        return state, self.head(self._hidden(observation, True))

    def _hidden(self, observation: Any, deterministic: bool) -> Float[Array, "... D"]:
        x = self.encoder(observation)
        for hidden in self.hidden:
            x = self.dropout(nn.relu(hidden(x)), deterministic)
        return x


class RecurrentCloning(Cloning):
    """A recurrent core (LSTM or GRU) over encoded observations."""

    encoder: nn.Module
    core: RecurrentCore
    head: nn.Module
    dropout_rate: float = 0.0

    def setup(self) -> None:
        precision: dict[str, Any] = {
            "dtype": self.core.dtype,
            "param_dtype": self.core.param_dtype,
        }
        self.projection = Dense(self.core.width, **precision)
        self.dropout = nn.Dropout(self.dropout_rate)

    def initial_memory(self, batch_size: int) -> Any:
        """Return the core's initial memory."""
        return self.core.initial_memory(batch_size)

    def features(
        self, memory: Any, segment: Segments, deterministic: bool = True
    ) -> tuple[Any, Float[Array, "B T D"]]:
        """Run a segment; return the memory after it and what the head gets at each step."""
        x_BTD = self.dropout(self._project(segment.observations), deterministic)
        memory, y_BTD = self.core(memory, x_BTD, jnp.zeros(segment.mask.shape, bool))
        return memory, self.dropout(y_BTD, deterministic)

    def start(self, batch_size: int) -> Any:
        """Start acting from the initial memory."""
        return self.core.start(self.initial_memory(batch_size))

    def decode(
        self,
        state: Any,
        return_to_go_B: Float[Array, " B"],
        observation: Any,
        first_B: Bool[Array, " B"],
    ) -> tuple[Any, ActionDistribution]:
        """Return the state and the policy at a step `[B]`, with a new memory where `first_B`."""
        del return_to_go_B
        state, y_BD = self.core.step(state, self._project(observation), first_B)
        return state, self.head(y_BD)

    def _project(self, observation: Any) -> Float[Array, "... D"]:
        return self.projection(self.encoder(observation))
