"""The tasks: environments with gymnax's interface. Of this package, they import only `ops`."""

from gtrxl_jax.worlds.apple_maze import AppleMaze as AppleMaze
from gtrxl_jax.worlds.associative import AssociativeRetrieval as AssociativeRetrieval
from gtrxl_jax.worlds.battleship import Battleship as Battleship
from gtrxl_jax.worlds.color_cubes import ColorCubes as ColorCubes
from gtrxl_jax.worlds.endless_tmaze import EndlessTMaze as EndlessTMaze
from gtrxl_jax.worlds.memory_chain import MemoryChain as MemoryChain
from gtrxl_jax.worlds.memory_maze import MemoryMaze as MemoryMaze
from gtrxl_jax.worlds.minigrid.memory import MiniGridMemory as MiniGridMemory
from gtrxl_jax.worlds.numpad import Numpad as Numpad
from gtrxl_jax.worlds.numpad import NumpadDiscrete as NumpadDiscrete
from gtrxl_jax.worlds.rocksample import RockSample as RockSample
from gtrxl_jax.worlds.tmaze import ActiveTMaze as ActiveTMaze
from gtrxl_jax.worlds.tmaze import PassiveTMaze as PassiveTMaze
from gtrxl_jax.worlds.two_colors import TwoColors as TwoColors
