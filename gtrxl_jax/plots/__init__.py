"""Results to look at: learning curves, attention over memory, episodes."""
