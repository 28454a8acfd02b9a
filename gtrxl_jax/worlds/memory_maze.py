"""Memory Maze: find colored objects in a maze, again and again, in an order given by cues.

The task is due to Pasukonis et al. (2022), "Evaluating Long-Term Memory in 3D Mazes"
(arXiv 2210.13383), whose package, memory-maze 1.0.3, runs on MuJoCo. Here the mazes, the physics
and the images are computed in JAX.
"""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float, Int, UInt8

from gtrxl_jax.worlds.base import DiscreteActions, Step, TimeLimit
from gtrxl_jax.worlds.raycast import (
    Camera,
    FirstPerson,
    Materials,
    Notes,
    Scene,
    Sight,
    Spheres,
    bearing,
    blank_notes,
    direction,
    draw_maze,
    draw_places,
    explore,
    look,
    move,
    rgb,
    settle,
    wrap_angle,
)

NOOP, FORWARD, LEFT, RIGHT, FORWARD_LEFT, FORWARD_RIGHT = range(6)
"""The actions."""

TARGETS = {9: 3, 11: 4, 13: 5, 15: 6}
"""The number of targets by the size of the maze."""

RADIUS = 0.1
"""Half of the width of the agent's body, in cells."""

# RGB from 0 to 255.
_TARGETS = np.array(
    [
        (197, 44, 35),
        (115, 197, 102),
        (45, 162, 251),
        (108, 122, 231),
        (255, 224, 68),
        (255, 148, 124),
    ]
)
_WALLS = np.array(
    [(48, 130, 190), (196, 62, 112), (98, 138, 78), (222, 190, 40), (86, 84, 186), (206, 104, 84)]
)
_FLOORS = np.array([(30, 40, 48), (62, 74, 82)])
_SKY = np.array([(30, 44, 62), (88, 128, 180)])


@struct.dataclass
class MemoryMazeState(environment.EnvState):
    """The state of Memory Maze, in cells, seconds and radians.

    Attributes:
      time: number of actions taken so far.
      position_2: the agent's x and y.
      heading: its direction of view, see `raycast.scene`.
      speed: its speed forward.
      spin: its angular speed, positive to the right.
      wall_SS: 0 in open cells, k in walls of color k - 1.
      room_SS: 1 in rooms, whose floor is brighter, and 0 elsewhere.
      target_N2: x and y of the targets.
      target: the index of the target to be found.
      found: number of targets found so far.
    """

    position_2: Float[Array, "2"]
    heading: Float[Array, ""]
    speed: Float[Array, ""]
    spin: Float[Array, ""]
    wall_SS: Int[Array, "S S"]
    room_SS: Int[Array, "S S"]
    target_N2: Float[Array, "N 2"]
    target: Int[Array, ""]
    found: Int[Array, ""]


@struct.dataclass
class MemoryMazeParams(environment.EnvParams):
    """Parameters of Memory Maze; its sizes are arguments of the environment.

    Lengths are in cells, which are 2 m wide in the original. The speeds, the lags and the distance
    of touch are those that the original's simulation shows.

    Attributes:
      max_steps_in_episode: time limit in actions. None: 1,000 for the size 9, and 1,000 more for
        each of the sizes 11, 13 and 15.
      step_seconds: duration of an action.
      move_speed: the speed that a forward action approaches, in cells per second.
      move_lag: time constant of the speed, in seconds.
      turn_speed: the angular speed that a turn approaches, in radians per second.
      turn_lag: time constant of the angular speed, in seconds.
      sliding: fraction of the motion along a wall that is left to an agent that pushes against it.
      touch_distance: a target is touched by an agent this close to its middle.
      extra_gaps: probability of each passage that would close a loop, see `draw_maze`.
      field_of_view: horizontal angle of view in degrees, at most 179.

    Raises:
      ValueError: if an action moves the agent by a cell or more.
    """

    max_steps_in_episode: int | None = None
    step_seconds: float = struct.field(default=0.25, metadata={"minimum": 0.01})
    move_speed: float = struct.field(default=1.0, metadata={"minimum": 0.0})
    move_lag: float = struct.field(default=0.19, metadata={"minimum": 0.001})
    turn_speed: float = struct.field(default=1.284, metadata={"minimum": 0.0})
    turn_lag: float = struct.field(default=0.058, metadata={"minimum": 0.001})
    sliding: float = struct.field(default=0.06, metadata={"minimum": 0.0, "maximum": 1.0})
    touch_distance: float = struct.field(default=0.387, metadata={"minimum": 0.0})
    extra_gaps: float = struct.field(default=0.3, metadata={"minimum": 0.0, "maximum": 1.0})
    field_of_view: float = struct.field(default=80.0, metadata={"minimum": 1.0, "maximum": 179.0})

    def __post_init__(self) -> None:
        speed, seconds = self.move_speed, self.step_seconds
        if not (isinstance(speed, numbers.Real) and isinstance(seconds, numbers.Real)):
            return  # an array, or a leaf of a tree that is not an environment's
        if speed * seconds >= 1:
            raise ValueError(
                "move_speed * step_seconds must be below 1 cell, as the agent would pass through "
                f"walls; got {speed:g} * {seconds:g}"
            )


class MemoryMaze(DiscreteActions, TimeLimit, FirstPerson[MemoryMazeState, MemoryMazeParams]):
    """A random maze with colored targets; the color of the image's border tells which to find.

    Each episode has a new maze. Touching the target of the border's color earns 1, and another
    target, drawn uniformly, is to be found next; touching the others has no effect. Maze and
    targets stay as they are until the episode is truncated, so an agent that remembers where it saw
    a target can return to it. The return is the number of targets found; there is no success.

    Actions: 0 no operation, 1 forward, 2 left, 3 right, 4 forward and left, 5 forward and right.
    Observation: uint8 `[height, width, 3]`, the view of the agent.

    Args:
      size: number of cells along a side without the outer walls: 9, 11, 13 or 15.
      height: rows of the image.
      width: columns of the image.

    Raises:
      ValueError: if the size is none of these, or the image is smaller than 8 x 8.
    """

    default_params = MemoryMazeParams()
    """The settings of the original."""
    num_actions = 6
    action_names = ("wait", "forward", "left", "right", "forward, left", "forward, right")

    def __init__(self, size: int = 9, height: int = 64, width: int = 64) -> None:
        if size not in TARGETS:
            raise ValueError(f"size must be one of {sorted(TARGETS)}, got {size}")
        super().__init__(height, width)
        self.size = size
        self.num_targets = TARGETS[size]

    def default_time_limit(self, params: MemoryMazeParams) -> int:
        return 500 * (self.size - 7)

    def reset_env(
        self, key: jax.Array, params: MemoryMazeParams
    ) -> tuple[UInt8[Array, "R C 3"], MemoryMazeState]:
        """Draw the maze, its targets and the start, each in a room of its own where possible."""
        key_maze, key_wall, key_place, key_heading, key_target = jax.random.split(key, 5)
        side = self.size + 2
        max_rooms, max_room_side = (9, 3) if self.size == 15 else (6, 5)
        maze = draw_maze(key_maze, side, max_rooms, max_room_side, params.extra_gaps)
        place_K2 = draw_places(key_place, maze, self.num_targets + 1)
        # Nine blocks of walls of one color each serve as landmarks.
        block_S = 3 * np.arange(side) // side
        color_33 = jax.random.randint(key_wall, (3, 3), 1, len(_WALLS) + 1)
        color_SS = color_33[block_S[:, None], block_S[None]]
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        state = MemoryMazeState(
            time=none,
            position_2=place_K2[-1],
            heading=jax.random.uniform(key_heading, (), jnp.float32, minval=-jnp.pi, maxval=jnp.pi),
            speed=zero,
            spin=zero,
            wall_SS=jnp.where(maze.open_SS, 0, color_SS).astype(jnp.int8),
            room_SS=maze.is_room_SS.astype(jnp.int8),
            target_N2=place_K2[:-1],
            target=jax.random.randint(key_target, (), 0, self.num_targets, jnp.int32),
            found=none,
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: MemoryMazeState, action: Any, params: MemoryMazeParams
    ) -> Step[UInt8[Array, "R C 3"], MemoryMazeState]:
        """Turn and move the agent, and reward it if it touches the target."""
        action = jnp.asarray(action, jnp.int32)
        forward = jnp.isin(action, jnp.array([FORWARD, FORWARD_LEFT, FORWARD_RIGHT]))
        right, left = (
            jnp.isin(action, jnp.array(x)) for x in ((RIGHT, FORWARD_RIGHT), (LEFT, FORWARD_LEFT))
        )
        side = right.astype(jnp.float32) - left.astype(jnp.float32)
        seconds = jnp.asarray(params.step_seconds, jnp.float32)
        turn, spin = settle(state.spin, side * params.turn_speed, seconds, params.turn_lag)
        length, speed = settle(
            state.speed, forward.astype(jnp.float32) * params.move_speed, seconds, params.move_lag
        )
        step_2 = length * direction(state.heading + turn / 2)
        _, stopped_2 = move(state.wall_SS, state.position_2, step_2, RADIUS)
        left_over = jnp.where(jnp.any(stopped_2), jnp.float32(params.sliding), jnp.float32(1))
        step_2 = jnp.where(stopped_2, step_2, step_2 * left_over)
        position_2, _ = move(state.wall_SS, state.position_2, step_2, RADIUS)

        key_target, key = jax.random.split(key)
        apart = jnp.linalg.norm(state.target_N2[state.target] - position_2)
        touches = apart <= params.touch_distance
        other = jax.random.randint(key_target, (), 1, self.num_targets, jnp.int32)
        state = state.replace(
            time=state.time + 1,
            position_2=position_2,
            heading=wrap_angle(state.heading + turn),
            speed=speed * left_over,
            spin=spin,
            target=jnp.where(touches, (state.target + other) % self.num_targets, state.target),
            found=state.found + touches.astype(jnp.int32),
        )
        observation = self.observe(key, state, action, params)
        reward = touches.astype(jnp.float32)
        return observation, state, reward, jnp.zeros((), bool), {"found": state.found}

    def observe(
        self, key: jax.Array, state: MemoryMazeState, action: Any, params: MemoryMazeParams
    ) -> UInt8[Array, "R C 3"]:
        """Draw the agent's view, framed in the color of the target to be found."""
        image_RC3 = super().observe(key, state, action, params)
        border = max(1, min(self.height, self.width) // 32)
        inner = np.zeros((self.height, self.width, 1), bool)
        inner[border:-border, border:-border] = True
        color_3 = jnp.asarray(_TARGETS * 0.7, jnp.uint8)[state.target]
        return jnp.where(jnp.asarray(inner), image_RC3, color_3[None, None])

    def oracle_action(self, state: MemoryMazeState, params: MemoryMazeParams) -> Int[Array, ""]:
        """Return the action that follows the shortest way to the target, which it knows."""
        goal_2 = state.target_N2[state.target]
        return _steer(bearing(state.wall_SS == 0, state.position_2, state.heading, goal_2))

    def explorer_memory(self, params: MemoryMazeParams) -> Notes:
        """Return the explorer's memory before an episode."""
        return blank_notes(self.size + 2, self.num_targets)

    def explorer_sight(
        self, state: MemoryMazeState, params: MemoryMazeParams
    ) -> tuple[Sight, Int[Array, ""]]:
        """Return what is in view, with the agent's pose, and the target to be found."""
        field_of_view = self.camera(state, params).field_of_view
        pose = state.position_2, state.heading
        return look(state.wall_SS, state.target_N2, *pose, field_of_view), state.target

    def explorer_action(
        self, memory: Notes, sight: tuple[Sight, Int[Array, ""]], params: MemoryMazeParams
    ) -> tuple[Notes, Int[Array, ""]]:
        """Return the new memory and the action of `exploration.explore`."""
        memory, turn = explore(memory, *sight)
        return memory, _steer(turn)

    def scene(self, state: MemoryMazeState, params: MemoryMazeParams) -> Scene:
        color_N3 = rgb(_TARGETS)[: self.num_targets]
        return Scene(
            wall_HW=state.wall_SS,
            floor_HW=state.room_SS,
            walls=Materials(rgb(_WALLS), jnp.full(len(_WALLS), 4.0)),
            floors=Materials(rgb(_FLOORS), jnp.full(len(_FLOORS), 2.0)),
            wall_height=jnp.float32(0.75),
            sky_23=rgb(_SKY),
            spheres=Spheres(
                jnp.pad(state.target_N2, ((0, 0), (0, 1))),
                jnp.full(self.num_targets, 0.3),
                color_N3,
            ),
        )

    def camera(self, state: MemoryMazeState, params: MemoryMazeParams) -> Camera:
        return Camera(
            # The original's camera is in front of the ball's middle.
            position_2=state.position_2 + 0.075 * direction(state.heading),
            heading=state.heading,
            height=jnp.float32(0.45),
            field_of_view=jnp.deg2rad(jnp.asarray(params.field_of_view, jnp.float32)),
            pitch=jnp.float32(0.1),
        )


def _steer(turn: Float[Array, ""]) -> Int[Array, ""]:
    """Return the action that turns by an angle, and moves forward unless it is large."""
    to_right = turn > 0
    walking = jnp.where(to_right, FORWARD_RIGHT, FORWARD_LEFT)
    turning = jnp.where(to_right, RIGHT, LEFT)
    turning = jnp.where(jnp.abs(turn) < 0.8, walking, turning)
    return jnp.where(jnp.abs(turn) < 0.17, FORWARD, turning).astype(jnp.int32)
