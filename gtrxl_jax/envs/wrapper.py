"""An environment around another one."""

from typing import Any

from gymnax.environments import environment


class Wrapper(environment.Environment[Any, Any]):
    """An environment around another one, with the same states, or with states that contain them.

    Attributes that neither this class nor gymnax's defines, such as an oracle, are taken from
    the other one.

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

    def inner_state(self, state: Any) -> Any:
        """Return the state of the other environment, by default the same."""
        return state
