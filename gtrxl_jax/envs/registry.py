"""The registry of environments, by name."""

import dataclasses
import inspect
import math
import numbers
import urllib.error
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnax
from gymnax.environments import environment

from gtrxl_jax.custom import wrap_errors
from gtrxl_jax.envs.adapters import Environment, adapt, inner
from gtrxl_jax.envs.adapters.suites import SUITES, make_of_library
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.envs.trials import Trial
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.plugins import find_plugin, is_of_jitted_library, is_plugin
from gtrxl_jax.validation import LARGEST, require_choice, require_count
from gtrxl_jax.worlds.apple_maze import AppleMaze
from gtrxl_jax.worlds.associative import AssociativeRetrieval
from gtrxl_jax.worlds.battleship import FLEETS, Battleship
from gtrxl_jax.worlds.color_cubes import LEVELS, ColorCubes
from gtrxl_jax.worlds.endless_tmaze import EndlessTMaze
from gtrxl_jax.worlds.memory_chain import MemoryChain
from gtrxl_jax.worlds.memory_maze import TARGETS, MemoryMaze
from gtrxl_jax.worlds.minigrid.memory import MiniGridMemory
from gtrxl_jax.worlds.numpad import Numpad, NumpadDiscrete
from gtrxl_jax.worlds.popgym import POPGYM
from gtrxl_jax.worlds.rocksample import RockSample
from gtrxl_jax.worlds.tmaze import ActiveTMaze, PassiveTMaze
from gtrxl_jax.worlds.two_colors import TwoColors

ENVIRONMENTS: dict[str, Callable[..., environment.Environment]] = {}
"""The environments of `register_env`. `make_env` accepts these and all that gymnax registers."""


def register_env(name: str, factory: Callable[..., environment.Environment]) -> None:
    """Make an environment known by a name, for `make_env`, `gymnax.make` and the command line.

    Args:
      name: the name.
      factory: the environment's class, or another function of its constructor's arguments.

    Raises:
      ValueError: if the name is another environment's.
    """
    if ENVIRONMENTS.get(name) is factory:
        return
    if name in gymnax.registered_envs:
        raise ValueError(f"environment {name!r} is already registered: choose another name")
    gymnax.register(name, factory)
    ENVIRONMENTS[name] = factory


def make_env(name: str, **overrides: Any) -> tuple[environment.Environment, Any]:
    """Create an environment by name.

    Args:
      name: a name of `register_env` or of gymnax; or a library and a name there, as in
        "jumanji:Snake-v1"; or "package.module:Name", a class of a module that is imported, which
        may have another interface (see `adapters.adapt`).
      **overrides: values for fields of the environment's parameters (`corridor_length=50`) or for
        arguments of its constructor (`num_bits=3`); and `trial`, the number of episodes that are
        joined into one, see `trials.Trial` (1: none are).

    Returns:
      The environment and its parameters.

    Raises:
      ValueError: for an unknown name or override, naming the nearest valid ones; for an environment
        that steps on the host; for a value out of range, such as a size below 1.
      TypeError: for a value of the wrong type.
      ImportError: if the environment requires a package that is not installed.
      ConnectionError: if the environment requires a download, which fails.
    """

    def create(**arguments: Any) -> tuple[environment.Environment, Any]:
        with standard_dtype_promotion():
            if is_of_jitted_library(name):
                return make_of_library(name, **arguments)
            if not is_plugin(name):
                try:
                    return gymnax.make(name, **arguments)
                except urllib.error.URLError as error:
                    raise ConnectionError(
                        f"environment {name} cannot download its data ({error.reason}): connect "
                        "to the internet, or choose another environment"
                    ) from None
            kind = find_plugin("environment", name, Environment)
            with wrap_errors("environment", kind):
                env = adapt(kind(**arguments))
                return env, env.default_params

    if is_host_env(name):
        raise ValueError(
            f"environment {name} steps on the host: create it by make_host_env of "
            "gtrxl_jax.envs.host.simulators"
        )
    if not (is_plugin(name) or is_of_jitted_library(name)):
        require_choice("environment", name, gymnax.registered_envs)
    trial = overrides.pop("trial", 1)
    require_count("trial", trial)
    env, params = create()
    fields = {field.name: field for field in dataclasses.fields(params)}
    arguments = {
        argument.name: argument
        for argument in inspect.signature(type(inner(env)).__init__).parameters.values()
        if argument.kind is argument.POSITIONAL_OR_KEYWORD and argument.name != "self"
    }
    for key, value in overrides.items():
        require_choice(f"parameter of {name}", key, {*fields, *arguments})
        default = getattr(params, key) if key in fields else arguments[key].default
        bounds: Mapping[str, Any] = fields[key].metadata if key in fields else {}
        overrides[key] = _valid(key, value, default, bounds)
    if set(overrides) & set(arguments):
        env, params = create(**{k: overrides[k] for k in overrides if k in arguments})
    params = params.replace(**{k: overrides[k] for k in overrides if k in fields})
    if trial > 1:
        require_consistent_env(Stream(env, params, 1))  # errors name the environment, not the trial
        env = Trial(env, trial)
    return env, params


def _valid(field: str, value: Any, default: Any, bounds: Mapping[str, Any]) -> Any:
    """Return `value`, as an int or a float where the default is one; raise if it is invalid.

    It is judged by the field's default and the numbers "minimum" and "maximum" of `bounds`, if any.
    An integer that is positive by default is a count or a size, so it must be positive. Values of
    fields that are neither numbers nor booleans are left to the environment to check.
    """
    kind = type(default)
    minimum, maximum = bounds.get("minimum"), bounds.get("maximum")
    if field == "max_steps_in_episode":
        if value is None and default is None:
            return value
        kind, minimum = int, 1
    elif kind is int and default >= 1:
        minimum = max(1, minimum or 1)
    if kind is bool:
        if not isinstance(value, bool):
            raise TypeError(f"{field} must be True or False, got {value!r}")
    elif kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        if isinstance(value, bool) or not isinstance(value, number):
            name = "whole number" if kind is int else "number"
            raise TypeError(f"{field} must be a {name}, got {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"{field} must be finite, got {value}")
        if minimum is not None and value < minimum:
            raise ValueError(f"{field} must be at least {minimum:g}, got {value}")
        if maximum is not None and value > maximum:
            raise ValueError(f"{field} must be at most {maximum:g}, got {value}")
        if kind is int and abs(float(value)) > LARGEST:
            raise ValueError(f"{field} must be at most {LARGEST}, got {value}")
    # JAX's distributions refuse whole numbers where they expect floats.
    return kind(value) if kind in (int, float) else value


for _name, _factory in {
    "TMazePassive-v0": PassiveTMaze,
    "TMazeActive-v0": ActiveTMaze,
    "EndlessTMaze-v0": EndlessTMaze,
    "AssociativeRetrieval-v0": AssociativeRetrieval,
    "MemoryChain-v0": MemoryChain,
    "MiniGrid-Memory": MiniGridMemory,
    "Numpad-v0": Numpad,
    "NumpadDiscrete-v0": NumpadDiscrete,
    "TwoColors-v0": TwoColors,
    "AppleMaze-v0": AppleMaze,
    **POPGYM,
    **SUITES,
}.items():
    register_env(_name, _factory)
for _size in (7, 9, 11, 13):
    register_env(f"MiniGrid-MemoryS{_size}-v0", partial(MiniGridMemory, size=_size))
for _size in (13, 17):
    register_env(
        f"MiniGrid-MemoryS{_size}Random-v0",
        partial(MiniGridMemory, size=_size, random_length=True),
    )
for _size in TARGETS:
    register_env(f"MemoryMaze-{_size}x{_size}-v0", partial(MemoryMaze, size=_size))
for _size in FLEETS:
    register_env(f"Battleship-{_size}", partial(Battleship, size=_size))
for _level, _sizes in LEVELS.items():
    register_env(f"ColorCubes-{_level}", partial(ColorCubes, **_sizes))
for _size, _rocks in ((5, 5), (7, 8), (11, 11), (15, 15)):
    register_env(f"RockSample-{_size}-{_rocks}", partial(RockSample, size=_size, num_rocks=_rocks))
