"""Plots of results: learning curves, attention over memory, episodes."""
