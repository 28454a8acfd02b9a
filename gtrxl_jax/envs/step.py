"""The type of what a step of an environment returns."""

from typing import Any, TypeVar

from jaxtyping import Array, Bool, Float

Observation = TypeVar("Observation")
State = TypeVar("State")

Step = tuple[Observation, State, Float[Array, ""], Bool[Array, ""], dict[str, Any]]
"""`Step[O, S]` is what `step_env` returns for observations O and states S of an environment: both,
the reward, whether the episode is terminated, and the info."""
