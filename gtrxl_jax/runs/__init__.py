"""The host side of runs: training loop, directory, checkpoints, metrics, results."""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy

if TYPE_CHECKING:
    from gtrxl_jax.runs.loop import train as train

__all__, __getattr__, __dir__ = lazy(__name__, {"train": "gtrxl_jax.runs.loop"})
