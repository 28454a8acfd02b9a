"""What worlds share: the type of a step's results, discrete actions, time limits and checks."""

import abc
import dataclasses
import difflib
from collections.abc import Collection
from typing import Any, TypeVar

import jax.numpy as jnp
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float

Observation = TypeVar("Observation")
State = TypeVar("State")

Step = tuple[Observation, State, Float[Array, ""], Bool[Array, ""], dict[str, Any]]
"""`Step[O, S]` is what `step_env` returns for observations O and states S of an environment: both,
the reward, whether the episode is terminated, and the info."""


@dataclasses.dataclass(frozen=True)
class Cue:
    """The variable over which collected episodes are balanced.

    Attributes:
      field: name of an integer field of the environment's state, read at the end of an episode.
      values: possible values of the field, each of which gets an equal share of the episodes.
    """

    field: str
    values: tuple[int, ...]


class DiscreteActions(abc.ABC):
    """A mixin for environments with the actions 0, 1, ..., `num_actions` - 1."""

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """The number of actions."""

    def action_space(self, params: Any = None) -> spaces.Discrete:
        """Return the space of the actions."""
        return spaces.Discrete(self.num_actions)


_LARGEST = 2**31 - 1


class TimeLimit(abc.ABC):
    """A mixin for environments that derive their time limit where the parameters set none."""

    @abc.abstractmethod
    def default_time_limit(self, params: Any) -> int | Array:
        """Return the time limit in actions where `params.max_steps_in_episode` is None."""

    def time_limit(self, params: Any) -> int | Array:
        """Return the number of actions after which an episode has ended.

        Raises:
          ValueError: if the derived limit exceeds 32 bits.
        """
        if params.max_steps_in_episode is not None:
            return params.max_steps_in_episode
        limit = self.default_time_limit(params)
        if isinstance(limit, int) and limit > _LARGEST:
            raise ValueError(
                f"max_steps_in_episode must be set, to at most {_LARGEST}, as the time limit that "
                f"follows from the other parameters is {limit}; or lower those"
            )
        return limit

    def is_truncated(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Return whether the time limit is reached. A step that also terminates is terminated."""
        return jnp.asarray(state.time >= self.time_limit(params))


def require_choice(field: str, value: Any, choices: Collection[str]) -> str:
    """Return a setting if it is one of the choices; otherwise raise ValueError."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        advice = f"did you mean {near[0]!r}?" if near else "choose one of them."
        valid = ", ".join(sorted(choices))
        raise ValueError(f"unknown {field} {value!r}: {advice} Valid: {valid}")
    return value


def require_count(field: str, value: Any) -> None:
    """Raise ValueError for a number that is not at least 1, TypeError if it is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{field} must be at least 1, not {value}")
