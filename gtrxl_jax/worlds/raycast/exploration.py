"""Finding targets in an unknown maze, with a perfect memory of what was seen."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.worlds.raycast.rays import cast_rays
from gtrxl_jax.worlds.raycast.routes import bearing, distances
from gtrxl_jax.worlds.raycast.scene import wrap_angle

UNSEEN, OPEN, WALL = range(3)


@struct.dataclass
class Sight:
    """The view from a place.

    Attributes:
      position_2: x and y of the place.
      heading: the direction of view, see `raycast.scene`.
      cell_SS: `OPEN` or `WALL` for each cell in sight, and `UNSEEN` for the others.
      target_N2: x and y of the targets in sight, and 0 for the others.
      is_seen_N: whether each target is in sight.
    """

    position_2: Float[Array, "2"]
    heading: Float[Array, ""]
    cell_SS: Int[Array, "S S"]
    target_N2: Float[Array, "N 2"]
    is_seen_N: Bool[Array, " N"]


@struct.dataclass
class Notes:
    """What is known of a maze.

    Attributes:
      cell_SS: `UNSEEN`, `OPEN` or `WALL` for each cell.
      goal_2: column and row of the unseen cell to approach.
      target_N2: x and y of the targets that have been seen.
      is_known_N: whether each target has been seen.
    """

    cell_SS: Int[Array, "S S"]
    goal_2: Int[Array, "2"]
    target_N2: Float[Array, "N 2"]
    is_known_N: Bool[Array, " N"]


def blank_notes(side: int, num_targets: int) -> Notes:
    """Return the notes on a maze of which only the outer walls are known."""
    return Notes(
        cell_SS=jnp.full((side, side), WALL, jnp.int8).at[1:-1, 1:-1].set(UNSEEN),
        goal_2=jnp.zeros(2, jnp.int32),
        target_N2=jnp.zeros((num_targets, 2), jnp.float32),
        is_known_N=jnp.zeros(num_targets, bool),
    )


def look(
    wall_SS: Int[Array, "S S"],
    target_N2: Float[Array, "N 2"],
    position_2: Float[Array, "2"],
    heading: Float[Array, ""],
    field_of_view: Float[Array, ""],
) -> Sight:
    """Return what is in view; a target is in view with the cell that it is in.

    An open cell is in sight if a ray reaches its middle before a wall; a wall, if a ray towards its
    middle enters it before any other; and the cell of the viewer always.

    Args:
      wall_SS: nonzero in walls.
      target_N2: x and y of the targets.
      position_2: x and y of the viewer.
      heading: the direction of view, see `raycast.scene`.
      field_of_view: the horizontal angle of view, in radians.
    """
    row_C, column_C = jnp.indices(wall_SS.shape).reshape(2, -1)
    cell_2C = jnp.stack([column_C, row_C]).astype(jnp.float32)
    place_21 = position_2[:, None]
    ray_2C = cell_2C + 0.5 - place_21
    distance_C, _ = cast_rays(wall_SS, position_2, ray_2C)
    # The cell a little behind the point at which the ray enters a wall.
    entered_2C = jnp.floor(place_21 + (distance_C + 1e-3)[None] * ray_2C)
    is_reached_C = jnp.where(
        wall_SS.reshape(-1) > 0, jnp.all(entered_2C == cell_2C, axis=0), distance_C >= 1
    )
    off_C = wrap_angle(jnp.arctan2(ray_2C[1], ray_2C[0]) - heading)
    is_here_C = jnp.all(cell_2C == jnp.floor(place_21), axis=0)
    is_seen_C = is_here_C | (is_reached_C & (jnp.abs(off_C) <= field_of_view / 2))
    is_seen_SS = is_seen_C.reshape(wall_SS.shape)
    column_N, row_N = jnp.floor(target_N2).astype(jnp.int32).T
    is_seen_N = is_seen_SS[row_N, column_N]
    return Sight(
        position_2=position_2,
        heading=heading,
        cell_SS=jnp.where(is_seen_SS, jnp.where(wall_SS > 0, WALL, OPEN), UNSEEN).astype(jnp.int8),
        target_N2=jnp.where(is_seen_N[:, None], target_N2, 0),
        is_seen_N=is_seen_N,
    )


def explore(notes: Notes, sight: Sight, target: Int[Array, ""]) -> tuple[Notes, Float[Array, ""]]:
    """Note what is in sight, and approach a target or, where it is not known, an unseen cell.

    Ways lead through open and unseen cells. The unseen cell to approach is that at the fewest
    moves, and remains so until it has been seen.

    Args:
      notes: what is known so far.
      sight: the parts of the maze in view.
      target: the index of the target.

    Returns:
      The new notes, and the turn that leads to the goal, see `routes.bearing`.
    """
    cell_SS = jnp.where(sight.cell_SS == UNSEEN, notes.cell_SS, sight.cell_SS)
    from_here_SS = distances(cell_SS != WALL, jnp.floor(sight.position_2).astype(jnp.int32))
    nearest = jnp.argmin(jnp.where(cell_SS == UNSEEN, from_here_SS, jnp.inf)).astype(jnp.int32)
    row, column = jnp.divmod(nearest, cell_SS.shape[1])
    is_unseen = cell_SS[notes.goal_2[1], notes.goal_2[0]] == UNSEEN
    notes = Notes(
        cell_SS=cell_SS,
        goal_2=jnp.where(is_unseen, notes.goal_2, jnp.stack([column, row])),
        target_N2=jnp.where(sight.is_seen_N[:, None], sight.target_N2, notes.target_N2),
        is_known_N=notes.is_known_N | sight.is_seen_N,
    )
    goal_2 = jnp.where(
        notes.is_known_N[target], notes.target_N2[target], notes.goal_2.astype(jnp.float32) + 0.5
    )
    return notes, bearing(cell_SS != WALL, sight.position_2, sight.heading, goal_2)
