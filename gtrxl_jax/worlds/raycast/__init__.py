"""A first-person ray caster in pure JAX, with mazes, motion and routes for environments on it."""

from gtrxl_jax.worlds.raycast.drawing import draw_scene
from gtrxl_jax.worlds.raycast.exploration import Notes, Sight, blank_notes, explore, look
from gtrxl_jax.worlds.raycast.first_person import FirstPerson
from gtrxl_jax.worlds.raycast.mazes import Maze, draw_maze, draw_places
from gtrxl_jax.worlds.raycast.motion import move, settle
from gtrxl_jax.worlds.raycast.overhead import draw_overhead
from gtrxl_jax.worlds.raycast.rays import cast_rays
from gtrxl_jax.worlds.raycast.routes import bearing, distances
from gtrxl_jax.worlds.raycast.scene import (
    Camera,
    Materials,
    Posts,
    Scene,
    Spheres,
    direction,
    rgb,
    wrap_angle,
)

__all__ = [
    "Camera",
    "FirstPerson",
    "Materials",
    "Maze",
    "Notes",
    "Posts",
    "Scene",
    "Sight",
    "Spheres",
    "bearing",
    "blank_notes",
    "cast_rays",
    "direction",
    "distances",
    "draw_maze",
    "draw_overhead",
    "draw_places",
    "draw_scene",
    "explore",
    "look",
    "move",
    "rgb",
    "settle",
    "wrap_angle",
]
