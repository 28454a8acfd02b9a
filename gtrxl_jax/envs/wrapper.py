"""An environment around another one."""

from typing import Any

import jax
from gymnax.environments import environment


class Wrapper(environment.Environment[Any, Any]):
    """An environment around another one, with the same states, or with states that contain them.

    By default it is the other one in all that this class defines; subclasses define `step_env`.
    Attributes that neither this class nor gymnax's defines, such as an oracle, are taken from the
    other one too. The rest of gymnax's class, such as `is_terminated`, is not for wrappers.

    Args:
      env: the other environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that are not found otherwise; in a copy, `env` is one of them.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def name(self) -> str:
        """The name of the environment."""
        return getattr(self.env, "name", type(self.env).__name__)

    @property
    def default_params(self) -> Any:
        """The parameters of the other environment."""
        return self.env.default_params

    @property
    def num_actions(self) -> int:
        """The number of actions of the other environment."""
        return self.env.num_actions

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset_env(key, params)

    def observe(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return self.env.observe(key, self.inner_state(state), action, params)

    def is_truncated(self, state: Any, params: Any) -> Any:
        return self.env.is_truncated(state, params)

    def observation_space(self, params: Any = None) -> Any:
        return self.env.observation_space(params)

    def action_space(self, params: Any = None) -> Any:
        return self.env.action_space(params)

    def inner_state(self, state: Any) -> Any:
        """Return the state of the other environment, by default the same."""
        return state
