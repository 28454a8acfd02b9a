"""Policies acting in environments: evaluation, recorded episodes, and data collection."""

from gtrxl_jax.acting.collecting import Cue, OraclePolicy, Policy, RandomPolicy, collect, cue_of

__all__ = ["Cue", "OraclePolicy", "Policy", "RandomPolicy", "collect", "cue_of"]
