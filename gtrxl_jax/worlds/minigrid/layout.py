"""The grid of MiniGrid-Memory, and what the agent sees of it.

end
# . #      O: the object to remember
# # # # #          # A #      A, B: a key and a ball, in either order
# O . . # # # # # # + #      +: next to an object, where the episode ends
# . . > . . . . . . . #      >: the agent, which starts anywhere on this row
# . . . # # # # # # + #
# # # # #          # B #
# . #
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Bool, Int

from gtrxl_jax.worlds.minigrid.tiles import Kind


@struct.dataclass
class MiniGridState(environment.EnvState):
    """The state of MiniGrid-Memory. The cells of the grid follow from it.

    Attributes:
      time: number of actions taken so far.
      x: the agent's column, from the left.
      y: the agent's row, from the top.
      direction: 0 to 3, clockwise from right.
      end: column of the wall in which the corridor ends; the objects are in the next column.
      cue: the object to remember, `Kind.KEY` or `Kind.BALL`.
      upper: the upper object at the end of the corridor; the lower one is of the other kind.
      in_view: whether the current observation shows the object to remember.
      seen: whether an observation of this episode has shown it.
    """

    x: Int[Array, ""]
    y: Int[Array, ""]
    direction: Int[Array, ""]
    end: Int[Array, ""]
    cue: Int[Array, ""]
    upper: Int[Array, ""]
    in_view: Bool[Array, ""]
    seen: Bool[Array, ""]


@struct.dataclass
class MiniGridParams(environment.EnvParams):
    """Parameters of MiniGrid-Memory; each may be an array.

    Attributes:
      max_steps_in_episode: time limit in actions, at most minigrid's 5 * size^2, which is the
        default. It does not change the reward. RATE's is 95.
      size: side of the grid including its outer walls, odd and at least 7.
      random_length: draw the column in which the corridor ends from 4, ..., size - 3 at every
        reset. Otherwise it is size - 3.

    Raises:
      ValueError: if the size or the time limit is out of range.
    """

    max_steps_in_episode: int | None = None
    size: int = 13
    random_length: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, (int, np.integer)):
            return  # an array, or a leaf of a tree that is not an environment's
        if self.size < 7 or self.size % 2 == 0:
            raise ValueError(f"size must be odd and at least 7, got {self.size}")
        limit, most = self.max_steps_in_episode, 5 * self.size**2
        if isinstance(limit, (int, np.integer)) and limit > most:
            raise ValueError(
                f"max_steps_in_episode must be at most 5 * size^2 = {most}, after which the reward "
                f"would be negative; got {limit}"
            )


def heading(state: MiniGridState) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Return the step (dx, dy) in the agent's direction."""
    east, south, west, north = (
        (state.direction == direction).astype(jnp.int32) for direction in range(4)
    )
    return east - west, south - north


@jax.jit
def cells(
    x: Int[Array | np.ndarray, "*places"],
    y: Int[Array | np.ndarray, "*places"],
    state: MiniGridState,
    params: MiniGridParams,
) -> Int[Array, "*places"]:
    """Return the `Kind` of the cells at columns x and rows y; beyond the grid they are walls."""
    size = jnp.asarray(params.size, jnp.int32)
    side = y - size // 2
    away = jnp.abs(side)
    wall = (jnp.minimum(x, y) <= 0) | (jnp.maximum(x, y) >= size - 1)
    wall |= (x <= 4) & (away == 2)  # above and below the room
    wall |= (x >= 4) & (x <= state.end) & (away == 1)  # along the corridor
    wall |= (x == state.end) & (away > 0) | (x == state.end + 2)  # beside the objects
    at_end = x == state.end + 1
    lower = Kind.KEY + Kind.BALL - state.upper
    kind = jnp.where(wall, Kind.WALL, Kind.EMPTY)
    kind = jnp.where((x == 1) & (side == -1), state.cue, kind)
    kind = jnp.where(at_end & (side == -2), state.upper, kind)
    return jnp.where(at_end & (side == 2), lower, kind)


@functools.partial(jax.jit, static_argnames="size")
def view(
    state: MiniGridState, params: MiniGridParams, size: int
) -> tuple[Int[Array, "V V"], Int[Array, "V V"], Int[Array, "V V"]]:
    """Return the `Kind`, column and row of each cell in view; the agent looks up at the last row.

    Args:
      state: the state.
      params: the environment's parameters.
      size: V, the side of the view.
    """
    right_VV, down_VV = jnp.indices((size, size), jnp.int32)
    aside_VV, ahead_VV = right_VV - size // 2, size - 1 - down_VV
    dx, dy = heading(state)
    x_VV = state.x + dx * ahead_VV - dy * aside_VV
    y_VV = state.y + dy * ahead_VV + dx * aside_VV
    kind_VV = cells(x_VV, y_VV, state, params)
    visible_VV = visible(kind_VV != Kind.WALL)
    return jnp.where(visible_VV, kind_VV, Kind.UNSEEN), x_VV, y_VV


def visible(clear_VV: Bool[Array, "V V"]) -> Bool[Array, "V V"]:
    """Return which cells of a view are visible by minigrid's rule.

    The agent's cell, in the middle of the last row, is visible. A visible cell that is clear makes
    visible its neighbors in its own row and in the next row ahead, including the diagonal ones.

    Args:
      clear_VV: whether each cell can be seen through; columns, then rows.
    """
    size = len(clear_VV)
    column_V1 = jnp.arange(size, dtype=jnp.uint32)[:, None]
    # Each row is a number, with a bit for each column.
    clear_V = jnp.sum(clear_VV.astype(jnp.uint32) << column_V1, axis=0, dtype=jnp.uint32)

    def light(lit: Array, clear: Array) -> tuple[Array, Array]:
        for _ in range(size - 1):
            lit |= _beside(lit & clear)
        return _beside(lit & clear), lit

    # A scan, since XLA would compute the first rows again for each of the last ones.
    agent = jnp.uint32(1 << size // 2)
    _, lit_V = jax.lax.scan(light, agent, clear_V, reverse=True)
    return (lit_V[None] >> column_V1) & 1 == 1


def _beside(row: Array) -> Array:
    return row | (row << 1) | (row >> 1)
