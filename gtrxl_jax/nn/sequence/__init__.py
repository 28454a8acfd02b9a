"""Sequence models of trajectories: RATE, Decision Transformers and behaviour cloning."""
