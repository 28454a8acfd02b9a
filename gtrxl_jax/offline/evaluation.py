"""Play episodes with a model of trajectories."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int, Key, Shaped

from gtrxl_jax.acting.evaluation import make_evaluate, summarise
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.ops.distributions import POLICIES, ActionDistribution
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

Play = Callable[[Any, Key[Array, ""]], dict[str, Shaped[Array, " E"]]]


@struct.dataclass
class PlayingState:
    """The acting state of B episodes.

    Attributes:
      model: acting state of the model.
      return_to_go: `[B]`, the return that remains to be reached.
      steps: int, number of actions taken.
    """

    model: Any
    return_to_go: Float[Array, " B"]
    steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class SequencePlayer:
    """A model of trajectories as a `gtrxl_jax.acting.evaluation.Player`.

    The model is conditioned on a target return, from which each reward is subtracted (Chen et al.
    2021, algorithm 1).

    Attributes:
      model: a model of `gtrxl_jax.nn.sequence.registry`.
      target_return: the target return.
      restart_every: number of steps after which the return-to-go is reset to the target return
        (RATE, appendix C); 0: never.
      memory_noise: whether to replace memory tokens by noise, see `gtrxl_jax.nn.sequence.rate`.
    """

    model: nn.Module
    target_return: float
    restart_every: int = 0
    memory_noise: bool = False

    def start(self, params: Any, batch_size: int) -> PlayingState:
        """Return the acting state before the first time step."""
        return PlayingState(
            model=self._apply(params, -1, batch_size, method="start"),
            return_to_go=jnp.full(batch_size, self.target_return, jnp.float32),
            steps=jnp.zeros((), jnp.int32),
        )

    def step(
        self, params: Any, state: PlayingState, timestep: TimeStep
    ) -> tuple[PlayingState, ActionDistribution]:
        """Return the new acting state and the model's policy at a time step `[B]`."""
        asked_B = state.return_to_go - timestep.reward.astype(jnp.float32)
        if self.restart_every:
            again = state.steps % self.restart_every == 0
            asked_B = jnp.where(again, jnp.float32(self.target_return), asked_B)
        model, policy = self._apply(
            params, state.steps, state.model, asked_B, timestep.observation, method="decode"
        )
        return PlayingState(model, asked_B, state.steps), policy

    def observe_action(self, params: Any, state: PlayingState, action: Any) -> PlayingState:
        """Add the action's token to the model's acting state."""
        model = self._apply(params, state.steps, state.model, action, method="observe_action")
        return PlayingState(model, state.return_to_go, state.steps + 1)

    def _apply(self, params: Any, step: Any, *arguments: Any, method: str) -> Any:
        apply: Any = self.model.apply
        rngs = {}
        if self.memory_noise:
            # The noise differs between segments, but not between evaluations.
            rngs["memory_noise"] = jax.random.fold_in(jax.random.key(0), step + 1)
        return apply({"params": params}, *arguments, method=method, rngs=rngs)


def make_play(
    player: SequencePlayer, streams: Mapping[str, Stream], episodes: int, policy: str
) -> Play:
    """Build the function that plays `episodes` complete episodes in each of several environments.

    Args:
      player: the player; the function takes the parameters of its network.
      streams: environments by name. They differ only in their parameters and share one program.
      episodes: E, the number of episodes in each environment.
      policy: "mode" takes the most likely action, "sample" samples one.

    Returns:
      A pure function of (params, key) that returns scores `[E]`: `return`, `length` and, if the
      environment reports it, `success`, with the environment's name if not empty: `success/90`.

    Raises:
      ValueError: if the policy is unknown.
    """
    check_choice("evaluation.policy", policy, POLICIES)
    first = next(iter(streams.values()))
    # Environments of all lengths share one program, with their parameters as its inputs.
    env_params = [jax.tree.map(jnp.asarray, stream.params) for stream in streams.values()]
    env_params_N = jax.tree.map(lambda *leaves: jnp.stack(leaves), *env_params)

    def play(params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        def one(env_params: Any) -> dict[str, Shaped[Array, " E"]]:
            stream = dataclasses.replace(first, params=env_params)
            return summarise(make_evaluate(player, stream, episodes, policy)(params, key))

        scores = jax.lax.map(one, env_params_N)
        return {
            f"{score}/{name}" if name else score: value_NE[n]
            for n, name in enumerate(streams)
            for score, value_NE in scores.items()
        }

    return play
