"""Environments with gymnax's interface before 1.0, whose steps report one `done` for all ends.

Other suites have copied that interface, Craftax for example, often with the classes of spaces.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from gtrxl_jax.custom import require_returned
from gtrxl_jax.envs.wrapper import Wrapper

LIMITS = {"max_steps_in_episode": "time", "max_timesteps": "timestep"}
"""The names of a time limit in the parameters, gymnax's and Craftax's, and of the count of actions
in the state."""


class LegacyGymnax(Wrapper):
    """An environment with gymnax's interface before 1.0.

    The `step_env` of the other environment returns (observation, state, reward, done, info), where
    `done` is true at the end of an episode, for whatever reason. An episode that is done before its
    time limit has terminated, and one that reaches its limit is truncated, even if it would have
    terminated in the same step. Its `step`, which resets the environment, is not used. States,
    parameters and `info` are unchanged.

    Args:
      env: the other environment. Its parameters have a time limit, and its states the number of
        actions so far, with names in `LIMITS`.

    Raises:
      ValueError: if the parameters have no time limit.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        fields = {field.name for field in dataclasses.fields(env.default_params)}
        limits = [limit for limit in LIMITS if limit in fields]
        if not limits:
            raise ValueError(
                f"environment {self.name}: default_params has no time limit: add the field "
                f"{' or '.join(LIMITS)}"
            )
        self._limit = limits[0]

    def time_limit(self, params: Any) -> int | Array:
        """Return the number of actions after which an episode is truncated."""
        return getattr(params, self._limit)

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Bool[Array, ""], dict[str, Any]]:
        """Step the environment, and tell a termination from the time limit.

        Raises:
          ValueError: if the environment returns another number of values.
        """
        returned = self.env.step_env(key, state, action, params)
        values = "observation", "state", "reward", "done", "info"
        require_returned("environment", self.env, "step_env", returned, values)
        observation, state, reward, done, info = returned
        terminated = jnp.asarray(done, bool) & jnp.logical_not(self.is_truncated(state, params))
        return observation, state, reward, terminated, info

    def is_truncated(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Return whether the time limit is reached.

        Raises:
          ValueError: if the state does not count actions.
        """
        time = LIMITS[self._limit]
        if not hasattr(state, time):
            raise ValueError(
                f"environment {self.name}: its states have no {time}: count the actions there"
            )
        return jnp.asarray(getattr(state, time) >= self.time_limit(params))
