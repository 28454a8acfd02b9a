"""What environments pass to agents: time steps, and the statistics of their episodes."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from gtrxl_jax.specs import action_spec, observation_spec


@struct.dataclass
class TimeStep:
    """What an agent receives at time t, following the conventions of dm_env.

    Leaves have the leading axes of the batch: none, `[B]`, or `[B, T]`.

    An episode of n actions has n + 1 steps. The step with `last` set holds the final observation;
    the action chosen there is ignored, and the next step is the `first` of the next episode. The
    value of a truncated episode's final observation is therefore an ordinary network output, and
    the losses mask the transition from the last step to the next first one.

    Attributes:
      observation: pytree of arrays, the observation o_t.
      action: the previous action a_{t-1} as it entered the environment, within its bounds, in the
        layout of `specs.ActionSpec` (zeros if `first`).
      reward: float, the reward r_t of the previous action (0 if `first`).
      discount: float, 0 if the episode terminated at this step, else 1; excludes the agent's gamma.
      first: bool, whether this is the first step of an episode.
      last: bool, whether this is the last step of an episode: terminated if `discount` is 0,
        truncated otherwise.
      legal: bool `[..., A]`, which choices of each discrete dimension are legal here, one after
        another (see `envs.extensions.legal_actions`). All are at a `last` step whose state lacks
        a legal choice. None if the environment does not restrict them.
    """

    observation: Any
    action: Any
    reward: jax.Array
    discount: jax.Array
    first: jax.Array
    last: jax.Array
    legal: jax.Array | None = None


@struct.dataclass
class EpisodeStats:
    """Statistics of the running episode, up to and including the current step.

    They have the axes of the time steps: `[B]` in a stream, `[B, T]` in a rollout.

    Attributes:
      done: whether the current step is the episode's last. Only then are the other fields final.
      episode_return: undiscounted sum of the rewards so far.
      length: number of actions so far, one less than the number of time steps.
      success: the environment's `info["success"]`, from 0 to 1; None if it reports no success.
      info: the other scalars of the environment's `info`, by name; see `envs.extensions`.
    """

    done: Bool[Array, "*B"]
    episode_return: Float[Array, "*B"]
    length: Int[Array, "*B"]
    success: Float[Array, "*B"] | None
    info: dict[str, Float[Array, "*B"]]

    @property
    def scores(self) -> dict[str, Shaped[Array, "*B"]]:
        """Return, length, success if reported, and the entries of `info`, by name."""
        success = {} if self.success is None else {"success": self.success}
        return {"return": self.episode_return, "length": self.length} | success | self.info


def zero_timestep(observation_space: Any, action_space: Any, *lead: int) -> TimeStep:
    """Return a first time step of zeros with the given leading axes, for `Agent.init`."""
    specs = observation_spec(observation_space)
    observation = jax.tree.map(
        lambda spec: jnp.zeros((*lead, *spec.shape), jax.dtypes.canonicalize_dtype(spec.dtype)),
        specs,
    )
    return TimeStep(
        observation=observation,
        action=action_spec(action_space).zeros(*lead),
        reward=jnp.zeros(lead),
        discount=jnp.ones(lead),
        first=jnp.ones(lead, bool),
        last=jnp.zeros(lead, bool),
    )
