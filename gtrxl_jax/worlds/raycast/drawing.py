"""The first-person image of a scene."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt8

from gtrxl_jax.worlds.raycast.rays import cast_rays
from gtrxl_jax.worlds.raycast.scene import Camera, Materials, Posts, Scene, Spheres, direction

NEAR = 0.02
"""Objects nearer than this, in cells, are not drawn."""


def draw_scene(scene: Scene, camera: Camera, height: int, width: int) -> UInt8[Array, "R C 3"]:
    """Draw a scene as a camera sees it.

    One ray for each column of pixels finds its wall. Then floor and walls, and each object, are
    computed for all pixels at once, and the nearest is kept.

    Args:
      scene: the scene.
      camera: the camera.
      height: number of rows of pixels, R.
      width: number of columns of pixels, C.

    Returns:
      The image, RGB from 0 to 255.
    """
    view = _view(camera, height, width)
    objects = [*_posts(scene.posts, view), *_spheres(scene.spheres, view)]
    nearest = functools.reduce(_nearer, objects, _walls_and_floor(scene, view))
    return jax.lax.bitcast_convert_type(nearest.pixel_RC, jnp.uint8)[..., :3]


@struct.dataclass
class _View:
    """A camera's rays: the ray of a pixel is forward + right_C * rightward + up_R * upward.

    As every ray is 1 long in the forward direction, a distance in multiples of the ray's length is
    the depth behind the image plane.
    """

    eye_3: Float[Array, "3"]
    forward_2: Float[Array, "2"]
    rightward_2: Float[Array, "2"]
    right_C: Float[Array, " C"]
    up_R: Float[Array, " R"]

    @property
    def ray_2C(self) -> Float[Array, "2 C"]:
        """The rays' x and y, which a column of pixels shares."""
        return self.forward_2[:, None] + self.rightward_2[:, None] * self.right_C[None]

    def locate(self, point_2: Float[Array, "2"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return how far a point is ahead of the camera and to the right of it."""
        offset_2 = point_2 - self.eye_3[:2]
        return jnp.dot(self.forward_2, offset_2), jnp.dot(self.rightward_2, offset_2)


def _view(camera: Camera, height: int, width: int) -> _View:
    pixel = 2 * jnp.tan(camera.field_of_view / 2) / width
    x, y = forward_2 = direction(camera.heading)
    right_C = (jnp.arange(width, dtype=jnp.float32) - (width - 1) / 2) * pixel
    up_R = ((height - 1) / 2 - jnp.arange(height, dtype=jnp.float32)) * pixel
    return _View(
        eye_3=jnp.append(camera.position_2, camera.height),
        forward_2=forward_2,
        rightward_2=jnp.stack([-y, x]),
        right_C=right_C,
        up_R=up_R - jnp.tan(camera.pitch),
    )


@struct.dataclass
class _Layer:
    """Pixels and their depths, infinite where there is nothing.

    The three lowest bytes of a word are red, green and blue, since choosing between words is
    several times faster than between triples of numbers.
    """

    pixel_RC: Int[Array, "R C"]
    depth_RC: Float[Array, "R C"]


def _nearer(one: _Layer, other: _Layer) -> _Layer:
    """Return the nearer of two layers at each pixel."""
    is_other_RC = other.depth_RC < one.depth_RC
    return jax.tree.map(lambda x, y: jnp.where(is_other_RC, y, x), one, other)


def _lit(color_3: Float[Array, "3 *#S"], light: Float[Array, "*#S"]) -> Int[Array, "..."]:
    """Return colors times brightness as words."""
    byte_3 = (jnp.clip(color_3 * light[None], 0, 1) * 255 + 0.5).astype(jnp.int32)
    return byte_3[0] | (byte_3[1] << 8) | (byte_3[2] << 16)


def _walls_and_floor(scene: Scene, view: _View) -> _Layer:
    eye, ray_2C = view.eye_3[2], view.ray_2C
    depth_C, constant_x_C = cast_rays(scene.wall_HW, view.eye_3[:2], ray_2C)
    hit_2C = view.eye_3[:2, None] + depth_C[None] * ray_2C
    height_RC = eye + view.up_R[:, None] * depth_C[None]
    # A small step along the ray leads from the wall's face into its cell.
    column_C, row_C = jnp.floor(hit_2C + 1e-3 * jnp.sign(ray_2C)).astype(jnp.int32)
    kind_C = scene.wall_HW[row_C, column_C].astype(jnp.int32) - 1
    # Faces across x are darker, so that corners show.
    light_C = jnp.where(constant_x_C, jnp.float32(0.7), jnp.float32(1)) * _haze(depth_C)
    along_C = jnp.where(constant_x_C, hit_2C[1], hit_2C[0])
    joint_RC = _joints(along_C[None], height_RC, scene.walls.courses_M[kind_C][None])
    light_RC = light_C[None] * (1 - jnp.where(joint_RC, 0.4 * _contrast(depth_C)[None], 0))
    wall_RC = _lit(scene.walls.color_M3[kind_C].T[:, None], light_RC)

    depth_R = eye / jnp.maximum(-view.up_R, 1e-3)
    floor_2RC = view.eye_3[:2, None, None] + depth_R[None, :, None] * ray_2C[:, None]
    color_3RC, courses_RC = _material(scene.floors, scene.floor_HW, floor_2RC)
    tile_RC = jnp.sum(jnp.floor(floor_2RC * courses_RC[None]), axis=0) / 2
    is_odd_RC = tile_RC != jnp.floor(tile_RC)
    light_RC = _haze(depth_R)[:, None] * (
        1 - jnp.where(is_odd_RC, 0.2 * _contrast(depth_R)[:, None], 0)
    )
    floor_RC = _lit(color_3RC, light_RC)

    horizon_3, zenith_3 = scene.sky_23
    up_R = jnp.clip(view.up_R, 0, 1)[None, :, None]
    sky_R1 = _lit(
        horizon_3[:, None, None] * (1 - up_R) + zenith_3[:, None, None] * up_R, jnp.ones((1, 1))
    )

    is_floor_RC, is_sky_RC = height_RC < 0, height_RC > scene.wall_height
    depth_RC = jnp.where(is_sky_RC, jnp.float32(jnp.inf), depth_C[None])
    return _Layer(
        jnp.where(is_floor_RC, floor_RC, jnp.where(is_sky_RC, sky_R1, wall_RC)),
        jnp.where(is_floor_RC, depth_R[:, None], depth_RC),
    )


def _material(
    materials: Materials, kind_HW: Int[Array, "H W"], point_2RC: Float[Array, "2 R C"]
) -> tuple[Float[Array, "3 #R #C"], Float[Array, "#R #C"]]:
    """Return the color and the courses of the material of the cells of points."""
    rows, columns = kind_HW.shape
    limit_2 = jnp.array([columns - 1, rows - 1], jnp.float32)[:, None, None]
    column_RC, row_RC = jnp.clip(jnp.floor(point_2RC), 0, limit_2).astype(jnp.int32)
    kind_RC = kind_HW.ravel()[row_RC * columns + column_RC]
    color_3RC = materials.color_M3[0][:, None, None]
    courses_RC = materials.courses_M[0][None, None]
    # A choice between the materials is faster than three look-ups.
    for m in range(1, materials.courses_M.shape[0]):
        is_m_RC = kind_RC == m
        color_3RC = jnp.where(is_m_RC[None], materials.color_M3[m][:, None, None], color_3RC)
        courses_RC = jnp.where(is_m_RC, materials.courses_M[m], courses_RC)
    return color_3RC, courses_RC


def _haze(depth: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return the brightness of surfaces at a depth."""
    return 1 / (1 + 0.06 * depth)


def _contrast(depth: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return the contrast of patterns, which fades before they are finer than pixels."""
    return 1 / (1 + 0.1 * jnp.square(depth))


def _joints(
    along: Float[Array, "#R C"], up: Float[Array, "R C"], courses: Float[Array, "#R C"]
) -> Bool[Array, "R C"]:
    """Return whether points of a wall lie in the joints between its bricks."""
    y = up * courses
    course = jnp.floor(y)
    x = along * courses / 2 + course / 2
    return ((x - jnp.floor(x) < 0.06) | (y - course < 0.12)) & (courses > 0)


def _spheres(spheres: Spheres | None, view: _View) -> Iterator[_Layer]:
    if spheres is None:
        return
    square_RC = 1 + jnp.square(view.up_R)[:, None] + jnp.square(view.right_C)[None]
    for n in range(spheres.radius_N.shape[0]):
        radius = spheres.radius_N[n]
        ahead, right = view.locate(spheres.center_N3[n, :2])
        up = spheres.center_N3[n, 2] - view.eye_3[2]
        # The depth z of a ray r at the sphere solves |z r - center|^2 = radius^2.
        half_RC = (ahead + right * view.right_C)[None] + (up * view.up_R)[:, None]
        rest = jnp.square(ahead) + jnp.square(right) + jnp.square(up) - jnp.square(radius)
        root_RC = jnp.square(half_RC) - square_RC * rest
        depth_RC = (half_RC - jnp.sqrt(jnp.maximum(root_RC, 0))) / square_RC
        normal_RC = (view.up_R[:, None] * depth_RC - up) / jnp.maximum(radius, 1e-6)
        is_seen_RC = (root_RC > 0) & (depth_RC > NEAR)
        yield _Layer(
            _lit(spheres.color_N3[n][:, None, None], 0.75 + 0.25 * normal_RC),
            jnp.where(is_seen_RC, depth_RC, jnp.float32(jnp.inf)),
        )


def _posts(posts: Posts | None, view: _View) -> Iterator[_Layer]:
    if posts is None:
        return
    for n in range(posts.radius_N.shape[0]):
        depth, right = view.locate(posts.position_N2[n])
        # From -1 at the left edge to 1 at the right one.
        side_C = (view.right_C * depth - right) / jnp.maximum(posts.radius_N[n], 1e-6)
        height_R = view.eye_3[2] + view.up_R * depth
        low, high = posts.height_N2[n]
        is_seen_RC = (
            (jnp.abs(side_C) < 1)[None]
            & ((height_R >= low) & (height_R <= high))[:, None]
            & (depth > NEAR)
            & (posts.radius_N[n] > 0)
        )
        light_C = 0.5 + 0.5 * jnp.sqrt(jnp.maximum(1 - jnp.square(side_C), 0))
        yield _Layer(
            jnp.broadcast_to(
                _lit(posts.color_N3[n][:, None, None], light_C[None]), is_seen_RC.shape
            ),
            jnp.where(is_seen_RC, depth, jnp.float32(jnp.inf)),
        )
