"""Models of trajectories: RATE, Decision Transformers, behaviour cloning."""
