"""The default job, seed by seed as a newcomer would run it, and its control without memory.

    python experiments/default_job.py

runs `gtrxl train` with seeds 0 to 9, then with `--agent.memoryless` for seeds 0 to 2, each in a
process of its own whose whole time is taken, start and compilation included. It writes
experiments/results/default_job.json and .md. Expected: success of at least 0.95 on held-out
episodes for at least 9 of 10 seeds, about a minute each on two cores; at most 0.5, which is chance,
without memory (less where a seed learns the walk but no turn, which pays little to who must guess).
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from gtrxl_jax.files import atomic
from gtrxl_jax.ops.statistics import mean_and_interval
from gtrxl_jax.training.results import provenance

RESULTS = Path(__file__).parent / "results"
VARIANTS = {"GTrXL (GRU)": [], "GTrXL (GRU), memory cut off": ["--agent.memoryless"]}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How many seeds."""

    seeds: int = 10
    control_seeds: int = 3


def run(arguments: list[str], seed: int) -> dict[str, Any]:
    """One run in a process of its own: its result, and its wall time in seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        command = ["train", "--seed", str(seed), *arguments, "--folder", str(folder)]
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "gtrxl_jax.cli", *command], check=True)
        seconds = time.monotonic() - began
        result = json.loads((folder / "result.json").read_text())
    command = ["gtrxl", "train", "--seed", str(seed), *arguments]
    return result | {"command": " ".join(command), "wall_seconds": seconds}


def report(records: dict[str, list[dict[str, Any]]]) -> str:
    """The table."""
    rows = [
        "| agent | seeds | success | at least 0.95 | seconds, median (longest) |",
        "|---|---|---|---|---|",
    ]
    for label, runs in records.items():
        success = np.array([r["evaluation"]["success"][0] for r in runs])
        seconds = np.array([r["wall_seconds"] for r in runs])
        mean, half = mean_and_interval(success, axis=0)
        rows.append(
            f"| {label} | {len(runs)} | {mean:.3f} ± {half:.3f} | {np.sum(success >= 0.95)} | "
            f"{np.median(seconds):.0f} ({seconds.max():.0f}) |"
        )
    some = next(iter(records.values()))[0]
    return "\n".join(
        [
            "# The default job",
            "",
            "`gtrxl train`: passive T-Maze with a corridor of 30, success on held-out episodes "
            f"after {some['steps']:,} steps; mean and 95 % interval over seeds. The seconds are "
            "those of the whole process: start, compilation, training, evaluation, pictures.",
            "",
            *rows,
            "",
            f"`python experiments/default_job.py` on {some['device']}, {some['date'][:10]}, "
            f"commit {some['commit']}.",
            "",
        ]
    )


def main(settings: Settings) -> None:
    """Run all seeds in sequence."""
    counts = dict(zip(VARIANTS, (settings.seeds, settings.control_seeds), strict=True))
    records = {
        label: [run(arguments, seed) for seed in range(counts[label])]
        for label, arguments in VARIANTS.items()
    }
    with atomic(RESULTS / "default_job.json") as temporary:
        temporary.write_text(json.dumps(provenance() | {"runs": records}, indent=1) + "\n")
    with atomic(RESULTS / "default_job.md") as temporary:
        temporary.write_text(report(records))
    print(report(records))


if __name__ == "__main__":
    main(tyro.cli(Settings))
