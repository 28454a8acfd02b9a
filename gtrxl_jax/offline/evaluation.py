"""Play episodes in environments of several lengths."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, Shaped

from gtrxl_jax.acting.evaluation import AnyTask, make_evaluate, summarize
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.envs.host.stream import HostStream

Play = Callable[[Any, Key[Array, ""]], dict[str, Shaped[Array, " E"]]]


def make_play(policy: Policy, streams: Mapping[str, AnyTask], episodes: int) -> Play:
    """Build the function that plays `episodes` complete episodes in each of several environments.

    Args:
      policy: the policy; the function takes the parameters of its network.
      streams: environments by name. They differ only in their parameters and share one program.
      episodes: E, the number of episodes in each environment.

    Returns:
      A function of (params, key) that returns scores `[E]`, see `EpisodeStats.scores`, with the
      environment's name if not empty: `success/90`. It is pure unless the environment is on the
      host.
    """
    first: Any = next(iter(streams.values()))
    if isinstance(first, HostStream):
        evaluate_on_host = make_evaluate(policy, first, episodes)
        return lambda params, key: summarize(evaluate_on_host(params, key))

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
            env_params = [jax.tree.map(jnp.asarray, one.params) for one in streams.values()]
            scores = jax.lax.map(one, jax.tree.map(lambda *leaves: jnp.stack(leaves), *env_params))
        return {
            f"{score}/{name}" if name else score: value_NE[n]
            for n, name in enumerate(streams)
            for score, value_NE in scores.items()
        }

    return play
