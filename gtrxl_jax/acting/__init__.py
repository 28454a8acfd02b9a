"""Policies acting in environments: rollouts, evaluation, recorded episodes, data collection."""

from gtrxl_jax.acting.collecting import collect, collect_rounds
from gtrxl_jax.acting.policy import AgentPolicy, ExplorerPolicy, OraclePolicy, Policy, RandomPolicy
from gtrxl_jax.acting.rollout import advance, begin, rollout

__all__ = [
    "AgentPolicy",
    "ExplorerPolicy",
    "OraclePolicy",
    "Policy",
    "RandomPolicy",
    "advance",
    "begin",
    "collect",
    "collect_rounds",
    "rollout",
]
