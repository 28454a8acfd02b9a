"""Distances along rays to the walls of a grid."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

MAX_SIDE = 32
"""The most cells along a side of a grid, since a row of cells is held in the bits of a word."""


def cast_rays(
    wall_HW: Int[Array, "H W"], origin_2: Float[Array, "2"], ray_2C: Float[Array, "2 C"]
) -> tuple[Float[Array, " C"], Bool[Array, " C"]]:
    """Return where rays first enter a wall.

    A ray enters each cell through a line of constant x or of constant y. Instead of following the
    ray from line to line (the digital differential analyzer of Amanatides and Woo 1987), this
    computes its crossings of all H + W lines at once; the nearest at which it enters a wall is
    their minimum. As the walls behind a line are bits of one word, there are no loops and no
    look-ups, and the program vectorizes over rays.

    Args:
      wall_HW: nonzero in walls, which include the border.
      origin_2: x and y of the rays' common origin, in an open cell.
      ray_2C: x and y of each ray's direction, of any length.

    Returns:
      The distances, in multiples of the lengths of `ray_2C`; and whether each wall is entered
      through a line of constant x.

    Raises:
      ValueError: if a side of the grid exceeds `MAX_SIDE`.
    """
    if max(wall_HW.shape) > MAX_SIDE:
        raise ValueError(f"a grid has at most {MAX_SIDE} cells along a side, got {wall_HW.shape}")
    x, y = origin_2
    ray_x_C, ray_y_C = ray_2C
    is_wall_HW = wall_HW > 0
    constant_x_C = _first_crossing(_pack_bits(is_wall_HW.T), x, y, ray_x_C, ray_y_C)
    constant_y_C = _first_crossing(_pack_bits(is_wall_HW), y, x, ray_y_C, ray_x_C)
    return jnp.minimum(constant_x_C, constant_y_C), constant_x_C < constant_y_C


def _pack_bits(bit_NM: Bool[Array, "N M"]) -> UInt32[Array, " N"]:
    """Return words in which bit m is `bit_NM[:, m]`."""
    value_M = jnp.left_shift(jnp.uint32(1), jnp.arange(bit_NM.shape[1], dtype=jnp.uint32))
    return jnp.sum(jnp.where(bit_NM, value_M[None], jnp.uint32(0)), axis=1, dtype=jnp.uint32)


def _first_crossing(
    word_N: UInt32[Array, " N"],
    start: Float[Array, ""],
    start_across: Float[Array, ""],
    ray_C: Float[Array, " C"],
    ray_across_C: Float[Array, " C"],
) -> Float[Array, " C"]:
    """Return the distances to the first walls entered by moving along one axis.

    Args:
      word_N: walls by cell along this axis; bit m tells whether cell m across it is a wall.
      start: the origin's coordinate along this axis.
      start_across: its coordinate along the other axis.
      ray_C: the rays' components along this axis.
      ray_across_C: their components along the other.
    """
    # A ray across the axis meets the lines far outside the grid.
    tiny = jnp.float32(1e-9)
    inverse_C = 1 / jnp.where(jnp.abs(ray_C) < tiny, tiny, ray_C)
    cell_N = jnp.arange(word_N.shape[0], dtype=jnp.float32)
    line_NC = cell_N[:, None] + (inverse_C < 0).astype(jnp.float32)[None]
    distance_NC = (line_NC - start) * inverse_C[None]
    # Outside the grid any bit will do, since the ray has met the border before.
    across_NC = jnp.floor(start_across + distance_NC * ray_across_C[None])
    bit_NC = jnp.clip(across_NC, 0, MAX_SIDE - 1).astype(jnp.uint32)
    is_wall_NC = (jnp.right_shift(word_N[:, None], bit_NC) & jnp.uint32(1)) > 0
    return jnp.min(jnp.where(is_wall_NC & (distance_NC > 0), distance_NC, jnp.inf), axis=0)
