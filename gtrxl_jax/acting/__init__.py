"""Policies in environments: evaluation, recorded episodes, and collecting data."""

from gtrxl_jax.acting.collecting import Cue, OraclePolicy, Policy, RandomPolicy, collect, cue_of

__all__ = ["Cue", "OraclePolicy", "Policy", "RandomPolicy", "collect", "cue_of"]
