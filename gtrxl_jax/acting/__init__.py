"""Policies acting in environments: rollouts, evaluation, recorded episodes, data collection."""

from typing import TYPE_CHECKING

from gtrxl_jax.lazy import lazy

if TYPE_CHECKING:
    from gtrxl_jax.acting.collecting import collect, collect_rounds
    from gtrxl_jax.acting.policy import AgentPolicy, Policy
    from gtrxl_jax.acting.rollout import advance, begin, rollout
    from gtrxl_jax.acting.scripted import ExplorerPolicy, OraclePolicy, RandomPolicy

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

# Imported on first use: algorithms require `Policy`, but not gymnax, which takes seconds to import.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "AgentPolicy": "gtrxl_jax.acting.policy",
        "ExplorerPolicy": "gtrxl_jax.acting.scripted",
        "OraclePolicy": "gtrxl_jax.acting.scripted",
        "Policy": "gtrxl_jax.acting.policy",
        "RandomPolicy": "gtrxl_jax.acting.scripted",
        "advance": "gtrxl_jax.acting.rollout",
        "begin": "gtrxl_jax.acting.rollout",
        "collect": "gtrxl_jax.acting.collecting",
        "collect_rounds": "gtrxl_jax.acting.collecting",
        "rollout": "gtrxl_jax.acting.rollout",
    },
)
