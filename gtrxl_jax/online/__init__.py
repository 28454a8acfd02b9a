"""Online training: agents in jitted environments.

Example:
    from gtrxl_jax.online import OnlineTrainer, preset
    from gtrxl_jax.runs import train

    run = train(OnlineTrainer(preset("debug")))
    run.result.evaluation["success"]
"""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy

if TYPE_CHECKING:
    from gtrxl_jax.online.config import OnlineConfig as OnlineConfig
    from gtrxl_jax.online.config import preset as preset
    from gtrxl_jax.online.host import make_trainer as make_trainer
    from gtrxl_jax.online.trainer import OnlineTrainer as OnlineTrainer

# Imported on first use: configs require neither environments nor gymnax, which take seconds to
# import.
__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "OnlineConfig": "gtrxl_jax.online.config",
        "OnlineTrainer": "gtrxl_jax.online.trainer",
        "make_trainer": "gtrxl_jax.online.host",
        "preset": "gtrxl_jax.online.config",
    },
)
