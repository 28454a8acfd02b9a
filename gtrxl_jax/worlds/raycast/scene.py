"""What the ray caster draws: a grid of cells, its materials, and the objects in it.

Units are cells. Cell (row, column) covers row <= y < row + 1 and column <= x < column + 1. Headings
are angles from the x axis towards the y axis: with y downward, as rows are drawn, they grow to the
right. Walls stand on the floor, at height 0. Colors are RGB in [0, 1].
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class Materials:
    """The looks of M kinds of wall or floor.

    Attributes:
      color_M3: RGB.
      courses_M: on a wall, the number of rows of bricks per cell of height; on a floor, the number
        of tiles of a chequerboard per cell along each axis. 0 for a plain surface.
    """

    color_M3: Float[Array, "M 3"]
    courses_M: Float[Array, " M"]


@struct.dataclass
class Spheres:
    """N spheres; a sphere of radius 0 is not drawn.

    Attributes:
      center_N3: x, y and height. A sphere whose center is at height 0 shows as a dome.
      radius_N: the radius.
      color_N3: RGB.
    """

    center_N3: Float[Array, "N 3"]
    radius_N: Float[Array, " N"]
    color_N3: Float[Array, "N 3"]


@struct.dataclass
class Posts:
    """N billboards: upright rectangles that face the camera, shaded like round posts.

    Attributes:
      position_N2: x and y of the axis.
      radius_N: half of the width; a post of radius 0 is not drawn.
      height_N2: heights of the lower and the upper end.
      color_N3: RGB.
    """

    position_N2: Float[Array, "N 2"]
    radius_N: Float[Array, " N"]
    height_N2: Float[Array, "N 2"]
    color_N3: Float[Array, "N 3"]


@struct.dataclass
class Scene:
    """A grid of cells and the objects in it.

    Attributes:
      wall_HW: 0 in open cells, k in walls of material k - 1. The border must be walls.
      floor_HW: the index of each cell's floor material.
      walls: materials of walls.
      floors: materials of floors.
      wall_height: height of all walls.
      sky_23: RGB of the sky (or ceiling) at the horizon, and straight up.
      spheres: spheres, if any.
      posts: posts, if any.
    """

    wall_HW: Int[Array, "H W"]
    floor_HW: Int[Array, "H W"]
    walls: Materials
    floors: Materials
    wall_height: Float[Array, ""]
    sky_23: Float[Array, "2 3"]
    spheres: Spheres | None = None
    posts: Posts | None = None


@struct.dataclass
class Camera:
    """A camera with a horizontal line of sight.

    Attributes:
      position_2: x and y, in an open cell.
      heading: the direction of view, in radians.
      height: height above the floor.
      field_of_view: horizontal angle of view in radians, below pi.
      pitch: angle in radians from the horizon down to the middle of the image. It shifts the image
        instead of tilting the camera, so vertical edges stay vertical.
    """

    position_2: Float[Array, "2"]
    heading: Float[Array, ""]
    height: Float[Array, ""]
    field_of_view: Float[Array, ""]
    pitch: Float[Array, ""]


def rgb(bytes_: np.ndarray | tuple[int, int, int]) -> Float[Array, "*N 3"]:
    """Return colors in [0, 1], given from 0 to 255."""
    return jnp.asarray(np.asarray(bytes_) / 255, jnp.float32)


def wrap_angle(angle: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the same angle in (-pi, pi]."""
    return jnp.pi - jnp.mod(jnp.pi - angle, 2 * jnp.pi)


def direction(heading: Float[Array, ""]) -> Float[Array, "2"]:
    """Return the unit vector of a heading."""
    return jnp.stack([jnp.cos(heading), jnp.sin(heading)])
