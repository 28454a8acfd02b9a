"""Writers of a run's metrics: JSON lines, the console, tables and trackers of experiments."""
