"""A memory core over trajectories: Decision Mamba, and the same with any other core.

Decision Mamba (Ota 2024, arXiv 2403.19925) is a Decision Transformer with Mamba in place of
attention. Here, the core reads the tokens R, o and a of each step one after the other, and predicts
the action at the o token. It sees the whole window at once in learning, so that the gradient
reaches all steps; in acting, it keeps its memory until the episode ends, at a constant cost.

The paper has Mamba-1 and context windows in acting. There are no embeddings of time: a core knows
the order of its inputs.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.core import CoreConfig, MemoryCore
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.nn.sequence.trajectory import (
    ActionHead,
    TrajectoryModel,
    TrajectoryModelConfig,
)
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec


@dataclasses.dataclass(frozen=True)
class CoreModelConfig(TrajectoryModelConfig):
    """Settings of a memory core over trajectories."""

    name: str = "dmamba"
    core: str = "mamba2"
    """A memory core, by a registered name such as mlstm, lstm or gtrxl."""
    core_settings: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Settings of the core as name value pairs, such as heads 4; layers, width and dtype are the
    model's. Lengths such as memory_size count tokens, three for each step."""

    def check(self) -> None:
        super().check()
        if getattr(self._core_config(), "prediction_cost", 0):
            raise ValueError(
                "model.core_settings has prediction_cost, which has no effect, since only online "
                "algorithms add losses of cores: omit it"
            )

    def _core_config(self) -> CoreConfig:
        own: dict[str, Any] = {name: getattr(self, name) for name in ("layers", "width", "dtype")}
        settings: dict[str, Any] = dict(self.core_settings)
        for name in own.keys() & settings.keys():
            raise ValueError(
                f"model.core_settings has {name}, which is a setting of the model: set model.{name}"
            )
        try:
            return core_config(self.core, **own, **settings)
        except (TypeError, ValueError) as error:
            raise type(error)(f"model.core {self.core} with model.core_settings: {error}") from None

    def make(
        self, observation_space: Any, action_space: Any, context: int, param_dtype: Any
    ) -> "CoreModel":
        """Build the model."""
        action = action_spec(action_space)
        return CoreModel(
            self.make_embedding(observation_space, action_space, param_dtype),
            self._core_config().make().clone(param_dtype=param_dtype),
            ActionHead(action, param_dtype),
            self.dropout,
        )


class CoreModel(TrajectoryModel):
    """The model, with the interface of `gtrxl_jax.nn.sequence.model`.

    Attributes:
      embedding: maps steps to tokens.
      core: the memory core, which reads the tokens.
      head: maps the core's outputs to a policy.
      dropout_rate: dropout rate of the tokens and the outputs.
    """

    core: MemoryCore
    head: nn.Module
    dropout_rate: float = 0.0

    def setup(self) -> None:
        self.dropout = nn.Dropout(self.dropout_rate)

    def initial_memory(self, batch_size: int) -> Any:
        """Return the core's initial memory."""
        return self.core.initial_memory(batch_size)

    def features(
        self, memory: Any, segment: Segments, deterministic: bool = True
    ) -> tuple[Any, Float[Array, "B T D"]]:
        """Run a segment; return the memory after it and what the head gets at each step."""
        batch, steps = segment.mask.shape
        x_BSD = self.embedding(segment).reshape(batch, 3 * steps, -1)
        x_BSD = self.dropout(x_BSD, deterministic)
        memory, y_BSD = self.core(memory, x_BSD, jnp.zeros(x_BSD.shape[:2], bool))
        return memory, self.dropout(y_BSD[:, 1::3], deterministic)

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
        tokens_B2D = self.embedding.observe(return_to_go_B, observation)
        state, _ = self.core.step(state, tokens_B2D[:, 0], first_B)
        state, y_BD = self.core.step(state, tokens_B2D[:, 1], jnp.zeros_like(first_B))
        return state, self.head(y_BD)

    def observe_action(self, state: Any, action: Any) -> Any:
        """Return the state after an action `[B]`."""
        token_BD = self.embedding.act(action)
        return self.core.step(state, token_BD, jnp.zeros(len(token_BD), bool))[0]
