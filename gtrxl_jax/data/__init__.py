"""Offline data: trajectories, their files, the segments that trainers read, and collecting them.

`minari` (files) and `loader` (data that outgrow memory) need the extra "offline".
"""

from gtrxl_jax.data.collect import Cue, OraclePolicy, Policy, RandomPolicy, collect, cue_of
from gtrxl_jax.data.segments import (
    SAMPLING,
    Sampling,
    Segments,
    cut_segments,
    default_sampling,
    sample_segments,
)
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import (
    Trajectories,
    check,
    concatenate,
    returns_to_go,
    select,
    split,
)

__all__ = [
    "SAMPLING",
    "Cue",
    "OraclePolicy",
    "Policy",
    "RandomPolicy",
    "Sampling",
    "Segments",
    "Spaces",
    "Trajectories",
    "check",
    "collect",
    "concatenate",
    "cue_of",
    "cut_segments",
    "dataset_spaces",
    "default_sampling",
    "returns_to_go",
    "sample_segments",
    "select",
    "split",
]
