"""Flax modules: gates, memory cores, encoders, heads and the agent made of them."""
