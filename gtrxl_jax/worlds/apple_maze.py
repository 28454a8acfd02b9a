"""The apple maze: return to an apple as often as possible, by landmarks.

GTrXL's "Memory Maze" (Parisotto et al. 2020, section 4.3 and appendix A) is not public. This
follows its description, in the ray caster; where it is silent, the numbers are this package's.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float, Int, UInt8

from gtrxl_jax.worlds.base import Step
from gtrxl_jax.worlds.raycast import (
    Camera,
    FirstPerson,
    Materials,
    Posts,
    Scene,
    Spheres,
    bearing,
    direction,
    move,
    rgb,
    wrap_angle,
)

ACTIONS = (
    "look left or right",
    "look down or up",
    "strafe left or right",
    "move back or forward",
    "rotate the hand around right",
    "rotate the hand around up",
    "rotate the hand around forward",
    "push or pull the hand",
)
"""The continuous actions, each positive for the second direction."""

ACTION_REPEAT = 4

RADIUS = 0.15
"""Half of the width of the agent's body, in cells."""

# RGB from 0 to 255: landmarks, walls around and blocks, floor, sky at the horizon and above.
_LANDMARKS = np.array(
    [
        (230, 60, 60), (60, 180, 75), (70, 110, 240), (250, 200, 40),
        (220, 80, 220), (70, 220, 230), (245, 245, 245), (250, 140, 40),
    ]
)  # fmt: skip
_WALLS = np.array([(120, 112, 104), (150, 128, 96)])
_FLOOR, _SKY = (86, 110, 80), np.array([(180, 200, 220), (90, 140, 210)])


@struct.dataclass
class AppleMazeState(environment.EnvState):
    """The state of the apple maze, in cells and radians.

    Attributes:
      time: number of actions taken so far.
      position_2: the agent's x and y.
      heading: its direction of view, see `raycast.scene`.
      pitch: angle by which it looks down.
      wall_SS: 0 in open cells, 1 in the wall around, 2 in blocks.
      landmark_8: the color of each landmark.
      apple_2: x and y of the apple.
      found: number of apples collected so far.
    """

    position_2: Float[Array, "2"]
    heading: Float[Array, ""]
    pitch: Float[Array, ""]
    wall_SS: Int[Array, "S S"]
    landmark_8: Int[Array, "8"]
    apple_2: Float[Array, "2"]
    found: Int[Array, ""]


@struct.dataclass
class AppleMazeParams(environment.EnvParams):
    """Parameters of the apple maze; its size is an argument of the environment.

    Attributes:
      max_steps_in_episode: time limit in actions.
      block_probability: probability of a block at each of its places.
      move_speed: distance of a full move or strafe, in cells per frame, of which an action lasts 4;
        at most 0.7.
      turn_speed: angle of a full look, in degrees per frame.
      touch_distance: the apple is collected by an agent this close to its middle.
    """

    max_steps_in_episode: int = 1000
    block_probability: float = struct.field(default=0.8, metadata={"minimum": 0.0, "maximum": 1.0})
    # A full move and a full strafe are sqrt(2) times as long, which must be below a cell.
    move_speed: float = struct.field(default=0.08, metadata={"minimum": 0.0, "maximum": 0.7})
    turn_speed: float = struct.field(default=5.0, metadata={"minimum": 0.0})
    touch_distance: float = struct.field(default=0.45, metadata={"minimum": 0.0})


class AppleMaze(FirstPerson[AppleMazeState, AppleMazeParams]):
    """A room with blocks, landmarks around it, and an apple at a place that stays.

    Collecting the apple earns 1 and teleports the agent to a random place, so an agent that
    remembers where the apple is among the landmarks returns faster than one that searches. The
    room, the landmarks and the apple are drawn anew in each episode, which is truncated at the time
    limit. The return is the number of apples; there is no success.

    Actions are hybrid: {"continuous": `[8]`, see `ACTIONS`, in [-1, 1] and the last in [-10, 10];
    "discrete": whether the hand grips}. Each is repeated for 4 frames. The actions of the hand have
    no effect, since there is nothing to hold. Observation: uint8 `[height, width, 3]`.

    Args:
      size: number of cells along a side without the outer walls, odd and at least 3.
      height: rows of the image.
      width: columns of the image.

    Raises:
      ValueError: if the size is even or not in 3 .. 29, or the image is smaller than 8 x 8.
    """

    default_params = AppleMazeParams()
    num_actions = len(ACTIONS) + 2
    """Eight continuous dimensions, and a choice of two."""

    def __init__(self, size: int = 9, height: int = 72, width: int = 96) -> None:
        if size % 2 == 0 or not 3 <= size < 30:
            raise ValueError(f"size must be odd, from 3 to 29, got {size}")
        super().__init__(height, width)
        self.size = size

    def reset_env(
        self, key: jax.Array, params: AppleMazeParams
    ) -> tuple[UInt8[Array, "R C 3"], AppleMazeState]:
        """Draw the blocks, the landmarks' order, the apple's place and the agent's."""
        key_block, key_landmark, key_apple, key_agent = jax.random.split(key, 4)
        apple_2 = self._place(key_apple)
        position_2, heading = self._start(key_agent, apple_2)
        state = AppleMazeState(
            time=jnp.zeros((), jnp.int32),
            position_2=position_2,
            heading=heading,
            pitch=jnp.zeros((), jnp.float32),
            wall_SS=self._blocks(key_block, params),
            landmark_8=jax.random.permutation(key_landmark, 8),
            apple_2=apple_2,
            found=jnp.zeros((), jnp.int32),
        )
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: jax.Array, state: AppleMazeState, action: Any, params: AppleMazeParams
    ) -> Step[UInt8[Array, "R C 3"], AppleMazeState]:
        """Repeat the action; the reward is the number of apples collected by it."""
        continuous = jnp.clip(jnp.asarray(action["continuous"], jnp.float32), -1, 1)
        look, nod, strafe, forward, *_ = continuous
        turn_speed = jnp.deg2rad(jnp.asarray(params.turn_speed, jnp.float32))

        def frame(state: AppleMazeState, key: jax.Array) -> tuple[AppleMazeState, None]:
            heading = wrap_angle(state.heading + look * turn_speed)
            x, y = ahead_2 = direction(heading)
            step_2 = params.move_speed * (forward * ahead_2 + strafe * jnp.stack([-y, x]))
            position_2, _ = move(state.wall_SS, state.position_2, step_2, RADIUS)
            touches = jnp.linalg.norm(position_2 - state.apple_2) <= params.touch_distance
            start_2, new_heading = self._start(key, state.apple_2)
            return state.replace(
                position_2=jnp.where(touches, start_2, position_2),
                heading=jnp.where(touches, new_heading, heading),
                pitch=jnp.clip(state.pitch - nod * turn_speed, -0.4, 0.4),
                found=state.found + touches.astype(jnp.int32),
            ), None

        after, _ = jax.lax.scan(frame, state, jax.random.split(key, ACTION_REPEAT))
        after = after.replace(time=state.time + 1)
        observation = self.observe(key, after, action, params)
        reward = (after.found - state.found).astype(jnp.float32)
        return observation, after, reward, jnp.zeros((), bool), {"found": after.found}

    def oracle_action(self, state: AppleMazeState, params: AppleMazeParams) -> dict[str, Array]:
        """Return the action that follows the shortest way to the apple, which it knows."""
        turn = bearing(state.wall_SS == 0, state.position_2, state.heading, state.apple_2)
        most = ACTION_REPEAT * jnp.deg2rad(jnp.asarray(params.turn_speed, jnp.float32))
        look = jnp.clip(turn / most, -1, 1)
        forward = (jnp.abs(turn) < 0.5).astype(jnp.float32)
        continuous_8 = jnp.zeros(8, jnp.float32).at[0].set(look).at[3].set(forward)
        return {"continuous": continuous_8, "discrete": jnp.zeros(1, jnp.int32)}

    def action_space(self, params: AppleMazeParams | None = None) -> spaces.Dict:
        """Return the space of eight continuous actions and a binary one."""
        high_8 = jnp.array([1.0] * 7 + [10.0])
        continuous = spaces.Box(-high_8, high_8, (8,), jnp.float32)
        return spaces.Dict({"continuous": continuous, "discrete": spaces.Discrete(2)})

    def _blocks(self, key: jax.Array, params: AppleMazeParams) -> Int[Array, "S S"]:
        """Draw the room: blocks at cells of even row and column, some longer by a cell.

        A block extends to the right or downward, never back, so chains of blocks cannot close a
        ring, and chains that reach the wall begin in the open: every open cell can be reached.
        """
        key_block, key_side = jax.random.split(key)
        places = self.size // 2
        is_block_NN = jax.random.bernoulli(key_block, params.block_probability, (places, places))
        side_NN = jax.random.randint(key_side, (places, places), 0, 3)
        wall_SS = jnp.ones((self.size + 2,) * 2, jnp.int8).at[1:-1, 1:-1].set(0)
        for extends_NN, row, column in (
            (is_block_NN, 2, 2),
            (is_block_NN & (side_NN == 1), 3, 2),
            (is_block_NN & (side_NN == 2), 2, 3),
        ):
            cells = np.s_[row : row + 2 * places : 2, column : column + 2 * places : 2]
            wall_SS = wall_SS.at[cells].max(2 * extends_NN.astype(jnp.int8))
        return wall_SS

    def _place(self, key: jax.Array) -> Float[Array, "2"]:
        """Draw the middle of a cell of odd row and column, where there are no blocks."""
        cell_2 = jax.random.randint(key, (2,), 0, self.size // 2 + 1)
        return 2 * cell_2.astype(jnp.float32) + 1.5

    def _start(
        self, key: jax.Array, apple_2: Float[Array, "2"]
    ) -> tuple[Float[Array, "2"], Float[Array, ""]]:
        """Draw a place other than the apple's, and a heading."""
        key_place, key_heading = jax.random.split(key)
        side = self.size // 2 + 1
        column, row = ((apple_2 - 1.5) / 2).astype(jnp.int32)
        shift = jax.random.randint(key_place, (), 1, side**2, jnp.int32)
        row, column = jnp.divmod((row * side + column + shift) % side**2, side)
        place_2 = 2 * jnp.stack([column, row]).astype(jnp.float32) + 1.5
        heading = jax.random.uniform(key_heading, (), jnp.float32, minval=-jnp.pi, maxval=jnp.pi)
        return place_2, heading

    def scene(self, state: AppleMazeState, params: AppleMazeParams) -> Scene:
        side = self.size + 2
        # In the corners and in the middles of the sides, inside the wall, which they overtop.
        edge_3 = np.array([0.5, side / 2, side - 0.5])
        place_92 = np.stack(np.meshgrid(edge_3, edge_3), axis=-1).reshape(9, 2)
        return Scene(
            wall_HW=state.wall_SS,
            floor_HW=jnp.zeros_like(state.wall_SS),
            walls=Materials(rgb(_WALLS), jnp.array([4.0, 6.0])),
            floors=Materials(rgb(_FLOOR)[None], jnp.full(1, 1.0)),
            wall_height=jnp.float32(0.7),
            sky_23=rgb(_SKY),
            spheres=Spheres(
                jnp.append(state.apple_2, 0.3)[None],
                jnp.full(1, 0.2),
                jnp.array([[0.95, 0.1, 0.1]]),
            ),
            posts=Posts(
                jnp.asarray(np.delete(place_92, 4, axis=0), jnp.float32),
                jnp.full(8, 0.35),
                jnp.tile(jnp.array([[0.0, 2.2]]), (8, 1)),
                rgb(_LANDMARKS)[state.landmark_8],
            ),
        )

    def camera(self, state: AppleMazeState, params: AppleMazeParams) -> Camera:
        return Camera(
            position_2=state.position_2,
            heading=state.heading,
            height=jnp.float32(0.5),
            field_of_view=jnp.float32(np.pi / 2),
            pitch=state.pitch,
        )
