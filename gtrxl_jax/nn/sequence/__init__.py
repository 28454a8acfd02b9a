"""Sequence models: RATE, Decision Transformers and behavior cloning."""
