"""How agents meet environments: by name, by adapters, and as streams of time steps."""

from gtrxl_jax.envs.adapters import Brax, Jumanji, LegacyGymnax, XMiniGrid, adapt
from gtrxl_jax.envs.extensions import cue_of, time_limit
from gtrxl_jax.envs.multitask import MultiTaskState, MultiTaskStream
from gtrxl_jax.envs.padding import PaddedSpaces, pad_spaces
from gtrxl_jax.envs.registry import ENVIRONMENTS, make_env, register_env
from gtrxl_jax.envs.stream import Stream, StreamState
from gtrxl_jax.envs.trials import Trial

__all__ = [
    "ENVIRONMENTS",
    "Brax",
    "Jumanji",
    "LegacyGymnax",
    "MultiTaskState",
    "MultiTaskStream",
    "Stream",
    "StreamState",
    "PaddedSpaces",
    "Trial",
    "XMiniGrid",
    "adapt",
    "cue_of",
    "make_env",
    "register_env",
    "time_limit",
    "pad_spaces",
]
