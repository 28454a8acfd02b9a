"""Policies acting in environments: rollouts, evaluation, recorded episodes, data collection."""

from gtrxl_jax.acting.collecting import Cue, collect, cue_of
from gtrxl_jax.acting.policy import AgentPolicy, OraclePolicy, Policy, RandomPolicy
from gtrxl_jax.acting.rollout import advance, begin, rollout

__all__ = [
    "AgentPolicy",
    "Cue",
    "OraclePolicy",
    "Policy",
    "RandomPolicy",
    "advance",
    "begin",
    "collect",
    "cue_of",
    "rollout",
]
