"""Numpad on a grid: one move, one pad."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float, Int, UInt8

from gtrxl_jax.worlds.base import DiscreteActions, Step
from gtrxl_jax.worlds.numpad.drawing import draw_pads
from gtrxl_jax.worlds.numpad.explorer import Notes, explore, first_notes
from gtrxl_jax.worlds.numpad.sequence import (
    Sequence,
    draw_sequence,
    lit_pads,
    next_pad,
    pad_cells,
    press,
    require_size,
)

MOVES = tuple((column, row) for row in (-1, 0, 1) for column in (-1, 0, 1) if column or row)
"""The change of (column, row) by each action, from up-left to down-right."""


@struct.dataclass
class NumpadDiscreteState(environment.EnvState):
    """The state of Numpad on a grid.

    Attributes:
      time: number of actions taken so far.
      pad: the pad on which the agent stands.
      sequence: the hidden sequence and the lit pads.
    """

    pad: Int[Array, ""]
    sequence: Sequence


@struct.dataclass
class NumpadDiscreteParams(environment.EnvParams):
    """Parameters of Numpad on a grid.

    Attributes:
      max_steps_in_episode: time limit in actions. By default 100, the number of pads that the
        sphere of `Numpad` can press in its 500 steps.
    """

    max_steps_in_episode: int = 100


class NumpadDiscrete(
    DiscreteActions, environment.Environment[NumpadDiscreteState, NumpadDiscreteParams]
):
    """Numpad without the control problem: eight moves between the pads of a grid.

    The agent starts on a random pad. A move enters a neighboring pad and presses it, see
    `sequence.press`; a move off the grid has no effect, nor does the start press the pad.
    Observation, float32: the agent's pad and the lit pads, each as `size`^2 zeros and ones. The
    time limit truncates the episode, and nothing else ends it. `info["sequences"]` is the number of
    completed rounds, and `info["success"]` is true from the first one on.

    Args:
      size: number of pads on a side: 2, 3 or 4.

    Raises:
      ValueError: if the size is invalid.
    """

    default_params = NumpadDiscreteParams()
    num_actions = len(MOVES)

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = require_size(size)

    def reset_env(
        self, key: jax.Array, params: NumpadDiscreteParams
    ) -> tuple[Float[Array, " features"], NumpadDiscreteState]:
        """Draw the sequence and the pad on which the agent starts."""
        key_sequence, key_pad = jax.random.split(key)
        state = NumpadDiscreteState(
            time=jnp.zeros((), jnp.int32),
            pad=jax.random.randint(key_pad, (), 0, self.size**2, jnp.int32),
            sequence=draw_sequence(key_sequence, self.size),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: NumpadDiscreteState, action: Any, params: NumpadDiscreteParams
    ) -> Step[Float[Array, " features"], NumpadDiscreteState]:
        """Move the agent and press the pad that it enters."""
        row, column = jnp.divmod(state.pad, self.size)
        move = jnp.asarray(MOVES, jnp.int32)[jnp.asarray(action, jnp.int32)]
        column, row = column + move[0], row + move[1]
        is_inside = (jnp.minimum(column, row) >= 0) & (jnp.maximum(column, row) < self.size)
        entered = jnp.where(is_inside, self.size * row + column, -1)
        sequence, reward = press(state.sequence, entered)
        state = NumpadDiscreteState(
            time=state.time + 1,
            pad=jnp.where(is_inside, entered, state.pad),
            sequence=sequence,
        )
        observation = self.observe(key, state, action, params)
        info = {"success": sequence.completed > 0, "sequences": sequence.completed}
        return observation, state, reward, jnp.zeros((), jnp.bool_), info

    def observe(
        self, key: jax.Array, state: NumpadDiscreteState, action: Any, params: NumpadDiscreteParams
    ) -> Float[Array, " features"]:
        """Return the agent's pad and the lit pads, as zeros and ones."""
        is_here = jnp.arange(self.size**2) == state.pad
        return jnp.concatenate([is_here, lit_pads(state.sequence)]).astype(jnp.float32)

    def oracle_action(
        self, state: NumpadDiscreteState, params: NumpadDiscreteParams
    ) -> Int[Array, ""]:
        """Return the action of a shortest path to the next pad of the sequence."""
        return self._move_to(state.pad, next_pad(state.sequence))

    def explorer_memory(self, params: NumpadDiscreteParams) -> Notes:
        """Return the explorer's memory before an episode."""
        return first_notes(self.size)

    def explorer_action(
        self, memory: Notes, observation: Float[Array, " features"], params: NumpadDiscreteParams
    ) -> tuple[Notes, Int[Array, ""]]:
        """Return the new memory and the action of `explorer.explore`."""
        is_here, is_lit = jnp.split(observation > 0, 2)
        pad = jnp.argmax(is_here).astype(jnp.int32)
        memory, target = explore(memory, pad, is_lit, self.size)
        return memory, self._move_to(pad, target)

    def observation_space(self, params: NumpadDiscreteParams | None = None) -> spaces.Box:
        """Return the space: all components are 0 or 1."""
        return spaces.Box(0.0, 1.0, (2 * self.size**2,), jnp.float32)

    def render(
        self, state: NumpadDiscreteState, params: NumpadDiscreteParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the pads, the hidden sequence and the agent, see `drawing.draw_pads`."""
        center = pad_cells(self.size)[int(state.pad)].astype(np.float64)
        return draw_pads(state.sequence, self.size, 0.9, center, radius=0.25)

    def _move_to(self, pad: Int[Array, ""], target: Int[Array, ""]) -> Int[Array, ""]:
        """Return the action that approaches a pad; from the pad itself, one that leaves it."""
        cells = jnp.asarray(pad_cells(self.size), jnp.int32)
        inwards = jnp.where(cells[pad] > 0, -1, 1)
        step = jnp.where(pad == target, inwards, jnp.sign(cells[target] - cells[pad]))
        index = 3 * (step[1] + 1) + step[0] + 1
        return jnp.where(index > 4, index - 1, index).astype(jnp.int32)
