"""What the tasks of POPGym share: parameters, time limit and spaces."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float

from gtrxl_jax.worlds.base import DiscreteActions, TimeLimit


@struct.dataclass
class TaskParams(environment.EnvParams):
    """Parameters of a task. Its sizes are arguments of the environment.

    Attributes:
      max_steps_in_episode: time limit in actions. None: the length of the task's episodes.
    """

    max_steps_in_episode: int | None = None


class Timed(TimeLimit):
    """A mixin for environments of which every episode ends after `episode_length` actions.

    Attributes:
      episode_length: the number of actions after which an episode has ended.
    """

    episode_length: int

    def default_time_limit(self, params: Any) -> int:
        return self.episode_length


class Task(Timed, DiscreteActions, environment.Environment[Any, TaskParams]):
    """A task with discrete actions; subclasses set `episode_length`."""

    default_params = TaskParams()


def multi_discrete(sizes: Sequence[int]) -> spaces.Box:
    """Return gymnasium's MultiDiscrete as a Box of int32, of which gymnax has none.

    Encoders of this package encode its elements one-hot, see `specs.observation_spec`.
    """
    high = np.asarray(sizes, np.int32) - 1
    return spaces.Box(np.zeros_like(high), high, high.shape, jnp.int32)


def reward_answer(right: Bool[Array, ""], scale: float) -> Float[Array, ""]:
    """Return the reward `scale` for a right answer, and `-scale` for a wrong one."""
    return jnp.where(right, jnp.float32(scale), jnp.float32(-scale))


def integer(action: Any) -> Array:
    """Return a discrete action as int32."""
    return jnp.asarray(action, jnp.int32)
