"""The default job, one seed at a time, and its control without memory.

    python experiments/default_job.py
    python experiments/default_job.py --seeds 50

This runs `gtrxl train` with seeds 0 to 9, or as many as given, and with `--agent.memoryless` for
seeds 0 to 2, each in a separate process. The wall time of each process is measured, including start
and compilation; for the times that a user would see, keep `--workers` at 1. Expected: a success of
at least 0.95 on held-out episodes for at least 9 of 10 seeds, at about a minute each on two cores;
without memory at most 0.5, which is chance (less for seeds that learn to walk but not to turn, as a
guessed turn earns little).

Writes default_job.jsonl and default_job.md to experiments/results/.
"""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import read_result
from gtrxl_jax.statistics import SOLVED
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.records import curves_of, goal_of, thinned
from gtrxl_jax.studies.report import ENTRIES, Paragraph, solved_entry, table

VARIANTS = {
    "GTrXL (GRU)": ([], 10),
    "GTrXL (GRU), memory cut off": (["--agent.memoryless"], 3),
}
"""The arguments and the number of seeds of each agent."""


def train(arguments: Sequence[str], seed: int) -> Record:
    """Run `gtrxl train` in a separate process; return its results and its wall time in seconds."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        command = ["train", "--seed", str(seed), *arguments]
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "gtrxl_jax.cli", *command, "--folder", str(folder)],
            env=environment,
            check=True,
        )
        seconds = time.monotonic() - began
        result = read_result(folder)
        curves = curves_of(read_metrics(folder / "metrics.jsonl"))
    assert result is not None
    return {
        "command": " ".join(["gtrxl", *command]),
        "steps": result.steps,
        "seconds": round(seconds, 1),
        "compile_seconds": round(result.compile_seconds, 1),
        "train_seconds": round(result.train_seconds, 1),
        "scores": {name: values[0] for name, values in result.per_seed.items()},
        "curve": thinned(curves),
        "goal": goal_of(curves, "success", SOLVED),
    }


def grid(options: Options) -> list[Cell]:
    """Return all runs; `options.seeds` is the number of seeds of the agent with memory."""
    steps = [] if options.steps is None else ["--total-steps", str(options.steps)]
    cells = []
    for agent, (arguments, seeds) in VARIANTS.items():
        if not arguments:
            seeds = options.seeds or seeds
        elif options.seeds:
            seeds = min(options.seeds, seeds)
        job = functools.partial(train, [*arguments, *steps])
        cells.append(Cell({"agent": agent}, job, seeds))
    return cells


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table."""
    rows = []
    for agent, of_agent in by_cell(records, "agent").items():
        seconds = np.array([record["seconds"] for record in of_agent])
        success = scores(of_agent)
        times = f"{np.median(seconds):.0f} ({seconds.max():.0f})"
        rows.append([agent, solved_entry(success), f"{np.nanmin(success):.2f}", times])
    return "The default job", [
        "`gtrxl train`: passive T-Maze with a corridor of 30, success on held-out episodes "
        f"after {records[0]['steps']:,} steps. {ENTRIES} Seconds are for the whole process: "
        "start, compilation, training, evaluation and plots.",
        table(["agent", "success", "lowest", "seconds, median (longest)"], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
