"""Sequence models of trajectories: RATE, Decision Transformers and behavior cloning."""
