"""The environments of other suites, by name. Each suite is a package that an extra installs."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from gymnax.environments import environment

from gtrxl_jax.envs.adapters import adapt
from gtrxl_jax.envs.adapters.timesteps import XMiniGrid
from gtrxl_jax.extras import import_extra
from gtrxl_jax.validation import require_choice

_CLASSES = {
    "craftax": {
        "Craftax-Symbolic-v1": "craftax.envs.craftax_symbolic_env:CraftaxSymbolicEnv",
        "Craftax-Pixels-v1": "craftax.envs.craftax_pixels_env:CraftaxPixelsEnv",
        "Craftax-Classic-Symbolic-v1": "craftax_classic.envs.craftax_symbolic_env:"
        "CraftaxClassicSymbolicEnv",
        "Craftax-Classic-Pixels-v1": "craftax_classic.envs.craftax_pixels_env:"
        "CraftaxClassicPixelsEnv",
    },
    "brax": {
        "brax-ant": "envs.ant:Ant",
        "brax-halfcheetah": "envs.half_cheetah:Halfcheetah",
        "brax-hopper": "envs.hopper:Hopper",
        "brax-humanoid": "envs.humanoid:Humanoid",
        "brax-humanoidstandup": "envs.humanoidstandup:HumanoidStandup",
        "brax-inverted_double_pendulum": "envs.inverted_double_pendulum:InvertedDoublePendulum",
        "brax-inverted_pendulum": "envs.inverted_pendulum:InvertedPendulum",
        "brax-pusher": "envs.pusher:Pusher",
        "brax-reacher": "envs.reacher:Reacher",
        "brax-swimmer": "envs.swimmer:Swimmer",
        "brax-walker2d": "envs.walker2d:Walker2d",
    },
}
"""The class of each environment, in the package of its suite, which is also the extra."""


def _make(name: str, package: str, **arguments: Any) -> environment.Environment:
    """Import and create an environment.

    Raises:
      ImportError: if its package is not installed, or cannot be imported.
    """
    module, _, kind = _CLASSES[package][name].partition(":")
    found = import_extra(f"{package}.{module}", package, f"environment {name}")
    return adapt(getattr(found, kind)(**arguments))


def make_of_library(name: str, **arguments: Any) -> tuple[environment.Environment, Any]:
    """Create an environment that a library of `plugins.JITTED_LIBRARIES` has registered.

    Args:
      name: the library and its name there, such as "jumanji:Snake-v1".
      **arguments: arguments of the environment's constructor.

    Returns:
      The environment and its parameters.

    Raises:
      ValueError: if there is no environment of this name.
      ImportError: if the library is not installed, or cannot be imported.
    """
    package, _, own = name.partition(":")
    library = import_extra(package, package, f"environment {name}")
    require_choice(f"environment of {package}", own, library.registered_environments())
    made = library.make(own, **arguments)
    env = XMiniGrid(*made) if package == "xminigrid" else adapt(made)
    return env, env.default_params


SUITES: dict[str, Callable[..., environment.Environment]] = {
    name: partial(_make, name, package) for package, names in _CLASSES.items() for name in names
}
"""The constructor of each environment, by the name under which it is registered."""


def missing_extra(name: str) -> str:
    """Return the extra that an environment needs and that is not installed; empty if there is none.

    Args:
      name: the name of any environment.
    """
    for package, names in _CLASSES.items():
        if name in names and importlib.util.find_spec(package) is None:
            return package
    return ""
