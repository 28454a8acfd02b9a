"""Motion over the floor: speeds that settle, and walls that stop a body."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def settle(
    speed: Float[Array, ""],
    wanted: Float[Array, ""],
    seconds: Float[Array, ""] | float,
    lag: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the distance covered, and the speed afterwards, while a speed approaches another.

    The solution of lag * dv/dt = wanted - v, the speed of a mass that is driven against friction.
    """
    kept = jnp.exp(-seconds / lag)
    return wanted * seconds + (speed - wanted) * lag * (1 - kept), wanted + (speed - wanted) * kept


def move(
    wall_HW: Int[Array, "H W"],
    position_2: Float[Array, "2"],
    step_2: Float[Array, "2"],
    radius: Float[Array, ""] | float,
) -> tuple[Float[Array, "2"], Bool[Array, "2"]]:
    """Move a body until walls stop it, along x first and then along y.

    The body is a square of side 2 * `radius`, so it never overlaps a wall, and slides along one.

    Args:
      wall_HW: nonzero in walls.
      position_2: x and y of the body's middle.
      step_2: the motion, below one cell along each axis, beyond which walls are missed.
      radius: half of the body's side, below half a cell.

    Returns:
      The new position, and whether a wall stopped the motion along each axis.
    """
    x, stopped_x = _move_along(wall_HW, position_2[0], position_2[1], step_2[0], radius)
    y, stopped_y = _move_along(wall_HW.T, position_2[1], x, step_2[1], radius)
    return jnp.stack([x, y]), jnp.stack([stopped_x, stopped_y])


def _move_along(
    wall_HW: Int[Array, "H W"],
    along: Float[Array, ""],
    across: Float[Array, ""],
    step: Float[Array, ""],
    radius: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Move along the grid's columns; return the coordinate, and whether a wall is in the way."""
    front = jnp.floor(along + step + jnp.sign(step) * radius)
    # Slightly narrower than the body, which may touch a wall at its side.
    side_2 = jnp.stack([across - 0.99 * radius, across + 0.99 * radius])
    side_2 = jnp.floor(side_2).astype(jnp.int32)
    stopped = jnp.any(wall_HW[side_2, front.astype(jnp.int32)] > 0) & (step != 0)
    contact = jnp.where(step > 0, front - radius, front + 1 + radius)
    return jnp.where(stopped, contact, along + step), stopped
