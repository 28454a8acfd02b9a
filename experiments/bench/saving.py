"""Saving: the cost of checkpoints at the default interval in the default online job.

    python experiments/bench/saving.py

This alternates between `train` with a folder, as on the command line, and without one. The
difference is the total cost of a folder, including its metrics and the wait for the last
checkpoint. It is measured in wall time and in processor time, which is less affected by other
processes. It also measures how long each save blocks the training loop: the state is copied during
this time and written in the background.
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import tyro
from timing import Row, show

from gtrxl_jax.online.config import preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.loop import train


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    preset: str = "default"
    total_steps: int = 300_000
    rounds: int = 5
    keep: bool = True
    """Write the table to results/bench."""


@contextmanager
def timed_saves(seconds: list[float]) -> Iterator[None]:
    """Append to the list how long each save blocks its caller."""
    save = Saver.save

    def timed(*args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        save(*args, **kwargs)
        seconds.append(time.perf_counter() - began)

    with mock.patch.object(Saver, "save", timed):
        yield


def main(settings: Settings) -> None:
    """Run with and without saving, interleaved."""
    config = dataclasses.replace(preset(settings.preset), total_steps=settings.total_steps)
    held: list[float] = []
    wall: dict[str, list[float]] = {"without": [], "with": []}
    processor: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as scratch, timed_saves(held):
        cache = jax.config.values["jax_compilation_cache_dir"] or str(Path(scratch, "cache"))
        jax.config.update("jax_compilation_cache_dir", cache)
        # The first round is discarded.
        for number in range(settings.rounds + 1):
            for name in wall:
                folder = Path(scratch, str(number)) if name == "with" else None
                began = time.process_time()
                result = train(OnlineTrainer(config), folder=folder).result
                wall[name].append(result.train_seconds)
                processor[name].append(time.process_time() - began)
    rows = []
    for what, taken in (("training", wall), ("processor's time, all of it", processor)):
        without, saving = (np.array(taken[name][1:]) for name in ("without", "with"))
        rows += [
            Row(f"{what}, without a folder", float(np.median(without)), "s"),
            Row("... with one", float(np.median(saving)), "s"),
            Row("... against without, median of rounds", float(np.median(saving / without)), "x"),
        ]
    rows += [
        Row("checkpoints of a run", len(held) / (settings.rounds + 1), ""),
        Row("the loop is held for each", 1e3 * float(np.median(held)), "ms"),
        Row("... at most", 1e3 * max(held), "ms"),
    ]
    title = f"saving every {config.checkpoint.interval:,} of {settings.total_steps:,} steps"
    show("saving", title, rows, keep=settings.keep)


if __name__ == "__main__":
    main(tyro.cli(Settings))
