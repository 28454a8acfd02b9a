"""Offline training: sequence models, trained on trajectories.

Example:
    from gtrxl_jax.offline import OfflineTrainer, preset
    from gtrxl_jax.runs import train

    run = train(OfflineTrainer(preset("debug")))
"""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy

if TYPE_CHECKING:
    from gtrxl_jax.offline.config import OfflineConfig as OfflineConfig
    from gtrxl_jax.offline.config import preset as preset
    from gtrxl_jax.offline.trainer import OfflineTrainer as OfflineTrainer

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "OfflineConfig": "gtrxl_jax.offline.config",
        "OfflineTrainer": "gtrxl_jax.offline.trainer",
        "preset": "gtrxl_jax.offline.config",
    },
)
