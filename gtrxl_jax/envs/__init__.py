"""Environments with gymnax's interface, and the streams of time steps that agents consume."""

from gtrxl_jax.envs.adapters import Brax, LegacyGymnax, adapt
from gtrxl_jax.envs.apple_maze import AppleMaze
from gtrxl_jax.envs.associative import AssociativeRetrieval
from gtrxl_jax.envs.battleship import Battleship
from gtrxl_jax.envs.knowledge import Cue, cue_of, time_limit
from gtrxl_jax.envs.memory_chain import MemoryChain
from gtrxl_jax.envs.memory_maze import MemoryMaze
from gtrxl_jax.envs.minigrid import MiniGridMemory
from gtrxl_jax.envs.multitask import MultiTaskState, MultiTaskStream
from gtrxl_jax.envs.numpad import Numpad, NumpadDiscrete
from gtrxl_jax.envs.registry import ENVIRONMENTS, make_env, register_env
from gtrxl_jax.envs.rocksample import RockSample
from gtrxl_jax.envs.stream import EpisodeStats, Stream, StreamState
from gtrxl_jax.envs.tmaze import ActiveTMaze, PassiveTMaze
from gtrxl_jax.envs.two_colors import TwoColors
from gtrxl_jax.envs.united import United, unite

__all__ = [
    "ENVIRONMENTS",
    "ActiveTMaze",
    "AppleMaze",
    "AssociativeRetrieval",
    "Battleship",
    "Brax",
    "Cue",
    "LegacyGymnax",
    "EpisodeStats",
    "MemoryChain",
    "MemoryMaze",
    "MiniGridMemory",
    "MultiTaskState",
    "MultiTaskStream",
    "Numpad",
    "NumpadDiscrete",
    "PassiveTMaze",
    "RockSample",
    "Stream",
    "StreamState",
    "TwoColors",
    "United",
    "adapt",
    "cue_of",
    "make_env",
    "register_env",
    "time_limit",
    "unite",
]
