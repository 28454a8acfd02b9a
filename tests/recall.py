"""A recall task that can be declared, scaled and drawn in many ways.

One of three actions is right throughout an episode, and pays 1 for each of ten steps: return 10,
and 3.3 without knowing it. Either the first observation shows it, or only the rewards tell.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

CUES = 3
BLANK = CUES
"""What is drawn after the first step."""


@struct.dataclass
class State(environment.EnvState):
    """The step, and the right action."""

    cue: Any


@struct.dataclass
class Params(environment.EnvParams):
    max_steps_in_episode: int = 11


class Recall(environment.Environment):
    """Shows the cue once, on an episode's first step, whose action does not count.

    Args:
      shown: how the cue is shown, one of `SHOWN`.
      unit: factor of the rewards.
      offset: added to every reward.
      hidden: whether the cue is never shown.
    """

    def __init__(
        self,
        shown: str = "flags",
        unit: float = 1.0,
        offset: float = 0.0,
        hidden: bool = False,
    ):
        super().__init__()
        self._space, self._draw = SHOWN[shown]
        self._unit, self._offset, self._hidden = unit, offset, hidden

    @property
    def default_params(self):
        return Params()

    def _observe(self, state):
        is_shown = (state.time == 0) & (not self._hidden)
        return self._draw(jnp.where(is_shown, state.cue, BLANK), state.time)

    def reset_env(self, key, params):
        cue = jax.random.randint(key, (), 0, CUES, jnp.int32)
        state = State(time=jnp.zeros((), jnp.int32), cue=cue)
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        counts = (state.time > 0) | self._hidden
        reward = (counts & (action == state.cue)) * self._unit + self._offset
        state = dataclasses.replace(state, time=state.time + 1)
        terminated = state.time >= params.max_steps_in_episode
        return self._observe(state), state, reward, terminated, {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def action_space(self, params=None):
        return spaces.Discrete(CUES)

    def observation_space(self, params):
        return self._space


def _among(*values: float) -> Callable[[Any], Any]:
    """Return the function that selects the value of a cue."""
    return lambda cue: jnp.asarray(values, jnp.float32)[cue]


def _filled(shape: tuple[int, ...], dtype: Any, *values: float) -> Callable[[Any, Any], Any]:
    """Return a drawing of arrays filled with the value of the cue."""
    return lambda cue, time: jnp.full(shape, _among(*values)(cue).astype(dtype), dtype)


def _grid(cue: Any, time: Any) -> Any:
    """Draw object ids of 0 to 10, as symbolic grids have them."""
    grid = jnp.zeros((7, 7, 3), jnp.uint8).at[:, :, 1].set(5)
    return grid.at[3, 3, 0].set(_among(2, 5, 8, 10)(cue).astype(jnp.uint8))


FREE = (-jnp.inf, jnp.inf)
SHOWN = {
    "flags": (spaces.Box(0.0, 1.0, (4,)), lambda cue, time: jax.nn.one_hot(cue, 4)),
    "ids of 0 to 10": (spaces.Box(0, 10, (7, 7, 3), jnp.uint8), _grid),
    "ids of 0 to 255": (spaces.Box(0, 255, (7, 7, 3), jnp.uint8), _grid),
    "brightness": (
        spaces.Box(0, 255, (16, 16, 3), jnp.uint8),
        _filled((16, 16, 3), jnp.uint8, 10, 90, 240, 128),
    ),
    "brightness, floats": (
        spaces.Box(0.0, 255.0, (16, 16, 3)),
        _filled((16, 16, 3), jnp.float32, 10, 90, 240, 128),
    ),
    "channels first": (
        spaces.Box(0, 255, (3, 16, 16), jnp.uint8),
        _filled((3, 16, 16), jnp.uint8, 10, 90, 240, 128),
    ),
    "grey": (
        spaces.Box(0, 255, (16, 16), jnp.uint8),
        _filled((16, 16), jnp.uint8, 10, 90, 240, 128),
    ),
    "stack": (
        spaces.Box(0, 255, (2, 16, 16, 3), jnp.uint8),
        _filled((2, 16, 16, 3), jnp.uint8, 10, 90, 240, 128),
    ),
    "raw units": (
        spaces.Box(*FREE, (2,)),
        lambda cue, time: jnp.stack([30_000 + 50.0 * time, _among(1e3, 2e3, 3e3, 0)(cue)]),
    ),
    "a large offset": (
        spaces.Box(*FREE, (1,)),
        _filled((1,), jnp.float32, 30e3, 30050, 30100, 29950),
    ),
    "millionths": (spaces.Box(*FREE, (1,)), _filled((1,), jnp.float32, 0, 1e-6, 2e-6, 3e-6)),
    "bounds by entry": (
        spaces.Box(jnp.array([0, 0]), jnp.array([1000, 3]), (2,), jnp.int32),
        lambda cue, time: jnp.stack([500 + time, cue]).astype(jnp.int32),
    ),
}
"""Observation spaces, and functions from the cue (or `BLANK`) and the step to an observation."""
