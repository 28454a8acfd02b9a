"""The tasks: environments with gymnax's interface. Of this package, they import only `ops`."""

from gtrxl_jax.worlds.apple_maze import AppleMaze
from gtrxl_jax.worlds.associative import AssociativeRetrieval
from gtrxl_jax.worlds.battleship import Battleship
from gtrxl_jax.worlds.color_cubes import ColorCubes
from gtrxl_jax.worlds.endless_tmaze import EndlessTMaze
from gtrxl_jax.worlds.memory_chain import MemoryChain
from gtrxl_jax.worlds.memory_maze import MemoryMaze
from gtrxl_jax.worlds.minigrid.memory import MiniGridMemory
from gtrxl_jax.worlds.numpad import Numpad, NumpadDiscrete
from gtrxl_jax.worlds.rocksample import RockSample
from gtrxl_jax.worlds.tmaze import ActiveTMaze, PassiveTMaze
from gtrxl_jax.worlds.two_colors import TwoColors

__all__ = [
    "ActiveTMaze",
    "AppleMaze",
    "AssociativeRetrieval",
    "Battleship",
    "ColorCubes",
    "EndlessTMaze",
    "MemoryChain",
    "MemoryMaze",
    "MiniGridMemory",
    "Numpad",
    "NumpadDiscrete",
    "PassiveTMaze",
    "RockSample",
    "TwoColors",
]
