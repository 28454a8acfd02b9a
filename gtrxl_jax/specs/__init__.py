"""Hashable descriptions of observation and action spaces, from which networks are built.

Spaces of gymnax and gymnasium are supported; `specs.spaces` has the table of their kinds.
"""

from gtrxl_jax.specs.action import ActionSpec, action_spec, agent_action, environment_action
from gtrxl_jax.specs.observation import IMAGE_AXES, ArraySpec, leading_axes, observation_spec
from gtrxl_jax.specs.spaces import text_tokens, texts_of
from gtrxl_jax.specs.values import describe_outside, first_outside, require_values

__all__ = [
    "IMAGE_AXES",
    "ActionSpec",
    "ArraySpec",
    "action_spec",
    "agent_action",
    "environment_action",
    "first_outside",
    "leading_axes",
    "observation_spec",
    "require_values",
    "text_tokens",
    "texts_of",
    "describe_outside",
]
