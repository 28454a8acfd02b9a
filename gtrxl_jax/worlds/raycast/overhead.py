"""Images of scenes for people, drawn on the host."""

from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from gtrxl_jax.worlds.raycast.scene import Camera, Scene

_SIDE = 256
"""Pixels along the longer side of an image, rounded down to whole pixels per cell."""


def draw_overhead(scene: Scene, camera: Camera) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a scene from above; the camera is a white arrow.

    Args:
      scene: the scene, whose arrays may be on any device.
      camera: the camera.
    """
    wall_HW, floor_HW = np.asarray(scene.wall_HW, int), np.asarray(scene.floor_HW, int)
    scale = max(2, _SIDE // max(wall_HW.shape))
    walls, floors = np.asarray(scene.walls.color_M3), np.asarray(scene.floors.color_M3)
    color_HW3 = np.where(wall_HW[..., None] > 0, walls[wall_HW - 1], floors[floor_HW])
    image = color_HW3.repeat(scale, axis=0).repeat(scale, axis=1)
    rows, columns = image.shape[:2]
    y, x = (np.mgrid[:rows, :columns] + 0.5) / scale
    for (x_n, y_n), radius, color_3 in _objects(scene):
        image[np.hypot(x - x_n, y - y_n) < radius] = color_3
    (x_c, y_c), heading = np.asarray(camera.position_2), float(camera.heading)
    ahead = (x - x_c) * np.cos(heading) + (y - y_c) * np.sin(heading)
    right = (y - y_c) * np.cos(heading) - (x - x_c) * np.sin(heading)
    image[(ahead > -0.25) & (np.abs(right) < 0.5 * (0.4 - ahead))] = 1
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def beside(
    image: UInt8[np.ndarray, "h w 3"], other: UInt8[np.ndarray, "H W 3"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Place an image, enlarged by a whole factor, beside a larger one, with a gap between them."""
    scale = max(1, round(len(other) / len(image)))
    image = image.repeat(scale, axis=0).repeat(scale, axis=1)
    height = max(len(image), len(other))
    parts = [image, np.zeros((height, 8, 3), np.uint8), other]
    return np.concatenate(
        [np.pad(part, ((0, height - len(part)), (0, 0), (0, 0))) for part in parts], axis=1
    )


def _objects(scene: Scene) -> list[tuple[Float[np.ndarray, "2"], Any, Float[np.ndarray, "3"]]]:
    """Return positions, radii and colors of spheres and posts."""
    groups: list[tuple[Any, ...]] = []
    if (spheres := scene.spheres) is not None:
        groups.append((spheres.center_N3[:, :2], spheres.radius_N, spheres.color_N3))
    if (posts := scene.posts) is not None:
        groups.append((posts.position_N2, posts.radius_N, posts.color_N3))
    return [one for arrays in groups for one in zip(*map(np.asarray, arrays), strict=True)]
