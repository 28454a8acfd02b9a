"""How agents meet environments: by name, by adapters, and as streams of time steps."""

from gtrxl_jax.envs.adapters import Brax as Brax
from gtrxl_jax.envs.adapters import Jumanji as Jumanji
from gtrxl_jax.envs.adapters import LegacyGymnax as LegacyGymnax
from gtrxl_jax.envs.adapters import XMiniGrid as XMiniGrid
from gtrxl_jax.envs.adapters import adapt as adapt
from gtrxl_jax.envs.extensions import cue_of as cue_of
from gtrxl_jax.envs.extensions import time_limit as time_limit
from gtrxl_jax.envs.multitask import MultiTaskState as MultiTaskState
from gtrxl_jax.envs.multitask import MultiTaskStream as MultiTaskStream
from gtrxl_jax.envs.padding import PaddedSpaces as PaddedSpaces
from gtrxl_jax.envs.padding import pad_spaces as pad_spaces
from gtrxl_jax.envs.registry import ENVIRONMENTS as ENVIRONMENTS
from gtrxl_jax.envs.registry import make_env as make_env
from gtrxl_jax.envs.registry import register_env as register_env
from gtrxl_jax.envs.stream import Stream as Stream
from gtrxl_jax.envs.stream import StreamState as StreamState
from gtrxl_jax.envs.trials import Trial as Trial
