"""How far the run in a folder is: what every command says about it."""

import dataclasses
from pathlib import Path

import numpy as np

from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import (
    MAY_GROW,
    Folder,
    available_steps,
    is_running,
    load_config,
    settings,
)
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import Result, read_result


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a run is.

    Attributes:
      state: "running" in a process of this machine; "finished"; "diverged", if all seeds have;
        "extended", if it has ended before, with fewer steps than its config has now; "stopped",
        with a checkpoint from which it can be resumed; or "empty".
      step: step of the newest checkpoint, or of the result; 0 without either.
      total: step at which the run ends.
      result: the result of the whole run; None before, also of an extended one.
    """

    state: str
    step: int
    total: int
    result: Result | None

    def __str__(self) -> str:
        return f"{self.state}, at step {self.step:,} of {self.total:,}"


def status_of(folder: Folder) -> Status:
    """Return the status of the run in a folder.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if its config.json is not that of a run, or its result.json is damaged.
    """
    kind_of(load_config(folder))  # raises if it is another program's
    config, latest = settings(folder), read_result(folder)
    total, num_seeds = (
        next(config[name] for name in MAY_GROW if name in config),
        config["num_seeds"],
    )
    result = latest if latest and latest.is_final(total, num_seeds) else None
    steps = [*available_steps(folder), latest.steps if latest else 0]
    if is_running(folder):
        state = "running"
    elif result:
        state = "diverged" if len(result.diverged) == num_seeds else "finished"
    elif latest is None and _stopped_as_it_diverged(folder):
        state = "diverged"
    elif latest:
        state = "extended"
    else:
        state = "stopped" if any(steps) else "empty"
    return Status(state, max(steps), total, result)


def _stopped_as_it_diverged(folder: Folder) -> bool:
    """Return whether all seeds of a run without a result have diverged, by its metrics."""
    try:
        diverged = read_metrics(Path(folder, "metrics.jsonl")).get("diverged")
    except (FileNotFoundError, ValueError):  # none yet, or damaged
        return False
    return diverged is not None and bool(np.all(diverged[-1] == 1))
