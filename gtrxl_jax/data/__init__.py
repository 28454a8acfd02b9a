"""Offline data: trajectories, their files, and the segments on which models are trained.

`datasets` (reading), `minari` (writing) and `loader` (data that exceed memory) require the extra
"offline".
"""

from gtrxl_jax.data.segments import Sampling, cut_segments, sample_segments
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import (
    Trajectories,
    check,
    concatenate,
    held_out,
    returns_to_go,
    select,
)
from gtrxl_jax.segments import Segments

__all__ = [
    "Sampling",
    "Segments",
    "Spaces",
    "Trajectories",
    "check",
    "concatenate",
    "cut_segments",
    "dataset_spaces",
    "held_out",
    "returns_to_go",
    "sample_segments",
    "select",
]
