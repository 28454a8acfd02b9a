"""MiniGrid-Memory: see an object in a room, then go to its match at the end of a corridor.

The rules follow `MemoryEnv` of the package minigrid (Chevalier-Boisvert et al. 2023). It is
one of the tasks of RATE (arXiv 2306.09459, appendix A). See `minigrid_layout` for the grid.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.base import (
    Cue,
    DiscreteActions,
    Step,
    TimeLimit,
    require_choice,
    require_count,
)
from gtrxl_jax.worlds.minigrid.layout import MiniGridParams, MiniGridState, cells, heading, view
from gtrxl_jax.worlds.minigrid.tiles import Kind, draw_tile

LEFT, RIGHT, FORWARD = range(3)
"""The actions that have an effect: turn left, turn right, move forward."""

ACTION_NAMES = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")

EAST, SOUTH, WEST, NORTH = range(4)
"""The directions of the agent."""

OBSERVATIONS = ("one-hot", "symbolic", "rgb")
"""The forms of an observation, see `MiniGridMemory`."""

ENCODING = ((0, 0, 0), (1, 0, 0), (2, 5, 0), (5, 1, 0), (6, 1, 0))
"""minigrid's numbers for each kind of cell: object, color, state (of doors)."""

Observation = Float[Array, " features"] | UInt8[Array, "H W 3"]

_IMAGE_SIDE = 84
_WINDOW = 31
"""Cells along a side of the largest rendered window."""


class MiniGridMemory(
    DiscreteActions, TimeLimit, environment.Environment[MiniGridState, MiniGridParams]
):
    """MiniGrid-Memory with the rules, observations and rewards of the package minigrid.

    The agent starts anywhere on the middle row up to the end of the corridor, and looks right. It
    moves through empty cells; objects and walls block it. Moving next to one of the two objects at
    the end ends the episode. Next to the one that matches the object in the room, the reward is
    1 - 0.9 * t / (5 * size^2), where t is the number of actions, and `info["success"]` is true; all
    other rewards are 0. `info["cue_seen"]` is whether the agent has seen the object in the room.

    Actions: 0 turn left, 1 turn right, 2 forward. minigrid's other four (pick up, drop, toggle,
    done) have no effect in this task.

    The agent sees the square of cells in front of it, from the middle of the square's last row, and
    does not see through walls. The `observation` is one of

        "one-hot"   float32, flat, of length 5 * view_size^2: the `Kind` of each cell
        "symbolic"  uint8 [view_size, view_size, 3]: minigrid's encoding, see `ENCODING`
        "rgb"       uint8 [H, W, 3]: minigrid's image of the view, with a square for each cell

    The first axis of the first two goes from left to right and the second from far to near. In a
    grid of at most view_size + 2 cells, the agent can see all three objects at once, so the task
    requires no memory.

    Args:
      size: default of `MiniGridParams.size`.
      random_length: default of `MiniGridParams.random_length`.
      view_size: side of the view in cells, odd and from 3 to 31. 3 in RATE.
      observation: form of the observation.
      tile_size: side of a cell in pixels for "rgb". By default 84 // view_size, which results in an
        image of 84 x 84 for views of 3 and 7.
      num_actions: 7 as in minigrid, or 3 without the actions that have no effect, as in RATE.

    Raises:
      ValueError: if an argument is out of range.
      TypeError: if `tile_size` is no whole number.
    """

    cue, cue_at_start = Cue("cue", (Kind.KEY, Kind.BALL)), True

    def __init__(
        self,
        size: int = 13,
        random_length: bool = False,
        view_size: int = 7,
        observation: str = "one-hot",
        tile_size: int | None = None,
        num_actions: int = 7,
    ) -> None:
        super().__init__()
        if view_size % 2 == 0 or not 3 <= view_size <= 31:
            raise ValueError(f"view_size must be odd and from 3 to 31, got {view_size}")
        if num_actions not in (3, 7):
            raise ValueError(f"num_actions must be 3 or 7, got {num_actions}")
        if tile_size is not None:
            require_count("tile_size", tile_size)
        self._params = MiniGridParams(size=size, random_length=random_length)
        self.view_size = view_size
        self.observation = require_choice("observation", observation, OBSERVATIONS)
        self.tile_size = tile_size or _IMAGE_SIDE // view_size
        self._num_actions = num_actions
        self.action_names = ACTION_NAMES[:num_actions]

    @property
    def default_params(self) -> MiniGridParams:
        """The default parameters: the constructor's, and minigrid's time limit."""
        return self._params

    @property
    def chance(self) -> float | None:
        """0.5, the success of guessing; None if the task can be solved without memory."""
        shortest = 7 if self._params.random_length else self._params.size
        return 0.5 if shortest > self.view_size + 2 else None

    def default_time_limit(self, params: MiniGridParams) -> int | Array:
        return 5 * params.size**2

    def reset_env(
        self, key: jax.Array, params: MiniGridParams
    ) -> tuple[Observation, MiniGridState]:
        """Draw the length of the corridor, the agent's column and the objects."""
        size = jnp.asarray(params.size, jnp.int32)
        # As in `draw_noise`, remainders of random bits, whose bias is negligible.
        bits_4 = jax.random.bits(key, (4,), jnp.uint32)

        def below(number: int, count: int | Array) -> Int[Array, ""]:
            return (bits_4[number] % jnp.asarray(count, jnp.uint32)).astype(jnp.int32)

        end = jnp.where(params.random_length, 4 + below(0, size - 6), size - 3)
        no = jnp.zeros((), jnp.bool_)
        state = MiniGridState(
            time=jnp.zeros((), jnp.int32),
            x=1 + below(1, end),
            y=size // 2,
            direction=jnp.full((), EAST, jnp.int32),
            end=end,
            cue=Kind.KEY + below(2, 2),
            upper=Kind.KEY + below(3, 2),
            in_view=no,
            seen=no,
        )
        return self._look(state, params)

    def step_env(
        self, key: jax.Array, state: MiniGridState, action: Any, params: MiniGridParams
    ) -> Step[Array, MiniGridState]:
        """Turn or move the agent."""
        action = jnp.asarray(action, jnp.int32)
        turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
        dx, dy = heading(state)
        is_free = cells(state.x + dx, state.y + dy, state, params) == Kind.EMPTY
        moves = ((action == FORWARD) & is_free).astype(jnp.int32)
        state = state.replace(
            time=state.time + 1,
            x=state.x + moves * dx,
            y=state.y + moves * dy,
            direction=(state.direction + turn) % 4,
        )
        observation, state = self._look(state, params)
        side = state.y - jnp.asarray(params.size, jnp.int32) // 2
        terminated = (state.x == state.end + 1) & (side != 0)
        success = terminated & ((side < 0) == (state.upper == state.cue))
        spent = state.time.astype(jnp.float32) / jnp.asarray(5 * params.size**2, jnp.float32)
        reward = jnp.where(success, 1 - 0.9 * spent, 0.0)
        return observation, state, reward, terminated, {"success": success, "cue_seen": state.seen}

    def observe(
        self, key: jax.Array, state: MiniGridState, action: Any, params: MiniGridParams
    ) -> Observation:
        """Return what the agent sees; `key` is not used."""
        return self._look(state, params)[0]

    def oracle_action(self, state: MiniGridState, params: MiniGridParams) -> Int[Array, ""]:
        """Return the action of a solution: back until the object is seen, then to its match.

        It acts on what an agent with memory can know: where the view at the end of the corridor
        shows neither of the two objects, it turns to look.
        """
        side = state.y - jnp.asarray(params.size, jnp.int32) // 2
        is_between = (side == 0) & (state.x == state.end + 1)
        match = jnp.where(state.upper == state.cue, NORTH, SOUTH)
        onward = jnp.where(is_between, match, EAST)
        along_row = jnp.where(state.seen, onward, WEST)
        to_row = jnp.where(side < 0, SOUTH, NORTH)
        turns = (jnp.where(side == 0, along_row, to_row) - state.direction) % 4
        # Half a turn is to the left, which shows the room earlier from its left half.
        action = jnp.array([FORWARD, RIGHT, LEFT, LEFT], jnp.int32)[turns]
        kind_VV, x_VV, _ = view(state, params, self.view_size)
        is_object_VV = (kind_VV == Kind.KEY) | (kind_VV == Kind.BALL)
        knows = jnp.any(is_object_VV & (x_VV == state.end + 1))
        return jnp.where(is_between & state.seen & ~knows, LEFT, action)

    @property
    def num_actions(self) -> int:
        """The number of actions, 7 or 3."""
        return self._num_actions

    def observation_space(self, params: MiniGridParams | None = None) -> spaces.Box:
        """Return the space, bounded by the values that occur."""
        side = self.view_size
        if self.observation == "one-hot":
            return spaces.Box(0.0, 1.0, (len(Kind) * side**2,), jnp.float32)
        if self.observation == "symbolic":
            return spaces.Box(0, int(np.max(ENCODING)), (side, side, 3), jnp.uint8)
        return spaces.Box(0, 255, (side * self.tile_size, side * self.tile_size, 3), jnp.uint8)

    def shows_cue(
        self, state: MiniGridState, params: MiniGridParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether the observation of this state shows the object to remember."""
        return state.in_view

    def render(self, state: MiniGridState, params: MiniGridParams) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the grid as minigrid does, on the host: what the agent sees is highlighted.

        A grid of more than 31 x 31 cells is cropped to that size around the agent.
        """
        size = int(params.size)
        side = min(size, _WINDOW)
        agent = np.array([int(state.x), int(state.y)])
        first = np.clip(agent - side // 2, 0, size - side)
        x, y = first[:, None, None] + np.indices((side, side))
        kind_XY = np.asarray(cells(x, y, state, params))
        seen_VV, *position = map(np.asarray, view(state, params, self.view_size))
        lit = set(zip(*(p[seen_VV != Kind.UNSEEN].tolist() for p in position), strict=True))
        pixels = max(8, min(32, 512 // side))

        def tile(i: int, j: int) -> np.ndarray:
            place = (first[0] + i, first[1] + j)
            heading = int(state.direction) if (agent == place).all() else None
            return draw_tile(Kind(kind_XY[i, j]), pixels, place in lit, heading)

        return np.concatenate(
            [np.concatenate([tile(i, j) for i in range(side)], axis=1) for j in range(side)]
        )

    def _look(
        self, state: MiniGridState, params: MiniGridParams
    ) -> tuple[Observation, MiniGridState]:
        """Return the observation, and the state updated with whether it shows the cue."""
        kind_VV, x_VV, y_VV = view(state, params, self.view_size)
        middle = jnp.asarray(params.size, jnp.int32) // 2
        in_view = ((kind_VV != Kind.UNSEEN) & (x_VV == 1) & (y_VV == middle - 1)).any()
        state = state.replace(in_view=in_view, seen=state.seen | in_view)
        return self._encode(kind_VV), state

    def _encode(self, kind_VV: Int[Array, "V V"]) -> Observation:
        """Return the observation of the kinds of the cells in view."""
        if self.observation == "one-hot":
            return jax.nn.one_hot(kind_VV, len(Kind), dtype=jnp.float32).ravel()
        if self.observation == "symbolic":
            return jnp.asarray(ENCODING, jnp.uint8)[kind_VV]
        tiles = [draw_tile(kind, self.tile_size, lit=kind != Kind.UNSEEN) for kind in Kind]
        tiles += [draw_tile(Kind.EMPTY, self.tile_size, lit=True, heading=NORTH)]
        side, pixels = self.view_size, self.tile_size
        shown_VV = kind_VV.at[side // 2, side - 1].set(len(Kind))
        # Whole rows of the tiles' pixels: [cell, row, cell, pixels of the row].
        rows = jnp.asarray(np.stack(tiles).reshape(len(tiles), pixels, 3 * pixels))
        image = rows[shown_VV.T[:, None], jnp.arange(pixels)[None, :, None]]
        return image.reshape(side * pixels, side * pixels, 3)
