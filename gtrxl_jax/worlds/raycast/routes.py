"""Shortest ways through a grid, and how to steer along them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.worlds.raycast.scene import wrap_angle

FAR = 1e4
"""The distance of cells from which there is no way."""


def distances(open_HW: Bool[Array, "H W"], goal_2: Int[Array, "2"]) -> Float[Array, "H W"]:
    """Return the number of moves from each cell to a goal, see `distances_to_any`.

    Args:
      open_HW: whether each cell can be entered; false at the border.
      goal_2: the goal's column and row.
    """
    is_goal_HW = jnp.zeros(open_HW.shape, jnp.bool_).at[goal_2[1], goal_2[0]].set(True)
    return distances_to_any(open_HW, is_goal_HW)


def distances_to_any(
    open_HW: Bool[Array, "H W"], is_goal_HW: Bool[Array, "H W"]
) -> Float[Array, "H W"]:
    """Return the number of moves from each cell to the nearest goal, in the four directions.

    Relaxes d = min(d, 1 + d of the neighbors) until nothing changes.

    Args:
      open_HW: whether each cell can be entered; false at the border.
      is_goal_HW: whether each cell is a goal.
    """
    start_HW = jnp.where(is_goal_HW, 0.0, jnp.float32(FAR))

    def relax(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_HW, _ = carry
        nearest_HW = jnp.min(_neighbors(d_HW), axis=0)
        new_HW = jnp.where(open_HW, jnp.minimum(d_HW, 1 + nearest_HW), d_HW)
        return new_HW, jnp.any(new_HW < d_HW)

    return jax.lax.while_loop(lambda carry: carry[1], relax, (start_HW, jnp.bool_(True)))[0]


def bearing(
    open_HW: Bool[Array, "H W"],
    position_2: Float[Array, "2"],
    heading: Float[Array, ""],
    goal_2: Float[Array, "2"],
) -> Float[Array, ""]:
    """Return the turn, in (-pi, pi], that makes the heading point along the shortest way to a goal.

    The way leads through the middles of cells; in the goal's cell, straight to the goal.
    """
    column, row = cell_2 = jnp.floor(position_2).astype(jnp.int32)
    goal_cell_2 = jnp.floor(goal_2).astype(jnp.int32)
    d_HW = distances(open_HW, goal_cell_2)
    move_42 = jnp.array([(0, 1), (0, -1), (1, 0), (-1, 0)], jnp.int32)
    d_4 = d_HW[row + move_42[:, 1], column + move_42[:, 0]]
    next_2 = (cell_2 + move_42[jnp.argmin(d_4)]).astype(jnp.float32) + 0.5
    aim_2 = jnp.where(jnp.all(cell_2 == goal_cell_2), goal_2, next_2) - position_2
    return wrap_angle(jnp.arctan2(aim_2[1], aim_2[0]) - heading)


def _neighbors(x_HW: Array) -> Array:
    """Return the values of the four neighbors of each cell, around the grid at its border."""
    return jnp.stack([jnp.roll(x_HW, shift, axis) for shift in (1, -1) for axis in (0, 1)])


def fill_dead_ends(open_HW: Bool[Array, "H W"]) -> Bool[Array, "H W"]:
    """Return the grid with dead ends filled: open cells with fewer than two open neighbors."""

    def fill(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        open_HW, _ = carry
        kept_HW = open_HW & (jnp.sum(_neighbors(open_HW), axis=0, dtype=jnp.int32) > 1)
        return kept_HW, jnp.any(kept_HW != open_HW)

    return jax.lax.while_loop(lambda carry: carry[1], fill, (open_HW, jnp.bool_(True)))[0]
