"""Environments with other interfaces than gymnax's present one.

    env = adapt(OldEnv())      # any of the interfaces below
    env, params = make_env("Craftax-Symbolic-v1")    # by name, see `suites`
    env, params = make_env("jumanji:Snake-v1")

| interface | adapter |
|---|---|
| gymnax before 1.0, as in Craftax | `LegacyGymnax` |
| Brax | `Brax` |
| XLand-MiniGrid | `XMiniGrid` |
| Jumanji | `Jumanji` |

`make_env` adapts the environments of `package.module:Name` as well.
"""

import abc
from typing import Any

from gymnax.environments import environment

from gtrxl_jax.envs.adapters.brax import Brax
from gtrxl_jax.envs.adapters.legacy import LegacyGymnax
from gtrxl_jax.envs.adapters.timesteps import Jumanji, TimeStepEnvironment, XMiniGrid


class Environment(abc.ABC):  # noqa: B024, its subclasses are only recognized
    """Every class with methods for resets and steps, whatever these return."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return _has(kind, "reset", "step") or _has(kind, "reset_env", "step_env")


def adapt(env: Any) -> environment.Environment:
    """Return an environment with gymnax's present interface.

    Args:
      env: an environment with this interface, which is returned as it is, or with another one.

    Raises:
      ValueError: if the interface is unknown, or the environment resets itself.
    """
    kind = type(env)
    if isinstance(env, environment.Environment) and not _is_legacy(kind):
        return env
    if _has(kind, "reset_env", "step_env"):
        return LegacyGymnax(env)
    if _has(kind, "reset", "step", "action_size"):
        return Brax(env)
    if _has(kind, "reset", "step", "observation_shape", "default_params"):
        return XMiniGrid(env)
    if _has(kind, "reset", "step", "observation_spec", "action_spec"):
        return Jumanji(env)
    raise ValueError(
        f"environment {kind.__name__} has none of the known interfaces, of gymnax, Brax, "
        "XLand-MiniGrid and Jumanji: define reset_env and step_env, which does not reset it"
    )


def inner(env: environment.Environment) -> Any:
    """Return the environment in an adapter; other environments are returned as they are."""
    return env.env if isinstance(env, Brax | LegacyGymnax | TimeStepEnvironment) else env


def _is_legacy(kind: type[environment.Environment]) -> bool:
    """Return whether a subclass of gymnax's environment was written for gymnax before 1.0.

    There it defined `is_terminal`, which included the time limit and is `is_terminated` now.
    """
    base = environment.Environment
    return kind.is_terminal is not base.is_terminal and kind.is_terminated is base.is_terminated


def _has(kind: type, *names: str) -> bool:
    return all(hasattr(kind, name) for name in names)
