"""The one record that flows from environments to agents."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from gtrxl_jax.specs import action_spec, observation_spec


@struct.dataclass
class TimeStep:
    """What an agent knows on arriving at time t, in the manner of dm_env.

    Leaves carry the leading axes of their batch: none, `[B]`, or `[B, T]`.

    An episode of n actions is n + 1 steps. The step with `last` set holds the final observation;
    the action chosen there is ignored, and the step after it is the `first` of the next episode. So
    the value of a truncated episode's final observation is an ordinary output of the network, and
    the losses mask the transition that leaves it.

    Attributes:
      observation: pytree of arrays, the observation o_t.
      action: pytree of arrays, the action a_{t-1} that led here (zeros when `first`).
      reward: float, the reward r_t received on arriving here (0 when `first`).
      discount: float, 0 where the episode terminated here, else 1; without the agent's own gamma.
      first: bool, the first step of an episode.
      last: bool, the last step of an episode: terminated if `discount` is 0, truncated otherwise.
    """

    observation: Any
    action: Any
    reward: jax.Array
    discount: jax.Array
    first: jax.Array
    last: jax.Array


def zero_timestep(observation_space: Any, action_space: Any, *lead: int) -> TimeStep:
    """Return a first time step of zeros with these leading axes, for `Agent.init`."""
    specs = observation_spec(observation_space)
    observation = jax.tree.map(lambda spec: jnp.zeros((*lead, *spec.shape), spec.dtype), specs)
    return TimeStep(
        observation=observation,
        action=action_spec(action_space).zeros(*lead),
        reward=jnp.zeros(lead),
        discount=jnp.ones(lead),
        first=jnp.ones(lead, bool),
        last=jnp.zeros(lead, bool),
    )
