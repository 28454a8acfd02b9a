"""Two-Colors: a pillar that soon disappears tells which items heal and which harm.

The task is ViZDoom-Two-Colors of RATE (arXiv 2306.09459, appendix A), after Sorokin et al. (2022)
and Beeching et al. (2019), whose scenario runs in Doom. Here the room, the motion and the images
are computed in JAX.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import Cue, DiscreteActions, Step, require_count
from gtrxl_jax.worlds.raycast import (
    Camera,
    FirstPerson,
    Materials,
    Posts,
    Scene,
    direction,
    move,
    rgb,
    settle,
    wrap_angle,
)

LEFT, RIGHT, FORWARD, LEFT_FORWARD, RIGHT_FORWARD = range(5)
"""The actions."""

RADIUS = 0.125
"""Half of the width of the agent's body, in cells."""

FIELD_OF_VIEW = np.pi / 2
"""Angle of the view from left to right, in radians."""

# RGB from 0 to 255: red and green, then wall, floor and ceiling.
_ITEMS = np.array([(214, 40, 40), (40, 200, 70)])
_WALL, _FLOOR, _CEILING = (112, 98, 86), (92, 84, 48), (58, 54, 52)


@struct.dataclass
class TwoColorsState(environment.EnvState):
    """The state of Two-Colors, in cells and radians.

    Attributes:
      time: number of actions taken so far.
      position_2: the agent's x and y.
      heading: its direction of view, see `raycast.scene`.
      speed: its speed forward, in cells per step.
      health: its health.
      right: number of items of the pillar's color taken so far.
      wrong: number of the other items taken so far.
      color: the pillar's color, 0 red and 1 green.
      item_N2: x and y of the items; the first half is red, the second half green.
    """

    position_2: Float[Array, "2"]
    heading: Float[Array, ""]
    speed: Float[Array, ""]
    health: Float[Array, ""]
    right: Float[Array, ""]
    wrong: Float[Array, ""]
    color: Int[Array, ""]
    item_N2: Float[Array, "N 2"]


@struct.dataclass
class TwoColorsParams(environment.EnvParams):
    """Parameters of Two-Colors.

    Attributes:
      max_steps_in_episode: time limit in actions, of four of Doom's tics each.
      pillar_steps: number of observations that can show the pillar.
      empty_steps: number of steps after that without items. An agent has to remember the color for
        as long, since nothing that it sees or does tells it.
      acid: health lost in each step.
      item_health: health gained from an item of the pillar's color, and lost from another.
      max_health: health at the start, and the most that items can restore.
      item_reward: reward for an item of the pillar's color.
      alive_reward: reward for each step that the agent survives. RATE has such a reward; its size
        is this package's choice.
      move_speed: the speed that moving forward approaches, in cells per step, at most 0.99.
      move_lag: time constant of the speed, in steps.
      turn: angle of a turn, in degrees.
      touch_distance: an item is taken by an agent this close to it.
    """

    max_steps_in_episode: int = 2100
    pillar_steps: int = 45
    empty_steps: int = struct.field(default=0, metadata={"minimum": 0})
    acid: float = struct.field(default=10 / 32, metadata={"minimum": 0.0})
    item_health: float = struct.field(default=25.0, metadata={"minimum": 0.0})
    max_health: float = struct.field(default=100.0, metadata={"minimum": 1.0})
    item_reward: float = 1.0
    alive_reward: float = 0.02
    move_speed: float = struct.field(default=0.26, metadata={"minimum": 0.0, "maximum": 0.99})
    move_lag: float = struct.field(default=2.54, metadata={"minimum": 0.001})
    turn: float = struct.field(default=14.0, metadata={"minimum": 0.0})
    touch_distance: float = struct.field(default=0.28, metadata={"minimum": 0.0})


class TwoColors(DiscreteActions, FirstPerson[TwoColorsState, TwoColorsParams]):
    """Survive in a room of acid by items of the color of a pillar that disappears.

    The agent starts midway between the pillar, in the middle of the room, and a wall, and faces the
    pillar, whose color is red or green. The acid takes health in every step. An item of the
    pillar's color restores health and is rewarded; one of the other color takes as much. An item
    that is taken reappears at a random place. The episode terminates when there is no health left,
    and is truncated at the time limit. Neither health nor rewards are part of the observation.

    Actions: 0 left, 1 right, 2 forward, 3 left and forward, 4 right and forward. Observation: uint8
    `[height, width, 3]`, the view of the agent.

    Args:
      size: number of cells along a side of the room; a cell is 128 of Doom's units wide.
      items: number of items of each color.
      height: rows of the image.
      width: columns of the image.

    Raises:
      ValueError: if the size is not in 3 .. 30, or the image is smaller than 8 x 8.
    """

    cue, cue_at_start = Cue("color", (0, 1)), True
    default_params = TwoColorsParams()
    """The settings of RATE."""
    num_actions = 5

    def __init__(self, size: int = 10, items: int = 8, height: int = 64, width: int = 112) -> None:
        if not 3 <= size <= 30:
            raise ValueError(f"size must be from 3 to 30, got {size}")
        require_count("items", items)
        super().__init__(height, width)
        self.size, self.items = size, items

    def reset_env(
        self, key: jax.Array, params: TwoColorsParams
    ) -> tuple[UInt8[Array, "R C 3"], TwoColorsState]:
        """Draw the pillar's color and the places of the items."""
        key_color, key_item = jax.random.split(key)
        zero = jnp.zeros((), jnp.float32)
        state = TwoColorsState(
            time=jnp.zeros((), jnp.int32),
            position_2=jnp.array([(1 + self._middle) / 2, self._middle]),
            heading=zero,
            speed=zero,
            health=jnp.asarray(params.max_health, jnp.float32),
            right=zero,
            wrong=zero,
            color=jax.random.bernoulli(key_color).astype(jnp.int32),
            item_N2=self._places(key_item),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: TwoColorsState, action: Any, params: TwoColorsParams
    ) -> Step[UInt8[Array, "R C 3"], TwoColorsState]:
        """Turn and move the agent, take items, and apply the acid."""
        action = jnp.asarray(action, jnp.int32)
        turn = jnp.array([-1, 1, 0, -1, 1], jnp.float32)[action]
        forward = (action >= FORWARD).astype(jnp.float32)
        heading = wrap_angle(state.heading + turn * jnp.deg2rad(jnp.float32(1)) * params.turn)
        length, speed = settle(state.speed, forward * params.move_speed, 1.0, params.move_lag)
        position_2, _ = move(self._walls(), state.position_2, length * direction(heading), RADIUS)

        apart_N = jnp.linalg.norm(state.item_N2 - position_2[None], axis=1)
        taken_N = (apart_N <= params.touch_distance) & self._has_items(state, params)
        is_right_N = self._colors() == state.color
        right, wrong = (
            jnp.sum(taken_N & kind_N).astype(jnp.float32) for kind_N in (is_right_N, ~is_right_N)
        )
        health = state.health - params.acid + params.item_health * (right - wrong)
        state = state.replace(
            time=state.time + 1,
            position_2=position_2,
            heading=heading,
            speed=speed,
            health=jnp.clip(health, 0, params.max_health),
            right=state.right + right,
            wrong=state.wrong + wrong,
            item_N2=jnp.where(taken_N[:, None], self._places(key), state.item_N2),
        )
        dead = state.health <= 0
        reward = params.item_reward * right + jnp.where(
            dead, jnp.float32(0), jnp.asarray(params.alive_reward, jnp.float32)
        )
        info = {"right": state.right, "wrong": state.wrong, "health": state.health}
        return self.observe(key, state, action, params), state, reward, dead, info

    def shows_cue(
        self, state: TwoColorsState, params: TwoColorsParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the pillar is there, which the agent may or may not face."""
        return state.time < params.pillar_steps

    def oracle_action(self, state: TwoColorsState, params: TwoColorsParams) -> Int[Array, ""]:
        """Return the action that leads to the nearest item of the right color, past the others.

        It knows the color, and otherwise only what is in view, so that a model can imitate it:
        where no item of the right color is in view, it turns right.
        """
        offset_N2 = state.item_N2 - state.position_2[None]
        apart_N = jnp.linalg.norm(offset_N2, axis=1) + 1e-6
        bearing_N = wrap_angle(jnp.arctan2(offset_N2[:, 1], offset_N2[:, 0]) - state.heading)
        in_view_N = jnp.abs(bearing_N) < FIELD_OF_VIEW / 2
        is_right_N = self._colors() == state.color
        is_goal_N = is_right_N & in_view_N & self._has_items(state, params)
        nearest = jnp.argmin(jnp.where(is_goal_N, apart_N, jnp.inf))
        unit_N2 = offset_N2 / apart_N[:, None]
        # Wrong items repel within 0.8 cells.
        push_N = jnp.where(in_view_N & ~is_right_N, 2 * jnp.maximum(0.8 - apart_N, 0), 0)
        aim_2 = unit_N2[nearest] - jnp.sum(push_N[:, None] * unit_N2, axis=0)
        turn = wrap_angle(jnp.arctan2(aim_2[1], aim_2[0]) - state.heading)
        walking = jnp.where(turn > 0, RIGHT_FORWARD, LEFT_FORWARD)
        walking = jnp.where(jnp.abs(turn) < 0.13, FORWARD, walking)
        turning = jnp.where(turn > 0, RIGHT, LEFT)
        action = jnp.where(jnp.abs(turn) < 0.8, walking, turning)
        return jnp.where(jnp.any(is_goal_N), action, RIGHT).astype(jnp.int32)

    def _has_items(self, state: TwoColorsState, params: TwoColorsParams) -> Bool[Array, ""]:
        since = state.time - params.pillar_steps
        return (since < 0) | (since >= params.empty_steps)

    @property
    def _middle(self) -> float:
        """Both coordinates of the middle of the room, whose walls are a cell thick."""
        return 1 + self.size / 2

    def _walls(self) -> Int[Array, "S S"]:
        side = self.size + 2
        return jnp.ones((side, side), jnp.int8).at[1:-1, 1:-1].set(0)

    def _places(self, key: jax.Array) -> Float[Array, "N 2"]:
        """Draw places in the room, away from its walls."""
        shape = (2 * self.items, 2)
        return jax.random.uniform(key, shape, minval=1.3, maxval=self.size + 0.7)

    def _colors(self) -> Int[Array, " N"]:
        return jnp.repeat(jnp.arange(2, dtype=jnp.int32), self.items)

    def scene(self, state: TwoColorsState, params: TwoColorsParams) -> Scene:
        middle_12 = jnp.full((1, 2), self._middle)
        pillar = jnp.where(self.shows_cue(state, params), jnp.float32(0.16), jnp.float32(0))
        item = jnp.where(self._has_items(state, params), jnp.float32(0.15), jnp.float32(0))
        color_23 = rgb(_ITEMS)
        number = 2 * self.items
        return Scene(
            wall_HW=self._walls(),
            floor_HW=jnp.zeros_like(self._walls()),
            walls=Materials(rgb(_WALL)[None], jnp.full(1, 4.0)),
            floors=Materials(rgb(_FLOOR)[None], jnp.full(1, 2.0)),
            wall_height=jnp.float32(1),
            sky_23=jnp.stack([rgb(_CEILING)] * 2),
            posts=Posts(
                jnp.concatenate([middle_12, state.item_N2]),
                jnp.append(pillar, jnp.full(number, item)),
                jnp.array([(0.0, 0.6)] + [(0.0, 0.15)] * number),
                color_23[jnp.append(state.color, self._colors())],
            ),
        )

    def camera(self, state: TwoColorsState, params: TwoColorsParams) -> Camera:
        return Camera(
            position_2=state.position_2,
            heading=state.heading,
            height=jnp.float32(0.32),
            field_of_view=jnp.float32(FIELD_OF_VIEW),
            pitch=jnp.float32(0),
        )
