"""Hashable descriptions of observation and action spaces, from which networks are built.

Spaces of gymnax and gymnasium are supported; `specs.spaces` has the table of their kinds.
"""

from gtrxl_jax.specs.action import ActionSpec as ActionSpec
from gtrxl_jax.specs.action import action_spec as action_spec
from gtrxl_jax.specs.action import agent_action as agent_action
from gtrxl_jax.specs.action import environment_action as environment_action
from gtrxl_jax.specs.observation import IMAGE_AXES as IMAGE_AXES
from gtrxl_jax.specs.observation import ArraySpec as ArraySpec
from gtrxl_jax.specs.observation import leading_axes as leading_axes
from gtrxl_jax.specs.observation import observation_spec as observation_spec
from gtrxl_jax.specs.spaces import text_tokens as text_tokens
from gtrxl_jax.specs.spaces import texts_of as texts_of
from gtrxl_jax.specs.values import describe_outside as describe_outside
from gtrxl_jax.specs.values import first_outside as first_outside
from gtrxl_jax.specs.values import require_values as require_values
