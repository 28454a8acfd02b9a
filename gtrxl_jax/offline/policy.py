"""How sequence models act: conditioned on a return."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int, Key

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.offline.attention import SegmentMemory, attention_by_step, memory_by_segment
from gtrxl_jax.ops.distributions import ActionDistribution, choose
from gtrxl_jax.specs import ActionSpec
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class PlayingState:
    """The acting state of B episodes.

    Attributes:
      model: acting state of the model.
      return_to_go: the return that remains to be reached.
      steps: number of actions taken.
    """

    model: Any
    return_to_go: Float[Array, " B"]
    steps: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class SequencePolicy(Policy):
    """A sequence model as a policy; `act` also returns the distribution of the actions.

    The model is conditioned on a target return, from which each reward is subtracted (Chen et al.
    2021, algorithm 1), unless `is_conditioned` is false. Both start anew at the first step of each
    episode.

    Attributes:
      model: a model, see `gtrxl_jax.nn.sequence.model`.
      action: the layout of the actions.
      target_return: the target return.
      actions: "sample" samples actions, "mode" takes the most likely ones.
      restart_every: number of steps after which the return-to-go is reset to the target return
        (RATE, appendix C); 0: never.
      memory_noise: whether to replace memory tokens by noise, see `gtrxl_jax.nn.sequence.rate`.
      is_conditioned: whether the model gets the return-to-go; otherwise it gets 0.
    """

    model: nn.Module
    action: ActionSpec
    target_return: float
    actions: str = "mode"
    restart_every: int = 0
    memory_noise: bool = False
    is_conditioned: bool = True

    @property
    def reads_legal(self) -> bool:
        """False: there are no masks in the data."""
        return False

    def init(self, params: Any, batch_size: int) -> PlayingState:
        return PlayingState(
            model=self._apply(params, batch_size, method="start"),
            return_to_go=jnp.full(batch_size, self.target_return, jnp.float32),
            steps=jnp.zeros(batch_size, jnp.int32),
        )

    def act(
        self, params: Any, state: PlayingState, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[PlayingState, Any, ActionDistribution]:
        """Choose actions; return the new state, the actions, and their distribution."""
        state, distribution = self.decode(params, state, timestep)
        action = choose(distribution, self.actions, key)
        return self.observe(params, state, action), action, distribution

    def decode(
        self, params: Any, state: PlayingState, timestep: TimeStep
    ) -> tuple[PlayingState, ActionDistribution]:
        """Return the state with a time step, and the distribution of its actions.

        Raises:
          ValueError: if they have different numbers of rows.
        """
        rows, given = len(state.steps), timestep.first.shape
        if given != (rows,):
            raise ValueError(
                f"the time step has a `first` of shape {given}, but the state has {rows} rows: "
                "start with as many, by `init` of the policy or a loaded run"
            )
        steps_B = jnp.where(timestep.first, 0, state.steps)
        again_B = timestep.first
        if self.restart_every:
            again_B |= steps_B % self.restart_every == 0
        left_B = state.return_to_go - timestep.reward.astype(jnp.float32)
        asked_B = jnp.where(again_B, jnp.float32(self.target_return), left_B)
        if not self.is_conditioned:
            asked_B = jnp.zeros_like(asked_B)
        seen = asked_B, timestep.observation, timestep.first
        model, distribution = self._apply(params, state.model, *seen, method="decode")
        return PlayingState(model, asked_B, steps_B + 1), distribution

    def observe(self, params: Any, state: PlayingState, action: Any) -> PlayingState:
        """Return the state after an action."""
        # As in the data, the action as it enters the environment.
        entered = self.action.clip(action)
        model = self._apply(params, state.model, entered, method="observe_action")
        return dataclasses.replace(state, model=model)

    def attention(self, params: Any, timesteps: TimeStep) -> Float[np.ndarray, "L H S W"] | None:
        """Return the attention of RATE or ELMUR, see `attention_by_step`."""
        asked = self._returns_to_go(timesteps)
        return attention_by_step(self.model, params, timesteps, asked, self.action)

    def memory(self, params: Any, timesteps: TimeStep) -> SegmentMemory | None:
        """Return the memory of RATE or ELMUR in an episode `[S]`, see `memory_by_segment`."""
        asked = self._returns_to_go(timesteps)
        return memory_by_segment(self.model, params, timesteps, asked, self.action)

    def _returns_to_go(self, timesteps: TimeStep) -> Float[np.ndarray, " S"]:
        """Return the return-to-go that the policy is given at each step of an episode."""
        asked = self.target_return - np.cumsum(timesteps.reward, dtype=np.float64)
        if self.restart_every:
            step = np.arange(len(asked))
            asked += self.target_return - asked[step // self.restart_every * self.restart_every]
        return asked * self.is_conditioned

    def _apply(self, params: Any, *arguments: Any, method: str) -> Any:
        apply: Any = self.model.apply
        # The same noise in all evaluations.
        rngs = {"memory_noise": jax.random.key(0)} if self.memory_noise else {}
        return apply({"params": params}, *arguments, method=method, rngs=rngs)
