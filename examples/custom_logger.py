"""A logger of one's own: the best value of each metric, in a file of the run folder.

cd examples
gtrxl train --preset debug --log custom_logger:BestWriter
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter, read_metrics


class BestWriter(MetricWriter):
    """Keeps the largest value of each metric, of any seed, in best.json."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        self._folder = folder
        self._seed = config["seed"]
        self._best: dict[str, float] = {}

    def start(self, step: int) -> None:
        """Start, or resume: metrics.jsonl has exactly the rows up to the checkpoint."""
        self._best = {}
        rows = read_metrics(self._folder / "metrics.jsonl")
        self._note({name: values for name, values in rows.items() if name not in ("step", "time")})

    def write(self, step: int | np.integer, metrics: Metrics) -> None:
        """Note the metrics after `step` environment steps: scalars, or arrays `[S]` of S seeds."""
        self._note(metrics)
        text = json.dumps({"seed": self._seed, "best": self._best}, indent=2)
        (self._folder / "best.json").write_text(text + "\n")

    def _note(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            numbers = np.asarray(value, np.float64)
            if np.isfinite(numbers).any():
                largest = float(np.max(numbers[np.isfinite(numbers)]))
                self._best[name] = max(largest, self._best.get(name, largest))
