"""Hashable descriptions of observation and action spaces, from which networks are built.

Spaces of gymnax and gymnasium are supported.
"""

from gtrxl_jax.specs.action import ActionSpec, action_spec, environment_action
from gtrxl_jax.specs.observation import ArraySpec, leading_axes, observation_spec
from gtrxl_jax.specs.spaces import BOX, DICT, DISCRETE

__all__ = [
    "BOX",
    "DICT",
    "DISCRETE",
    "ActionSpec",
    "ArraySpec",
    "action_spec",
    "environment_action",
    "leading_axes",
    "observation_spec",
]
