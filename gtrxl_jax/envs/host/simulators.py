"""One environment that steps on the host, by its name, with observations and actions of arrays.

| name | environment |
|---|---|
| `gymnasium:NAME` | a registered one; the package of a known family is imported |
| `envpool:NAME` | one of envpool's, see `pools` |
| `dmlab:LEVEL` | a level of DeepMind Lab, see `dmlab` |
| `memory-maze:SIZE` | mazes of the package memory-maze, see `memory_maze` |
| `vizdoom:two-colors` | see `two_colors` |
| `package.module:name` | a subclass of `gymnasium.Env`, or a function that returns one |

Observations become arrays: texts of a `Text` space are rows of characters, a mission of MiniGrid is
a row of its known words, and any other text a row of hashed words.
"""

import contextlib
import functools
import inspect
import itertools
import math
import numbers
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from gtrxl_jax.custom import describe_part, require_returned, wrap_errors
from gtrxl_jax.envs.host import dmlab, memory_maze, two_colors, wrappers
from gtrxl_jax.envs.host.texts import hash_words, hashed_space
from gtrxl_jax.envs.stream import OTHER_SCORES
from gtrxl_jax.extras import import_extra, install_command
from gtrxl_jax.plugins import find_object, is_of_host_library, is_plugin
from gtrxl_jax.specs.spaces import (
    characters_of,
    describe,
    dtype_of,
    kind_of,
    leaves_of,
    map_leaves,
    shape_of,
)

FAMILIES = {
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "ALE/": ("ale_py", "atari"),
    "popgym-": ("popgym", "popgym"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
}
"""The module that registers environments whose names begin so, and the extra that installs it."""

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco"}
"""The extra for environments of gymnasium whose entry point is in such a module."""

CONSTRUCTORS: dict[str, Callable[[str], Callable[..., gymnasium.Env[Any, Any]]]] = {
    dmlab.LIBRARY: dmlab.find_level,
    memory_maze.LIBRARY: memory_maze.find_size,
    two_colors.LIBRARY: two_colors.find_scenario,
}
"""By library, the function that returns the constructor of an environment of the given name."""

_BUCKETS = 256
"""The number of hashes of words that are not known."""
_MISSIONS = 10_000
"""The most missions of which the words are collected."""


def is_host_env(name: str) -> bool:
    """Return whether a name is of an environment that steps on the host.

    The module of `package.module:name` must have been imported.
    """
    if is_of_host_library(name):
        return True
    if not is_plugin(name):
        return False
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None)
    if isinstance(found, type):
        # `make_host_env` refuses vector environments.
        return issubclass(found, gymnasium.Env | gymnasium.vector.VectorEnv)
    return callable(found)  # Jitted environments are classes.


def make_host_env(
    name: str, params: Mapping[str, Any], given: Mapping[str, Any], *, render: bool = False
) -> "Arrays":
    """Create an environment.

    Args:
      name: see the module.
      params: arguments of its constructor or function.
      given: wrappers by name, see `wrappers`.
      render: whether it draws frames, if it can.

    Raises:
      ValueError: if the name or an argument is unknown, or a wrapper or a space does not fit.
      ImportError: if a package is missing, naming the extra.
    """
    # Those that draw with pygame would otherwise look for a screen and a sound card.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if render and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        # By default, MuJoCo too cannot draw without a screen.
        os.environ.setdefault("MUJOCO_GL", "egl")
    make: Callable[..., Any] = gymnasium.make
    arguments: dict[str, Any] = dict(params)
    library, _, own = name.partition(":")
    if library in CONSTRUCTORS:
        make = CONSTRUCTORS[library](own)
    elif is_of_host_library(name):
        _register(own)
        if own not in gymnasium.registry:
            _refuse_unknown(own)
        if render and "rgb_array" in _render_modes(own):
            arguments["render_mode"] = "rgb_array"
        arguments = {"id": own, **arguments}
    else:
        make = find_object("env.name", name)
        if render and "render_mode" in inspect.signature(make).parameters:
            arguments["render_mode"] = "rgb_array"
    try:
        with fitting_params(name):
            env = make(**arguments)
    except (gymnasium.error.Error, ImportError) as error:
        raise _missing(name, error) from error
    if not isinstance(env, gymnasium.Env):
        raise ValueError(
            f"env.name {name!r} returned a {type(env).__name__}: return a gymnasium.Env"
        )
    return Arrays(wrappers.wrap(env, given), name)


@contextlib.contextmanager
def fitting_params(name: str) -> Iterator[None]:
    """Name `env.params` in the errors of a constructor, of which they are the arguments.

    Raises:
      ValueError: for an error of any kind by which a constructor refuses an argument.
    """
    try:
        yield
    except (TypeError, ValueError, AssertionError, LookupError) as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"env.params do not fit {name}: {text}") from error


def _register(own: str) -> None:
    """Import the module that registers an environment, if it is of a known family."""
    if ":" in own:
        raise ValueError(
            f"env.name 'gymnasium:{own}' would import a module: name it alone, as in "
            f"gymnasium:{own.rpartition(':')[2]}, with --modules {own.partition(':')[0]}"
        )
    for prefix, (module, extra) in FAMILIES.items():
        if own.startswith(prefix):
            import_extra(module, extra, f"environment gymnasium:{own}")


def _refuse_unknown(own: str) -> None:
    try:
        gymnasium.spec(own)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"environment 'gymnasium:{own}' is unknown: {str(error).rstrip('.')}; import the "
            "module that registers it with --modules"
        ) from None


def _render_modes(own: str) -> tuple[str, ...]:
    entry = gymnasium.spec(own).entry_point
    try:
        kind = gymnasium.envs.registration.load_env_creator(entry) if type(entry) is str else entry
    except ImportError:
        return ()
    return tuple(getattr(kind, "metadata", {}).get("render_modes", ()))


def _missing(name: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    entry = str(getattr(gymnasium.registry.get(name.partition(":")[2]), "entry_point", ""))
    for part, extra in EXTRAS.items():
        if part in entry:
            return ImportError(f"environment {name}: {text}: {install_command(extra)}")
    return ValueError(f"environment {name}: {text}")


class Arrays(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are arrays, and whose outcomes are checked.

    Of `info`, it returns the scores of episodes alone: numbers, as floats. Vector environments give
    each entry the dtype that it has in the first environment, and require equal shapes.

    Args:
      env: the environment.
      name: its name, for messages.

    Raises:
      ValueError: if observations cannot be converted to arrays, or `reset` takes no seed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str):
        super().__init__(env)
        try:
            inspect.signature(self.unwrapped.reset).bind(seed=0)
        except TypeError:
            where = describe_part("environment", self.unwrapped, "reset")
            raise ValueError(
                f"{where}: reset takes no seed: define reset(self, *, seed=None, options=None)"
            ) from None
        self._name = name
        self.observation_space, self._convert = _to_arrays(
            env.observation_space, f"{name}: observation"
        )
        # Policies act in float32, which also clips to the bounds of such a space.
        leaves = [leaf for _, leaf in leaves_of(env.action_space, "action_space")]
        self._is_cast = any(
            kind_of(leaf) == "box" and dtype_of(leaf) != np.float32 for leaf in leaves
        )

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, _ = self._require("reset", self.env.reset(**options), "observation")
        return self._convert(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action, whose arrays may have another dtype than its space."""
        if self._is_cast:
            action = map_leaves(_cast, self.action_space, action, field="action")
        names = "observation", "reward", "terminated", "truncated"
        outcome = self._require("step", self.env.step(action), *names)
        observation, reward, terminated, truncated, info = outcome
        return (
            self._convert(observation),
            float(self._scalar("reward", reward)),
            bool(self._scalar("terminated", terminated)),
            bool(self._scalar("truncated", truncated)),
            {name: float(np.squeeze(x)) for name, x in info.items() if _is_score(name, x)},
        )

    def oracle_action(self) -> Any:
        """Return the action of the environment's oracle, see `acting.host.HostOraclePolicy`."""
        own: Any = self.unwrapped
        with wrap_errors("environment", own):
            return own.oracle_action()

    def _require(self, method: str, outcome: Any, *values: str) -> Any:
        """Return what a method of the environment has returned, if it is as in gymnasium."""
        require_returned("environment", self.unwrapped, method, outcome, (*values, "info"))
        if not isinstance(outcome[-1], Mapping):
            where = describe_part("environment", self.unwrapped, method)
            raise ValueError(f"{where}: info is a {type(outcome[-1]).__name__}: return a dict")
        return outcome

    def _scalar(self, name: str, x: Any) -> Any:
        if type(x) in (float, int, bool):
            return x
        if np.size(x) != 1:
            raise ValueError(f"{self._name}: {name} has shape {np.shape(x)}: return one number")
        array = np.asarray(x)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{self._name}: {name} is {x!r}: return one number")
        return array.reshape(())[()]


def _cast(leaf: Any, x: Any, field: str) -> Any:
    """Return a part of an action in the dtype of its space, and within bounds after rounding."""
    if kind_of(leaf) != "box":
        return x
    return np.asarray(np.clip(np.asarray(x, leaf.dtype), leaf.low, leaf.high))


def _is_score(name: Any, value: Any) -> bool:
    """Return whether an entry of `info` is a score of an episode."""
    if name in ("success", "is_success"):
        return np.size(value) == 1 and np.asarray(value).dtype.kind in "biuf"
    is_number = isinstance(value, numbers.Real | np.bool_)
    # Names with an underscore are gymnasium's own.
    is_named = isinstance(name, str) and not name.startswith("_")
    return is_named and name not in OTHER_SCORES and is_number


Convert = Callable[[Any], Any]


def _to_arrays(space: Any, field: str) -> tuple[Any, Convert]:
    """Return the space of the arrays of a space, and the conversion of its observations."""
    if isinstance(space, spaces.Dict):
        inside = {name: _to_arrays(part, f"{field}[{name!r}]") for name, part in space.items()}
        converts = {name: convert for name, (_, convert) in inside.items()}
        return spaces.Dict({name: part for name, (part, _) in inside.items()}), lambda x: {
            name: convert(x[name]) for name, convert in converts.items()
        }
    if isinstance(space, spaces.Tuple):
        entries = [_to_arrays(part, f"{field}[{k}]") for k, part in enumerate(space.spaces)]
        return spaces.Tuple([part for part, _ in entries]), lambda x: tuple(
            convert(part) for (_, convert), part in zip(entries, x, strict=True)
        )
    if isinstance(space, spaces.Text):
        return _from_text(characters_of(space), space.max_length, list)
    if texts := _missions(space):
        words = sorted({word for text in texts for word in text.split()})
        return _from_text(words, max(len(text.split()) for text in texts), str.split)
    if kind_of(space) in ("box", "discrete", "multi-discrete", "multi-binary"):
        return space, _checked(space, field)
    if isinstance(space.sample(), str):
        return hashed_space(_BUCKETS), functools.partial(hash_words, buckets=_BUCKETS)
    raise ValueError(
        f"{field} is {space}, which no encoder reads: choose entries of a dict with "
        "--env.wrappers keys NAMES"
    )


def _checked(space: Any, field: str) -> Convert:
    shape, is_whole = shape_of(space), dtype_of(space).kind in "iub"

    def convert(x: Any) -> np.ndarray:
        array = np.asarray(x)
        if array.shape != shape:
            raise ValueError(
                f"{field} has shape {array.shape}, but {describe(space)} has {shape}: correct the "
                "environment"
            )
        if is_whole and array.dtype.kind == "f":
            raise TypeError(
                f"{field} is {array.dtype}, but its space is {describe(space)}: correct the "
                "environment"
            )
        return array

    return convert


def _from_text(symbols: list[str], length: int, split: Callable[[str], list[str]]) -> Any:
    """Return the space of rows of tokens, and the conversion of texts to them.

    Token k + 1 is symbol k, a character or a word, and 0 is padding at the end, or a symbol that is
    unknown. Longer texts are cut.
    """
    token = {symbol: k for k, symbol in enumerate(symbols, start=1)}

    @functools.lru_cache
    def convert(text: str) -> np.ndarray:
        row = [token.get(symbol, 0) for symbol in split(text)[:length]]
        return np.array(row + [0] * (length - len(row)), np.int64)

    return spaces.MultiDiscrete(np.full(length, len(symbols) + 1)), convert


def _missions(space: Any) -> list[str]:
    """Return all texts of a mission of MiniGrid; none of another space, or if too many."""
    if type(space).__name__ != "MissionSpace":
        return []
    places = space.ordered_placeholders or []
    if math.prod(map(len, places)) > _MISSIONS:
        return []
    return [space.mission_func(*chosen) for chosen in itertools.product(*places)]
