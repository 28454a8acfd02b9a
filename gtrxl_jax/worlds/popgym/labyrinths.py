"""POPGym's labyrinths: mazes of which only the squares around the agent are observed."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from gtrxl_jax.worlds.base import Step, require_count
from gtrxl_jax.worlds.cells import Cell, draw_cells
from gtrxl_jax.worlds.popgym.task import Task, TaskParams, integer, multi_discrete
from gtrxl_jax.worlds.raycast.routes import distances_to_any

FREE, OBSTACLE, START, GOAL, HIDDEN = range(5)
"""The kinds of squares. HIDDEN is in the package's space of observations, but is never observed."""

MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""The change of row and column by each action: left, right, up, down."""

NO_ACTION = len(MOVES)
"""The previous action in the first observation."""


@struct.dataclass
class LabyrinthState(environment.EnvState):
    """The state of a labyrinth.

    Attributes:
      time: number of actions taken so far.
      square_SS: the kind of each square.
      explored_SS: whether the agent has been on each square.
      position_2: row and column of the agent.
      action: the previous action.
    """

    square_SS: Int[Array, "S S"]
    explored_SS: Bool[Array, "S S"]
    position_2: Int[Array, "2"]
    action: Int[Array, ""]


class _Labyrinth(Task):
    """What both labyrinths share; subclasses judge a move."""

    num_actions = len(MOVES)
    action_names = ("left", "right", "up", "down")
    has_goal: bool

    def __init__(self, size: int = 10, episode_length: int = 1023):
        super().__init__()
        require_count("episode_length", episode_length)
        if size % 2 or size < 6:
            raise ValueError(f"size must be even and at least 6, got {size}")
        self.size, self.episode_length = size, episode_length

    def reset_env(
        self, key: jax.Array, params: TaskParams
    ) -> tuple[Int[Array, "10"], LabyrinthState]:
        """Draw the maze; the agent stands in the entrance."""
        key_maze, key_doors = jax.random.split(key)
        start_2, goal_2 = _draw_doors(key_doors, self.size)
        square_SS = draw_maze(key_maze, self.size).at[tuple(start_2)].set(START)
        if self.has_goal:
            square_SS = square_SS.at[tuple(goal_2)].set(GOAL)
        state = LabyrinthState(
            time=jnp.int32(0),
            square_SS=square_SS,
            explored_SS=jnp.zeros(square_SS.shape, jnp.bool_).at[tuple(start_2)].set(True),
            position_2=start_2,
            action=jnp.int32(NO_ACTION),
        )
        return self.observe(key, state, None, params), state

    def _move(self, state: LabyrinthState, action: Any) -> LabyrinthState:
        """Return the state after an action: obstacles and the border are in the way."""
        action = integer(action)
        ahead_2 = jnp.clip(state.position_2 + jnp.array(MOVES, jnp.int32)[action], 0, self.size)
        is_blocked = state.square_SS[tuple(ahead_2)] == OBSTACLE
        position_2 = jnp.where(is_blocked, state.position_2, ahead_2)
        return state.replace(
            time=state.time + 1,
            explored_SS=state.explored_SS.at[tuple(position_2)].set(True),
            position_2=position_2,
            action=action,
        )

    def observe(
        self, key: jax.Array, state: LabyrinthState, action: Any, params: TaskParams
    ) -> Int[Array, "10"]:
        """Return the squares around the agent, and its previous action."""
        place_23 = jnp.maximum(state.position_2 - 1, 0)[:, None] + jnp.arange(3)[None]
        # The view ends behind the agent's neighbors, even where it has begun at the agent.
        place_23 = jnp.where(place_23 <= state.position_2[:, None] + 1, place_23, self.size + 1)
        view_33 = state.square_SS.at[jnp.ix_(*place_23)].get(mode="fill", fill_value=OBSTACLE)
        return jnp.append(view_33.ravel(), state.action)

    @abc.abstractmethod
    def _targets(self, state: LabyrinthState) -> Bool[Array, "S S"]:
        """Return the squares to go to."""

    def oracle_action(self, state: LabyrinthState, params: TaskParams) -> Int[Array, ""]:
        """Return the first move of the shortest way to the nearest square to go to."""
        # A wall around the border, which `distances_to_any` requires.
        is_open, is_target = (
            jnp.pad(x_SS, 1) for x_SS in (state.square_SS != OBSTACLE, self._targets(state))
        )
        ahead_42 = state.position_2[None] + 1 + jnp.array(MOVES, jnp.int32)
        distance_4 = distances_to_any(is_open, is_target)[ahead_42[:, 0], ahead_42[:, 1]]
        return jnp.argmin(distance_4).astype(jnp.int32)

    def observation_space(self, params: TaskParams | None = None) -> spaces.Box:
        """Return the space of nine squares and the previous action."""
        return multi_discrete([HIDDEN + 1] * 9 + [NO_ACTION + 1])

    def render(self, state: LabyrinthState, params: TaskParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the maze, on the host: agent red, start orange, goal blue, explored green."""
        square_SS = np.asarray(state.square_SS)
        color_SS = np.array([Cell.FLOOR, Cell.WALL, Cell.DOWN, Cell.UP])[square_SS]
        color_SS[np.asarray(state.explored_SS) & (square_SS == FREE)] = Cell.LIT
        color_SS[tuple(np.asarray(state.position_2))] = Cell.AGENT
        return draw_cells(color_SS, pixels=24)


class LabyrinthExplore(_Labyrinth):
    """Visit all F free squares of a maze, which the agent enters at a random place of its border.

    Actions: 0 left, 1 right, 2 up, 3 down; obstacles are in the way. The observation is the 3 x 3
    squares around the agent, row by row, each FREE, OBSTACLE or START, and the previous action,
    from 0 to 3, or 4 in the first observation. The latter is what agents of this package know
    anyway; it is in the package's observation too. The agent is in the middle of the squares, but
    in the first one of three rows or columns where it stands in the maze's first row or column;
    squares beyond the maze are then the last ones, and are obstacles.

    A square visited for the first time earns 1 / F, and any other action -1 / (L + 1). The episode
    terminates when all squares are visited (`info["success"]`), and is truncated after L actions.
    The highest return is below 1, as there are dead ends.

    Args:
      size: number of squares along a side and of one wall around, even. The maze has a square for
        each of (size / 2)^2 rooms and for each of the passages between them, which form a tree, so
        that F = size^2 / 2 - 1. See `draw_maze`.
      episode_length: L, unless the parameters have another time limit. Rewards do not follow it.
        The package's argument of this name is L + 1.

    Raises:
      ValueError: if the size is odd or below 6, or there is no step.
    """

    has_goal = False

    def step_env(
        self, key: jax.Array, state: LabyrinthState, action: Any, params: TaskParams
    ) -> Step[Int[Array, "10"], Any]:
        """Move; a new square is rewarded."""
        after = self._move(state, action)
        is_new = ~state.explored_SS[tuple(after.position_2)]
        num_free = jnp.sum(after.square_SS == FREE, dtype=jnp.float32)
        reward = jnp.where(is_new, 1 / num_free, -1 / (self.episode_length + 1))
        success = ~jnp.any(self._targets(after))
        observation = self.observe(key, after, action, params)
        return observation, after, reward, success, {"success": success}

    def _targets(self, state: LabyrinthState) -> Bool[Array, "S S"]:
        return (state.square_SS != OBSTACLE) & ~state.explored_SS


class LabyrinthEscape(_Labyrinth):
    """Find the exit of a maze, on the side opposite to the entrance, where the agent starts.

    Actions, observations, where the exit is the square GOAL, and arguments are those of
    `LabyrinthExplore`. Every action earns -1 / (L + 1), and reaching the exit 1 more, which
    terminates the episode (`info["success"]`); it is truncated after L actions.
    """

    has_goal = True

    def step_env(
        self, key: jax.Array, state: LabyrinthState, action: Any, params: TaskParams
    ) -> Step[Int[Array, "10"], Any]:
        """Move; the exit is rewarded."""
        state = self._move(state, action)
        success = state.square_SS[tuple(state.position_2)] == GOAL
        reward = success.astype(jnp.float32) - 1 / (self.episode_length + 1)
        observation = self.observe(key, state, action, params)
        return observation, state, reward, success, {"success": success}

    def _targets(self, state: LabyrinthState) -> Bool[Array, "S S"]:
        return state.square_SS == GOAL


def draw_maze(key: jax.Array, size: int) -> Int[Array, "S S"]:
    """Draw a maze by "hunt and kill": FREE squares among OBSTACLES, S = `size` + 1 on each side.

    The M squares of odd row and column are rooms. From one of them, a random walk opens passages to
    neighbors that have not been visited. Where it is stuck, it continues from a visited room with
    such neighbors, each equally likely, until all rooms are visited. So each of M - 1 iterations
    visits one room, and the passages form a tree.

    The package's generator draws from all visited rooms until it finds one of these, which is the
    same, but stops after S^2 draws, when a room is hardly ever left.
    """
    side = size // 2
    room_M2 = np.stack(np.divmod(np.arange(side**2), side), axis=1)
    neighbor_M42 = room_M2[:, None] + np.array(MOVES)
    is_inside_M4 = np.all((neighbor_M42 >= 0) & (neighbor_M42 < side), axis=2)
    # Whatever lies outside is one more room, which counts as visited.
    neighbor_M4 = np.where(is_inside_M4, neighbor_M42 @ [side, 1], side**2).astype(np.int32)

    def visit(
        carry: tuple[Array, Array], bits_2: UInt32[Array, "2"]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        visited_N, room = carry
        is_new_M4 = ~visited_N[neighbor_M4]
        can_continue_M = visited_N[:-1] & jnp.any(is_new_M4, axis=1)
        room = jnp.where(can_continue_M[room], room, _choose(bits_2[0], can_continue_M))
        new = jnp.asarray(neighbor_M4)[room, _choose(bits_2[1], is_new_M4[room])]
        return (visited_N.at[new].set(True), new), (room, new)

    key_first, key_visit = jax.random.split(key)
    first = jax.random.randint(key_first, (), 0, side**2, jnp.int32)
    visited_N = jnp.zeros(side**2 + 1, jnp.bool_).at[jnp.stack([first, side**2])].set(True)
    # All at once, which takes half the time of draws in the loop.
    bits_E2 = jax.random.bits(key_visit, (side**2 - 1, 2), jnp.uint32)
    _, (room_E, new_E) = jax.lax.scan(visit, (visited_N, first), bits_E2)
    row_2E, column_2E = jnp.divmod(jnp.stack([room_E, new_E]), side)
    # Between the squares 2 i + 1 and 2 j + 1 is the square i + j + 1.
    passage = jnp.sum(row_2E, axis=0) + 1, jnp.sum(column_2E, axis=0) + 1
    square_SS = jnp.full((size + 1, size + 1), OBSTACLE, jnp.int32).at[1::2, 1::2].set(FREE)
    return square_SS.at[passage].set(FREE)


def _choose(bits: UInt32[Array, ""], is_choice_N: Bool[Array, " N"]) -> Int[Array, ""]:
    """Return one of the choices, as a remainder of random bits, whose bias is negligible."""
    place_N = jnp.cumsum(is_choice_N, dtype=jnp.uint32)
    return jnp.sum(place_N <= bits % place_N[-1], dtype=jnp.int32)


def _draw_doors(key: jax.Array, size: int) -> tuple[Int[Array, "2"], Int[Array, "2"]]:
    """Draw two places next to rooms, on opposite sides of a maze of `size` + 1 squares a side."""
    key_side, key_place = jax.random.split(key)
    is_last, is_upright = jax.random.bernoulli(key_side, shape=(2,))
    edge_2 = jnp.where(is_last, jnp.array([size, 0]), jnp.array([0, size]))
    along_2 = 2 * jax.random.randint(key_place, (2,), 0, size // 2) + 1
    door_22 = jnp.stack([edge_2, along_2], axis=1).astype(jnp.int32)
    start_2, goal_2 = jnp.where(is_upright, door_22, door_22[:, ::-1])
    return start_2, goal_2
