"""Numpad with a sphere that rolls and jumps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float, Int, UInt8

from gtrxl_jax.worlds.base import Step
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

PAD_SIDE, RADIUS = 0.7, 0.2
"""The side of a pad and the radius of the sphere; the centers of neighboring pads are 1 apart."""

STEP, SUBSTEPS = 0.2, 4
"""The duration of an action, and the number of integration steps in it."""


@struct.dataclass
class NumpadState(environment.EnvState):
    """The state of Numpad.

    Attributes:
      time: number of actions taken so far.
      position: (x, y) from the center of the platform, and the height above the ground.
      velocity: its derivative.
      acceleration: the change of velocity during the last action, divided by its duration.
      pad: the pad that the sphere touches, or touched before it jumped; -1 for the ground between.
      sequence: the hidden sequence and the lit pads.
    """

    position: Float[Array, "3"]
    velocity: Float[Array, "3"]
    acceleration: Float[Array, "3"]
    pad: Int[Array, ""]
    sequence: Sequence


@struct.dataclass
class NumpadParams(environment.EnvParams):
    """Parameters of Numpad; each may be an array.

    The units are the distance between the centers of two pads and the time of five actions. By
    default the sphere's top speed, push / friction, is 1, so that a pad is five actions away. A
    jump from there lasts five actions, and leads over one pad.

    Attributes:
      max_steps_in_episode: time limit in actions.
      push: acceleration by a full action along x or y.
      friction: rate at which a rolling sphere loses its speed.
      gravity: downward acceleration.
      jump: upward speed at the start of a full jump.
    """

    max_steps_in_episode: int = 500
    push: float = struct.field(default=2.5, metadata={"minimum": 0.0})
    friction: float = struct.field(default=2.5, metadata={"minimum": 0.0})
    gravity: float = struct.field(default=2.5, metadata={"minimum": 0.0})
    jump: float = struct.field(default=1.25, metadata={"minimum": 0.0})


class Numpad(environment.Environment[NumpadState, NumpadParams]):
    """Numpad: a sphere on a platform of `size` x `size` pads.

    Actions `[3]` in [-1, 1]: push the sphere along x, along y, and jump if positive. Both require
    the ground: in the air, the sphere neither changes its course nor slows down. Walls stop it at
    the edge of the platform.

    A pad is pressed, see `sequence.press`, when the sphere rolls or lands on it and the last thing
    that it touched is another pad or the ground between pads. Hence a jump over a pad does not
    press it, nor does a jump from a pad back to itself, and the sphere can roll between pads. The
    start, at rest on a random pad, does not press it either.

    Observation `[9 + size^2]`, float32: position, velocity, acceleration (see `NumpadState`), and
    1 for each lit pad. The time limit truncates the episode, and nothing else ends it.
    `info["sequences"]` is the number of completed rounds, and `info["success"]` is true from the
    first one on.

    Args:
      size: number of pads on a side: 2, 3 or 4.

    Raises:
      ValueError: if the size is invalid.
    """

    default_params = NumpadParams()
    num_actions = 3

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = require_size(size)

    def reset_env(
        self, key: jax.Array, params: NumpadParams
    ) -> tuple[Float[Array, " features"], NumpadState]:
        """Draw the sequence and the pad on which the sphere starts."""
        key_sequence, key_pad = jax.random.split(key)
        pad = jax.random.randint(key_pad, (), 0, self.size**2, jnp.int32)
        state = NumpadState(
            time=jnp.zeros((), jnp.int32),
            position=jnp.append(self._centers()[pad], 0.0),
            velocity=jnp.zeros(3, jnp.float32),
            acceleration=jnp.zeros(3, jnp.float32),
            pad=pad,
            sequence=draw_sequence(key_sequence, self.size),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: NumpadState, action: Any, params: NumpadParams
    ) -> Step[Float[Array, " features"], NumpadState]:
        """Move the sphere and press the pads that it enters. Actions are clipped to [-1, 1]."""
        action = jnp.clip(jnp.asarray(action, jnp.float32), -1, 1)

        def substep(_: Any, carry: tuple[NumpadState, Array]) -> tuple[NumpadState, Array]:
            state, reward = carry
            position, velocity = self._move(state, action, params)
            pad = self._touched_pad(position, state.pad)
            sequence, earned = press(state.sequence, jnp.where(pad == state.pad, -1, pad))
            state = state.replace(position=position, velocity=velocity, pad=pad, sequence=sequence)
            return state, reward + earned

        before = state.velocity
        carry = state, jnp.zeros((), jnp.float32)
        state, reward = jax.lax.fori_loop(0, SUBSTEPS, substep, carry)
        state = state.replace(time=state.time + 1, acceleration=(state.velocity - before) / STEP)
        completed = state.sequence.completed
        observation = self.observe(key, state, action, params)
        info = {"success": completed > 0, "sequences": completed}
        return observation, state, reward, jnp.zeros((), jnp.bool_), info

    def observe(
        self, key: jax.Array, state: NumpadState, action: Any, params: NumpadParams
    ) -> Float[Array, " features"]:
        """Return position, velocity, acceleration, and the lit pads."""
        is_lit = lit_pads(state.sequence).astype(jnp.float32)
        return jnp.concatenate([state.position, state.velocity, state.acceleration, is_lit])

    def oracle_action(self, state: NumpadState, params: NumpadParams) -> Float[Array, "3"]:
        """Return an action towards the next pad; the controller suits the default parameters."""
        target = next_pad(state.sequence)
        return self._roll_to(target, state.position, state.velocity, state.pad)

    def explorer_memory(self, params: NumpadParams) -> Notes:
        """Return the explorer's memory before an episode."""
        return first_notes(self.size)

    def explorer_action(
        self, memory: Notes, observation: Float[Array, " features"], params: NumpadParams
    ) -> tuple[Notes, Float[Array, "3"]]:
        """Return the new memory, and an action towards the pad that `explorer.explore` chooses."""
        position, velocity, is_lit = observation[:3], observation[3:6], observation[9:] > 0
        touched = self._touched_pad(position, memory.touched)
        memory, target = explore(memory, touched, is_lit, self.size)
        return memory, self._roll_to(target, position, velocity, touched)

    def action_space(self, params: NumpadParams | None = None) -> spaces.Box:
        """Return the space: push along x, along y, and jump, each in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (3,), jnp.float32)

    def observation_space(self, params: NumpadParams | None = None) -> spaces.Box:
        """Return the space: bounded by the platform and by 0 and 1, motion unbounded."""
        edge = self.size / 2
        low = np.array([-edge, -edge, 0] + [-np.inf] * 6 + [0] * self.size**2, np.float32)
        high = np.array([edge, edge, np.inf] + [np.inf] * 6 + [1] * self.size**2, np.float32)
        return spaces.Box(low, high, low.shape, jnp.float32)

    def render(self, state: NumpadState, params: NumpadParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the platform from above, see `drawing.draw_pads`; the sphere grows with its height.

        x points to the right, y down.
        """
        position = np.asarray(state.position, np.float64)
        center = position[:2] + (self.size - 1) / 2
        radius = RADIUS * (1 + float(position[2]))
        return draw_pads(state.sequence, self.size, PAD_SIDE, center, radius)

    def _move(
        self, state: NumpadState, action: Float[Array, "3"], params: NumpadParams
    ) -> tuple[Float[Array, "3"], Float[Array, "3"]]:
        """Return position and velocity after a substep, by the semi-implicit Euler method."""
        push, friction, gravity, jump = (
            jnp.asarray(x, jnp.float32)
            for x in (params.push, params.friction, params.gravity, params.jump)
        )
        dt = STEP / SUBSTEPS
        is_rolling = state.position[2] <= 0
        # Friction is implicit, so that it is stable at any rate.
        rolling = (state.velocity[:2] + dt * push * action[:2]) / (1 + dt * friction)
        rising = jump * jnp.maximum(action[2], 0)
        velocity = jnp.where(
            is_rolling,
            jnp.append(rolling, rising),
            state.velocity - dt * gravity * jnp.array([0, 0, 1], jnp.float32),
        )
        position = state.position + dt * velocity
        edge = self.size / 2 - RADIUS
        low = jnp.array([-edge, -edge, 0], jnp.float32)
        high = jnp.array([edge, edge, jnp.inf], jnp.float32)
        stopped = jnp.clip(position, low, high)
        return stopped, jnp.where(position == stopped, velocity, 0)

    def _touched_pad(self, position: Float[Array, "3"], pad: Int[Array, ""]) -> Int[Array, ""]:
        """Return the pad under the sphere, -1 for none; in the air, `pad`, the last one."""
        place = position[:2] + (self.size - 1) / 2
        cell = jnp.clip(jnp.round(place), 0, self.size - 1)
        is_on_pad = jnp.all(jnp.abs(place - cell) <= PAD_SIDE / 2)
        column, row = cell.astype(jnp.int32)
        touched = jnp.where(is_on_pad, self.size * row + column, -1)
        return jnp.where(position[2] > 0, pad, touched)

    def _roll_to(
        self,
        target: Int[Array, ""],
        position: Float[Array, "3"],
        velocity: Float[Array, "3"],
        touched: Int[Array, ""],
    ) -> Float[Array, "3"]:
        """Return an action that rolls to a pad; if it is a neighbor, past all others.

        A sphere that touches the pad already has to roll off first.
        """
        offset = (self.size - 1) / 2
        place = position[:2]
        here = jnp.clip(jnp.round(place + offset), 0, self.size - 1) - offset
        goal = self._centers()[target]
        inwards = jnp.where(here > 0, -1, 1).astype(jnp.float32)
        direction = jnp.where(touched == target, inwards, jnp.sign(goal - here))
        # The way to a diagonal neighbor leads through the corner between four pads.
        is_diagonal = jnp.all(jnp.abs(goal - here) == 1)
        corner = here + direction / 2
        way = jnp.where(is_diagonal | (touched == target), corner, goal) - place
        wanted = way / jnp.maximum(jnp.max(jnp.abs(way)), 1e-3)
        push = wanted + 4 * (wanted - velocity[:2])
        return jnp.append(jnp.clip(push, -1, 1), 0.0)

    def _centers(self) -> Float[Array, "P 2"]:
        """Return the (x, y) of the center of each pad."""
        return jnp.asarray(pad_cells(self.size) - (self.size - 1) / 2, jnp.float32)
