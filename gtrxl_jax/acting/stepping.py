"""A policy as a single function that JAX can store and run without this package."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.specs import action_spec, environment_action
from gtrxl_jax.timestep import TimeStep, zero_timestep

PLATFORMS = ("cpu", "cuda", "tpu")


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
      masked: whether the environment restricts the actions, see `envs.knowledge.legal_actions`.

    Returns:
      The function, in StableHLO. Its `serialize` returns bytes for `jax.export.deserialize`.
    """
    spec = action_spec(action_space)

    def fresh() -> Any:
        return policy.init(params, 1), spec.zeros(1)

    structure = jax.tree.structure(jax.eval_shape(fresh))

    def step(
        leaves: list[Any],
        observation: Any,
        reward: jax.Array,
        first: jax.Array,
        seed: jax.Array,
        legal: jax.Array | None = None,
    ) -> tuple[list[Any], Any]:
        # Explicitly, since models of trajectories do not start anew where an episode does.
        memory, previous = jax.lax.cond(first, fresh, lambda: jax.tree.unflatten(structure, leaves))
        timestep = TimeStep(
            observation=jax.tree.map(lambda x: x[None], observation),
            action=previous,
            reward=reward[None],
            discount=jnp.ones(1, jnp.float32),
            first=first[None],
            last=jnp.zeros(1, jnp.bool_),
            legal=None if legal is None else legal[None],
        )
        memory, action, _ = policy.act(params, memory, timestep, jax.random.key(seed))
        action = jax.tree.map(lambda x, zero: x.astype(zero.dtype), action, spec.zeros())
        entered = spec.clip(action)
        of_environment = environment_action(action_space, action)
        return jax.tree.leaves((memory, entered)), jax.tree.map(lambda x: x[0], of_environment)

    example = zero_timestep(observation_space, action_space, 1)
    legal = [jax.ShapeDtypeStruct((sum(spec.discrete),), jnp.bool_)] if masked else []
    arguments = (
        jax.tree.leaves(jax.eval_shape(fresh)),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example.observation),
        jax.ShapeDtypeStruct((), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.bool_),
        jax.ShapeDtypeStruct((), jnp.uint32),
        *legal,
    )
    return jax.export.export(jax.jit(step), platforms=platforms)(*arguments)
