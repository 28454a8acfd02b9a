"""The one record that flows from environments to agents."""

from typing import Any

import jax
from flax import struct


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
