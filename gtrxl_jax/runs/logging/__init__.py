"""Writers of a run's metrics: JSON lines, TensorBoard and the console."""
