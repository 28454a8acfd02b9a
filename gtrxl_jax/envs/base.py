"""What environments share: the type of a step's results, discrete actions, and time limits."""

import abc
from typing import Any, TypeVar

import jax.numpy as jnp
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float

Observation = TypeVar("Observation")
State = TypeVar("State")

Step = tuple[Observation, State, Float[Array, ""], Bool[Array, ""], dict[str, Any]]
"""`Step[O, S]` is what `step_env` returns for observations O and states S of an environment: both,
the reward, whether the episode is terminated, and the info."""


class DiscreteActions(abc.ABC):
    """A mixin for environments with the actions 0, 1, ..., `num_actions` - 1."""

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """The number of actions."""

    def action_space(self, params: Any = None) -> spaces.Discrete:
        """Return the space of the actions."""
        return spaces.Discrete(self.num_actions)


class TimeLimit(abc.ABC):
    """A mixin for environments that derive their time limit where the parameters set none."""

    @abc.abstractmethod
    def default_time_limit(self, params: Any) -> int | Array:
        """Return the time limit in actions where `params.max_steps_in_episode` is None."""

    def time_limit(self, params: Any) -> int | Array:
        """Return the number of actions after which an episode has ended."""
        limit = params.max_steps_in_episode
        return self.default_time_limit(params) if limit is None else limit

    def is_truncated(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Return whether the time limit is reached. A step that also terminates is terminated."""
        return jnp.asarray(state.time >= self.time_limit(params))
