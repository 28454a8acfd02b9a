"""What environments share: the type of what a step returns, and discrete actions."""

import abc
from typing import Any, TypeVar

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
