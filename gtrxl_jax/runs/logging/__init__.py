"""Writers of a run's metrics: JSON lines, the console, and the loggers of `--log`."""
