"""Sequence models: RATE, ELMUR, Decision Transformers, memory cores, and behavior cloning."""
