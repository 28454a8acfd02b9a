"""Play episodes with a model of trajectories."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int, Key, Shaped

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.offline.attention import attention_by_step
from gtrxl_jax.ops.distributions import ActionDistribution, choose
from gtrxl_jax.specs import ActionSpec
from gtrxl_jax.timestep import TimeStep

Play = Callable[[Any, Key[Array, ""]], dict[str, Shaped[Array, " E"]]]


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
    """A model of trajectories as a policy; `act` also returns the distribution of the actions.

    The model is conditioned on a target return, from which each reward is subtracted (Chen et al.
    2021, algorithm 1). Both start anew at the first step of each episode.

    Attributes:
      model: a model of `gtrxl_jax.nn.sequence.registry`.
      action: the layout of the actions.
      target_return: the target return.
      actions: "sample" samples actions, "mode" takes the most likely ones.
      restart_every: number of steps after which the return-to-go is reset to the target return
        (RATE, appendix C); 0: never.
      memory_noise: whether to replace memory tokens by noise, see `gtrxl_jax.nn.sequence.rate`.
    """

    model: nn.Module
    action: ActionSpec
    target_return: float
    actions: str = "mode"
    restart_every: int = 0
    memory_noise: bool = False

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
        steps_B = jnp.where(timestep.first, 0, state.steps)
        again_B = timestep.first
        if self.restart_every:
            again_B |= steps_B % self.restart_every == 0
        left_B = state.return_to_go - timestep.reward.astype(jnp.float32)
        asked_B = jnp.where(again_B, jnp.float32(self.target_return), left_B)
        seen = asked_B, timestep.observation, timestep.first
        model, distribution = self._apply(params, state.model, *seen, method="decode")
        action = choose(distribution, self.actions, key)
        # As in the data, the action as it enters the environment.
        entered = self.action.clip(action)
        model = self._apply(params, model, entered, method="observe_action")
        return PlayingState(model, asked_B, steps_B + 1), action, distribution

    def attention(self, params: Any, timesteps: TimeStep) -> Float[np.ndarray, "L H S W"] | None:
        """Return the attention of RATE, see `attention_by_step`."""
        asked = self.target_return - np.cumsum(timesteps.reward, dtype=np.float64)
        if self.restart_every:
            step = np.arange(len(asked))
            asked += self.target_return - asked[step // self.restart_every * self.restart_every]
        return attention_by_step(self.model, params, timesteps, asked, self.action)

    def _apply(self, params: Any, *arguments: Any, method: str) -> Any:
        apply: Any = self.model.apply
        # The same noise in all evaluations.
        rngs = {"memory_noise": jax.random.key(0)} if self.memory_noise else {}
        return apply({"params": params}, *arguments, method=method, rngs=rngs)


def make_play(policy: Policy, streams: Mapping[str, Stream], episodes: int) -> Play:
    """Build the function that plays `episodes` complete episodes in each of several environments.

    Args:
      policy: the policy; the function takes the parameters of its network.
      streams: environments by name. They differ only in their parameters and share one program.
      episodes: E, the number of episodes in each environment.

    Returns:
      A pure function of (params, key) that returns scores `[E]`: `return`, `length` and, if the
      environment reports it, `success`, with the environment's name if not empty: `success/90`.
    """
    first = next(iter(streams.values()))

    def play(params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        def one(env_params: Any) -> dict[str, Shaped[Array, " E"]]:
            stream = dataclasses.replace(first, params=env_params)
            evaluate = make_evaluate(policy, stream, episodes, first.observation_space)
            return summarize(evaluate(params, key))

        if len(streams) == 1:
            # As constants, since the spaces of an environment may depend on its parameters.
            scores = jax.tree.map(lambda value_E: value_E[None], one(first.params))
        else:
            # Environments of all lengths share one program, with their parameters as its inputs.
            env_params = [jax.tree.map(jnp.asarray, stream.params) for stream in streams.values()]
            scores = jax.lax.map(one, jax.tree.map(lambda *leaves: jnp.stack(leaves), *env_params))
        return {
            f"{score}/{name}" if name else score: value_NE[n]
            for n, name in enumerate(streams)
            for score, value_NE in scores.items()
        }

    return play
