"""The progress of a run, which is recorded with its state."""

import dataclasses
from typing import Any

from gtrxl_jax.runs.divergence import Divergence


@dataclasses.dataclass
class Progress:
    """The progress of a run.

    Attributes:
      iteration: number of completed iterations.
      train_seconds: time since the first update without compilation, summed over all processes
        that ran the run in turn, for each up to its last checkpoint.
      iteration_seconds: the part of it spent in iterations.
      best: step and score of the best checkpoint.
      diverged: the seeds that have diverged, which are excluded from scores.
    """

    iteration: int = 0
    train_seconds: float = 0.0
    iteration_seconds: float = 0.0
    best: tuple[int, float] | None = None
    diverged: list[Divergence] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Progress":
        """Restore what `dataclasses.asdict` returned from its JSON."""
        fields = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        fields["best"] = tuple(fields["best"]) if fields["best"] else None
        return cls(**fields | {"diverged": [Divergence(**one) for one in fields["diverged"]]})

    def is_best(self, step: int, score: float, best_is: str) -> bool:
        """Return whether a score at a step is the best so far ("max" or "min"); record it if so."""
        sign = 1 if best_is == "max" else -1
        if self.best and sign * score <= sign * self.best[1]:
            return False
        self.best = (step, score)
        return True
