"""Configs, the trainers, evaluation, metrics and checkpoints.

from gtrxl_jax.training import OnlineTrainer, preset, train

run = train(OnlineTrainer(preset("debug")))
run.result.evaluation["success"]
"""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy

if TYPE_CHECKING:
    from gtrxl_jax.training.config import OnlineConfig, preset
    from gtrxl_jax.training.online import OnlineTrainer
    from gtrxl_jax.training.run import train

__all__ = ["OnlineConfig", "OnlineTrainer", "preset", "train"]

# The configs alone need neither environments nor gymnax, which take seconds to load.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "OnlineConfig": "gtrxl_jax.training.config",
        "OnlineTrainer": "gtrxl_jax.training.online",
        "preset": "gtrxl_jax.training.config",
        "train": "gtrxl_jax.training.run",
    },
)
