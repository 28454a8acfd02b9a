"""Compare online runs by their folders: a table, learning curves, and runs ranked by score."""

from gtrxl_jax.comparison.report import compare
from gtrxl_jax.comparison.seeds import Seed, find_runs, read_seeds

__all__ = ["Seed", "compare", "find_runs", "read_seeds"]
