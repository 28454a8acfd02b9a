"""The formats of datasets that can be read, one file each; `format` is what they implement."""

from gtrxl_jax.data.format import register_format
from gtrxl_jax.data.formats.d4rl import D4RL
from gtrxl_jax.data.formats.dqn_replay import DQNReplay
from gtrxl_jax.data.formats.memory_maze import MemoryMaze
from gtrxl_jax.data.formats.minari import Minari
from gtrxl_jax.data.formats.minari_arrow import MinariArrow

for _kind in (MemoryMaze, DQNReplay, D4RL, Minari, MinariArrow):
    register_format(_kind)

__all__ = ["D4RL", "DQNReplay", "MemoryMaze", "Minari", "MinariArrow"]
