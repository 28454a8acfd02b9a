"""Environments whose resets and steps return dm_env's `TimeStep`: XLand-MiniGrid's and Jumanji's.

A time step with `step_type` 2 is the last of its episode: it terminates where its discount is 0,
and is truncated otherwise.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium.spaces import MultiDiscrete
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, UInt8

from gtrxl_jax.specs import action_spec
from gtrxl_jax.specs.spaces import bounds_of, kind_of

RESETTING = ("GymAutoResetWrapper", "AutoResetWrapper", "VmapWrapper", "VmapAutoResetWrapper")
"""Wrappers of the packages that do what a `Stream` does: reset, and batch."""

LAST = 2
"""The `step_type` of the last time step of an episode."""


@struct.dataclass
class TimeStepState(environment.EnvState):
    """The state of an environment with time steps.

    Attributes:
      time: number of actions taken so far.
      inner: the environment's own state.
      truncated: whether the environment has truncated the episode.
      legal: the legal actions, see `envs.extensions.legal_actions`; None if all are, always.
    """

    inner: Any
    truncated: Bool[Array, ""]
    legal: Bool[Array, " A"] | None = None


class TimeStepEnvironment(environment.Environment[TimeStepState, Any], abc.ABC):
    """An environment whose steps return time steps.

    Args:
      env: the environment, which does not reset itself.

    Raises:
      ValueError: if it does.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env
        while env is not None:
            if (wrapper := type(env).__name__) in RESETTING:
                raise ValueError(
                    f"the environment has a wrapper {wrapper}, but episodes are reset and batched "
                    "elsewhere: pass the environment inside"
                )
            env = getattr(env, "__dict__", {}).get("_env")

    @property
    def name(self) -> str:
        """The name of the class of the environment."""
        return type(self.env).__name__

    @abc.abstractmethod
    def _reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Return the environment's own state, and its time step."""

    @abc.abstractmethod
    def _step(self, inner: Any, action: Any, params: Any) -> tuple[Any, Any]:
        """Take a step from the environment's own state; return as `_reset`."""

    @abc.abstractmethod
    def _observe(self, timestep: Any) -> tuple[Any, Bool[Array, " A"] | None]:
        """Return the observation as arrays, dicts and tuples, and the legal actions."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TimeStepState]:
        inner, timestep = _arrays(self._reset(key, params))
        observation, legal = self._observe(timestep)
        return observation, TimeStepState(jnp.int32(0), inner, jnp.bool_(False), legal)

    def step_env(
        self, key: jax.Array, state: TimeStepState, action: Any, params: Any
    ) -> tuple[Any, TimeStepState, Array, Bool[Array, ""], dict[str, Any]]:
        """Take a step. The rewards of several agents are summed up."""
        inner, timestep = _arrays(self._step(state.inner, action, params))
        observation, legal = self._observe(timestep)
        last, ended = timestep.step_type == LAST, jnp.all(timestep.discount == 0)
        state = TimeStepState(state.time + 1, inner, last & ~ended, legal)
        info = dict(getattr(timestep, "extras", None) or {})
        return observation, state, jnp.sum(timestep.reward), last & ended, info

    def is_truncated(self, state: TimeStepState, params: Any) -> Bool[Array, ""]:
        """Return whether the environment has truncated the episode, or its time limit is over."""
        return state.truncated | (state.time >= self.time_limit(params))

    @abc.abstractmethod
    def time_limit(self, params: Any) -> int:
        """Return the number of actions after which every episode has ended."""


class XMiniGrid(TimeStepEnvironment):
    """An environment of XLand-MiniGrid, whose parameters it has.

    The observation is that of the package, `[view_size, view_size, 2]`, the tile and the color of
    each cell, which become one-hot features. The time limit is `max_steps`.

    Args:
      env: the environment.
      params: its default parameters; by default its own.
      rulesets: a benchmark of XLand-MiniGrid, or another object whose `sample_ruleset(key)` is
        drawn from at each reset, so that a trial has one ruleset; None for the one in the
        parameters.
    """

    TILES, COLORS = 13, 12
    """Numbers of tiles and of colors."""

    def __init__(self, env: Any, params: Any = None, rulesets: Any = None) -> None:
        super().__init__(env)
        self._default_params = env.default_params() if params is None else params
        self._rulesets = rulesets

    @property
    def default_params(self) -> Any:
        """The parameters."""
        return self._default_params

    @property
    def num_actions(self) -> int:
        """The number of actions."""
        return self.env.num_actions(self.default_params)

    def time_limit(self, params: Any) -> int:
        """Return `max_steps`."""
        return params.max_steps

    def action_space(self, params: Any = None) -> spaces.Discrete:
        """Return the space of the actions."""
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Any = None) -> Any:
        """Return the space of observations, of tiles and colors where these are."""
        params = self.default_params if params is None else params
        timestep = jax.eval_shape(self.env.reset, params, jax.random.key(0))
        return _space(timestep.observation, self._leaf)

    def render(self, state: TimeStepState, params: Any) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the grid, on the host."""
        return np.asarray(self.env.render(params, state.inner), np.uint8)

    def _leaf(self, x: Any) -> spaces.Box:
        if x.dtype == jnp.uint8 and x.shape[-1:] == (2,):
            high = np.broadcast_to(np.array([self.TILES - 1, self.COLORS - 1], np.uint8), x.shape)
            return spaces.Box(np.zeros_like(high), high, x.shape, x.dtype)
        return _box(x)

    def _reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        if self._rulesets is not None:
            key, key_ruleset = jax.random.split(key)
            params = params.replace(ruleset=self._rulesets.sample_ruleset(key_ruleset))
        timestep = self.env.reset(params, key)
        return timestep, timestep

    def _step(self, inner: Any, action: Any, params: Any) -> tuple[Any, Any]:
        timestep = self.env.step(params, inner, action)
        return timestep, timestep

    def _observe(self, timestep: Any) -> tuple[Any, None]:
        return timestep.observation, None


@struct.dataclass
class JumanjiParams(environment.EnvParams):
    """Parameters of an environment of Jumanji. Its other settings are constructor arguments.

    Attributes:
      max_steps_in_episode: time limit in actions, by default the environment's; 1000 without one.
    """

    max_steps_in_episode: int = 1000


class Jumanji(TimeStepEnvironment):
    """An environment of Jumanji.

    Observations become dicts of arrays. An `action_mask` in them becomes the legal actions. Where
    it has an entry for each combination of the parts of an action, the action becomes a single
    choice among all combinations. Several agents are one: it chooses all their actions, and its
    reward is their sum.

    Args:
      env: the environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        if self._mask is not None:
            self.legal_actions = self._legal_actions

    @property
    def default_params(self) -> JumanjiParams:
        """The parameters, with the environment's time limit."""
        limit = getattr(self.env, "time_limit", None)
        return JumanjiParams(int(limit)) if limit else JumanjiParams()

    @property
    def num_actions(self) -> int:
        """The number of actions, or of dimensions of an action."""
        space = self.action_space()
        return space.n if isinstance(space, spaces.Discrete) else math.prod(space.shape)

    def time_limit(self, params: JumanjiParams) -> int:
        """Return the number of actions after which an episode has ended."""
        return params.max_steps_in_episode

    def action_space(self, params: Any = None) -> Any:
        """Return the space of actions, of one choice where the mask is of combinations."""
        if self._is_joint:
            return spaces.Discrete(math.prod(self._choices))
        return _of_actions(self.env.action_spec)

    def observation_space(self, params: Any = None) -> Any:
        """Return the space of observations, without the mask of the actions."""
        space, _ = self._split(_spaces(self._timestep.observation, self.env.observation_spec))
        return space

    @functools.cached_property
    def _timestep(self) -> Any:
        """The shapes and dtypes of a time step, not computed."""
        return jax.eval_shape(self.env.reset, jax.random.key(0))[1]

    @functools.cached_property
    def _choices(self) -> tuple[int, ...]:
        """The number of choices of each part of an action; empty for continuous ones."""
        return action_spec(_of_actions(self.env.action_spec)).discrete

    @functools.cached_property
    def _mask(self) -> tuple[int, ...] | None:
        """The shape of the mask of the actions in observations; None without a mask of choices."""
        mask = getattr(self._timestep.observation, "action_mask", None)
        if mask is None or not self._choices:
            return None
        is_of_parts = math.prod(mask.shape) == sum(self._choices)
        return mask.shape if is_of_parts or mask.shape == self._choices else None

    @property
    def _is_joint(self) -> bool:
        """Whether the mask is of combinations of the parts of an action."""
        return len(self._choices) > 1 and self._mask == self._choices

    def _split(self, observation: Any) -> tuple[Any, Any]:
        """Return an observation, or its space, without the mask; and the mask if it is used."""
        parts = getattr(observation, "spaces", observation)
        if self._mask is None:
            return observation, None
        rest = {name: part for name, part in parts.items() if name != "action_mask"}
        mask = parts["action_mask"]
        return (spaces.Dict(rest) if parts is not observation else rest), mask

    def _reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset(key)

    def _step(self, inner: Any, action: Any, params: Any) -> tuple[Any, Any]:
        if self._is_joint:
            parts = jnp.stack(jnp.unravel_index(action, self._choices))
            action = parts.reshape(self.env.action_spec.shape).astype(self.env.action_spec.dtype)
        return self.env.step(inner, action)

    def _observe(self, timestep: Any) -> tuple[Any, Bool[Array, " A"] | None]:
        observation, mask = self._split(_plain(timestep.observation))
        return observation, None if mask is None else mask.reshape(-1).astype(bool)

    def _legal_actions(self, state: TimeStepState, params: Any) -> Bool[Array, " A"] | None:
        return state.legal


def _arrays(tree: Any) -> Any:
    """Return a tree in which numbers are arrays."""
    return jax.tree.map(jnp.asarray, tree)


def _plain(x: Any) -> Any:
    """Return an observation with dicts in place of named tuples and dataclasses."""
    if hasattr(x, "_asdict"):
        return {name: _plain(part) for name, part in x._asdict().items()}
    if dataclasses.is_dataclass(x):
        return {field.name: _plain(getattr(x, field.name)) for field in dataclasses.fields(x)}
    if isinstance(x, Mapping):
        return {name: _plain(part) for name, part in x.items()}
    return x


def _space(observation: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return the space of an observation, an array or a dict of arrays."""
    if not isinstance(observation, Mapping):
        return of_leaf(observation)
    return spaces.Dict({name: _space(part, of_leaf) for name, part in observation.items()})


def _spaces(observation: Any, spec: Any) -> Any:
    """Return the space of an observation, given its shapes and its spec of Jumanji."""
    parts = _plain(observation)
    if not isinstance(parts, Mapping):
        return _of_spec(spec)
    return spaces.Dict({name: _spaces(part, spec[name]) for name, part in parts.items()})


def _of_actions(spec: Any) -> Any:
    """Return the space of a spec of actions, whose integers are choices."""
    space = _of_spec(spec)
    if kind_of(space) == "box" and jnp.issubdtype(space.dtype, jnp.integer):
        low, high = (np.broadcast_to(bound, space.shape) for bound in bounds_of(space))
        return MultiDiscrete(high - low + 1, start=low)
    return space


def _of_spec(spec: Any) -> Any:
    """Return the space of a spec of an array, whose kind its attributes tell."""
    if hasattr(spec, "num_values"):
        sizes = np.asarray(spec.num_values)
        return MultiDiscrete(sizes) if spec.shape else spaces.Discrete(int(sizes))
    if not hasattr(spec, "maximum"):
        return _box(spec)
    low, high = (np.asarray(bound) for bound in (spec.minimum, spec.maximum))
    return spaces.Box(low, high, tuple(spec.shape), spec.dtype)


def _box(x: Any) -> spaces.Box:
    """Return the space of all arrays with a shape and dtype."""
    low, high = bounds_of(jax.ShapeDtypeStruct(tuple(x.shape), x.dtype))
    return spaces.Box(low, high, tuple(x.shape), x.dtype)
