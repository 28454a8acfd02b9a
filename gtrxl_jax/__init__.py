"""Memory cores for reinforcement learning agents in JAX, and the trainers that use them.

This package exports the names needed for a custom training loop: cores, agents, environments,
streams of time steps, and `load`, which loads a trained run. Training, evaluation and plotting are
in `gtrxl_jax.online`, `gtrxl_jax.offline`, `gtrxl_jax.runs`, `gtrxl_jax.acting` and
`gtrxl_jax.plots`.
"""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy
from gtrxl_jax.machine import has_tpu, set_no_tpu

if TYPE_CHECKING:
    from gtrxl_jax.envs.registry import make_env as make_env
    from gtrxl_jax.envs.registry import register_env as register_env
    from gtrxl_jax.envs.stream import Stream as Stream
    from gtrxl_jax.loading import load as load
    from gtrxl_jax.nn.agent import make_agent as make_agent
    from gtrxl_jax.nn.core import CoreConfig as CoreConfig
    from gtrxl_jax.nn.core import MemoryCore as MemoryCore
    from gtrxl_jax.nn.core import register_core as register_core
    from gtrxl_jax.nn.cores.registry import make_core as make_core
    from gtrxl_jax.nn.encoders import register_encoder as register_encoder
    from gtrxl_jax.nn.normalizer import update_normalizers as update_normalizers
    from gtrxl_jax.nn.sequence.model import register_model as register_model
    from gtrxl_jax.offline.algorithm import register_offline_algorithm as register_offline_algorithm
    from gtrxl_jax.online.algorithm import register_algorithm as register_algorithm
    from gtrxl_jax.testing import check_core as check_core
    from gtrxl_jax.timestep import TimeStep as TimeStep
    from gtrxl_jax.timestep import zero_timestep as zero_timestep

__version__ = "0.3.0"

if not has_tpu():  # gymnax starts JAX when it is imported
    set_no_tpu()

# Imported on first use: a core requires neither the environments nor gymnax, which take seconds to
# import. Modules of this package import one another directly.
__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "CoreConfig": "gtrxl_jax.nn.core",
        "MemoryCore": "gtrxl_jax.nn.core",
        "Stream": "gtrxl_jax.envs.stream",
        "TimeStep": "gtrxl_jax.timestep",
        "check_core": "gtrxl_jax.testing",
        "load": "gtrxl_jax.loading",
        "make_agent": "gtrxl_jax.nn.agent",
        "make_core": "gtrxl_jax.nn.cores.registry",
        "make_env": "gtrxl_jax.envs.registry",
        "register_algorithm": "gtrxl_jax.online.algorithm",
        "register_core": "gtrxl_jax.nn.core",
        "register_encoder": "gtrxl_jax.nn.encoders",
        "register_env": "gtrxl_jax.envs.registry",
        "register_model": "gtrxl_jax.nn.sequence.model",
        "register_offline_algorithm": "gtrxl_jax.offline.algorithm",
        "update_normalizers": "gtrxl_jax.nn.normalizer",
        "zero_timestep": "gtrxl_jax.timestep",
    },
)
