"""Policies as step functions of one environment, which `jax.export` can store."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from gtrxl_jax.acting.policy import Policy, choose_actions
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep, zero_timestep

PLATFORMS = ("cpu", "cuda", "tpu")


def make_step_functions(
    policy: Policy, action_space: Any
) -> tuple[Callable[[Any], Any], Callable[..., tuple[Any, Any]]]:
    """Return the two functions by which a policy acts in one environment.

    The first, `fresh(params) -> state`, returns the state before an episode: the state of the
    policy, and the previous action, which is an input of agents. The second is
    `step(params, state, observation, reward, first, key, legal=None) -> (state, action)`; see
    `export_step` for its arguments.
    """

    def fresh(params: Any) -> Any:
        return policy.init(params, 1), action_spec(action_space).zeros(1)

    def step(
        params: Any,
        state: Any,
        observation: Any,
        reward: jax.Array,
        first: jax.Array,
        key: jax.Array,
        legal: jax.Array | None = None,
    ) -> tuple[Any, Any]:
        memory, previous = state
        timestep = TimeStep(
            observation=jax.tree.map(lambda x: x[None], observation),
            action=previous,
            reward=reward[None],
            discount=jnp.ones(1, reward.dtype),
            first=first[None],
            last=jnp.zeros(1, jnp.bool_),
            legal=None if legal is None else legal[None],
        )
        chosen = choose_actions(policy, action_space, params, memory, timestep, key)
        action = jax.tree.map(lambda x: x[0], chosen.environment_action)
        return (chosen.state, chosen.clipped), action

    return fresh, step


def export_step(
    policy: Policy,
    params: Any,
    observation_space: Any,
    action_space: Any,
    platforms: Sequence[str] = PLATFORMS,
    *,
    masked: bool = False,
) -> jax.export.Exported:
    """Export an acting step in one environment, with the parameters as constants.

    The function is `step(state, observation, reward, first, seed) -> (state, action)`, with `legal`
    as the last argument if it is `masked`:

      state: a list of arrays, which the caller passes on; of any values where `first` is true.
      observation: an observation of the environment.
      reward: float32, the reward of the previous action; 0 where `first` is true.
      first: bool, whether this is the first step of an episode.
      seed: uint32, a new one for each step; unused if the policy takes the most likely actions.
      legal: bool `[A]`, the legal choices of each discrete dimension, one after another.
      action: the action, within bounds and in the layout of the environment's space.

    The state contains the previous action, which is an input of agents.

    Args:
      policy: the policy.
      params: the parameters of its network.
      observation_space: the spaces of the environment.
      action_space: see `observation_space`.
      platforms: the platforms on which the function can run.
      masked: whether the environment restricts the actions, see `envs.extensions.legal_actions`.

    Returns:
      The function, in StableHLO. Its `serialize` returns bytes for `jax.export.deserialize`.
    """
    fresh, act = make_step_functions(policy, action_space)
    before = jax.eval_shape(fresh, params)
    structure = jax.tree.structure(before)

    def step(
        leaves: list[Any],
        observation: Any,
        reward: jax.Array,
        first: jax.Array,
        seed: jax.Array,
        legal: jax.Array | None = None,
    ) -> tuple[list[Any], Any]:
        # Where an episode begins, the caller's state may have any values.
        state = jax.lax.cond(
            first, lambda: fresh(params), lambda: jax.tree.unflatten(structure, leaves)
        )
        key = jax.random.key(seed)
        state, action = act(params, state, observation, reward, first, key, legal)
        return jax.tree.leaves(state), action

    example = zero_timestep(observation_space, action_space, 1)
    choices = sum(action_spec(action_space).discrete)
    legal = [jax.ShapeDtypeStruct((choices,), jnp.bool_)] if masked else []
    arguments = (
        jax.tree.leaves(before),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example.observation),
        jax.ShapeDtypeStruct((), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.bool_),
        jax.ShapeDtypeStruct((), jnp.uint32),
        *legal,
    )
    return jax.export.export(jax.jit(step), platforms=platforms)(*arguments)
