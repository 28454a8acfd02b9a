"""Policies acting in environments: rollouts, evaluation, recorded episodes, data collection."""
