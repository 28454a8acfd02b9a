"""Playing episodes with a model of trajectories."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int, Key, Shaped

from gtrxl_jax.acting.evaluation import POLICIES, make_evaluate, summarise
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

Play = Callable[[Any, Key[Array, ""]], dict[str, Shaped[Array, " E"]]]


@struct.dataclass
class PlayingState:
    """Where B episodes stand.

    Attributes:
      model: the model's state of acting.
      return_to_go: `[B]`, what it is still asked to reach.
      steps: int, actions taken.
    """

    model: Any
    return_to_go: Float[Array, " B"]
    steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class SequencePlayer:
    """A model of trajectories as a `gtrxl_jax.acting.evaluation.Player`.

    It is asked for a return, from which every reward is taken (Chen et al. 2021, algorithm 1).

    Attributes:
      model: which, of `gtrxl_jax.nn.sequence.registry`.
      target_return: what to ask for.
      restart_every: ask for all of it again after so many steps (RATE, appendix C); 0: never.
      memory_noise: put noise in the place of memory tokens, see `gtrxl_jax.nn.sequence.rate`.
    """

    model: nn.Module
    target_return: float
    restart_every: int = 0
    memory_noise: bool = False

    def start(self, params: Any, batch_size: int) -> PlayingState:
        """Before the first time step."""
        return PlayingState(
            model=self._apply(params, -1, batch_size, method="start"),
            return_to_go=jnp.full(batch_size, self.target_return, jnp.float32),
            steps=jnp.zeros((), jnp.int32),
        )

    def step(
        self, params: Any, state: PlayingState, timestep: TimeStep
    ) -> tuple[PlayingState, ActionDistribution]:
        """The model's policy at a time step `[B]`."""
        asked_B = state.return_to_go - timestep.reward.astype(jnp.float32)
        if self.restart_every:
            again = state.steps % self.restart_every == 0
            asked_B = jnp.where(again, jnp.float32(self.target_return), asked_B)
        model, policy = self._apply(
            params, state.steps, state.model, asked_B, timestep.observation, method="decode"
        )
        return PlayingState(model, asked_B, state.steps), policy

    def observe_action(self, params: Any, state: PlayingState, action: Any) -> PlayingState:
        """The action becomes a token."""
        model = self._apply(params, state.steps, state.model, action, method="observe_action")
        return PlayingState(model, state.return_to_go, state.steps + 1)

    def _apply(self, params: Any, step: Any, *arguments: Any, method: str) -> Any:
        apply: Any = self.model.apply
        rngs = {}
        if self.memory_noise:
            # Other noise after every segment; the same in every evaluation.
            rngs["memory_noise"] = jax.random.fold_in(jax.random.key(0), step + 1)
        return apply({"params": params}, *arguments, method=method, rngs=rngs)


def make_play(
    player: SequencePlayer, streams: Mapping[str, Stream], episodes: int, policy: str
) -> Play:
    """Build the function that plays `episodes` whole episodes in each of several environments.

    Args:
      player: who plays; the function is given the network's parameters.
      streams: by name; they differ in their parameters alone, so that one program serves for all.
      episodes: E, of each.
      policy: "mode" takes the likeliest action, "sample" draws one.

    Returns:
      A pure function of (params, key) to scores `[E]`: `return`, `length` and, where the
      environment tells, `success`, with the environment's name if it has one: `success/90`.

    Raises:
      ValueError: an unknown policy.
    """
    check_choice("evaluation.policy", policy, POLICIES)
    first = next(iter(streams.values()))
    # Arguments of the program: environments of all lengths share what is compiled.
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
