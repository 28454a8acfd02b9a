"""A first-person ray caster in pure JAX, with mazes, motion and routes for environments on it."""

from gtrxl_jax.worlds.raycast.drawing import draw_scene as draw_scene
from gtrxl_jax.worlds.raycast.exploration import Notes as Notes
from gtrxl_jax.worlds.raycast.exploration import Sight as Sight
from gtrxl_jax.worlds.raycast.exploration import blank_notes as blank_notes
from gtrxl_jax.worlds.raycast.exploration import explore as explore
from gtrxl_jax.worlds.raycast.exploration import look as look
from gtrxl_jax.worlds.raycast.first_person import FirstPerson as FirstPerson
from gtrxl_jax.worlds.raycast.mazes import Maze as Maze
from gtrxl_jax.worlds.raycast.mazes import draw_maze as draw_maze
from gtrxl_jax.worlds.raycast.mazes import draw_places as draw_places
from gtrxl_jax.worlds.raycast.motion import move as move
from gtrxl_jax.worlds.raycast.motion import settle as settle
from gtrxl_jax.worlds.raycast.overhead import draw_overhead as draw_overhead
from gtrxl_jax.worlds.raycast.rays import cast_rays as cast_rays
from gtrxl_jax.worlds.raycast.routes import bearing as bearing
from gtrxl_jax.worlds.raycast.routes import distances as distances
from gtrxl_jax.worlds.raycast.scene import Camera as Camera
from gtrxl_jax.worlds.raycast.scene import Materials as Materials
from gtrxl_jax.worlds.raycast.scene import Posts as Posts
from gtrxl_jax.worlds.raycast.scene import Scene as Scene
from gtrxl_jax.worlds.raycast.scene import Spheres as Spheres
from gtrxl_jax.worlds.raycast.scene import direction as direction
from gtrxl_jax.worlds.raycast.scene import rgb as rgb
from gtrxl_jax.worlds.raycast.scene import wrap_angle as wrap_angle
