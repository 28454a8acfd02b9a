"""POPGym's MultiarmedBandit: find the arm that pays most often."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float, Int

from gtrxl_jax.worlds.base import Step, require_count
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer, reward_answer


@struct.dataclass
class BanditState(environment.EnvState):
    """The state of MultiarmedBandit.

    Attributes:
      time: number of actions taken so far.
      chances: probability that each arm pays.
      paid: the current observation.
    """

    chances: Float[Array, " A"]
    paid: Int[Array, ""]


class MultiarmedBandit(Task):
    """Pull arms, each of which pays with its own probability, uniform in [0, 1] in each episode.

    The observation is 1 if the arm just pulled has paid, and 0 otherwise; as the arm is not
    observed, the agent must know its previous action, as agents of this package do. A pull earns
    1 / T if it pays and -1 / T otherwise, and the episode is truncated after T actions.

    Args:
      num_arms: number of arms, A.
      episode_length: T, unless the parameters have another time limit. Rewards do not follow it.

    Raises:
      ValueError: if there is no arm or no step.
    """

    def __init__(self, num_arms: int = 10, episode_length: int = 200):
        super().__init__()
        require_count("num_arms", num_arms)
        require_count("episode_length", episode_length)
        self.num_arms, self.episode_length = num_arms, episode_length

    def reset_env(self, key: jax.Array, params: TaskParams) -> tuple[Int[Array, ""], BanditState]:
        """Draw the probabilities; nothing is shown."""
        chances = jax.random.uniform(key, (self.num_arms,))
        state = BanditState(time=jnp.int32(0), chances=chances, paid=jnp.int32(0))
        return state.paid, state

    def step_env(
        self, key: jax.Array, state: BanditState, action: Any, params: TaskParams
    ) -> Step[Int[Array, ""], BanditState]:
        """Pull an arm."""
        pays = jax.random.bernoulli(key, state.chances[integer(action)])
        state = state.replace(time=state.time + 1, paid=pays.astype(jnp.int32))
        reward = reward_answer(pays, 1 / self.episode_length)
        return state.paid, state, reward, jnp.bool_(False), {}

    def observe(
        self, key: jax.Array, state: BanditState, action: Any, params: TaskParams
    ) -> Int[Array, ""]:
        """Return whether the last pull paid."""
        return state.paid

    def oracle_action(self, state: BanditState, params: TaskParams) -> Int[Array, ""]:
        """Return the arm that pays most often."""
        return jnp.argmax(state.chances).astype(jnp.int32)

    @property
    def num_actions(self) -> int:
        """The number of actions: the arms."""
        return self.num_arms

    def observation_space(self, params: TaskParams | None = None) -> spaces.Discrete:
        """Return the space of payments."""
        return spaces.Discrete(2)
