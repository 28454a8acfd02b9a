"""Success against memory horizon: how far back does each core remember?

The passive T-Maze: the cue is seen on the first step, and the turn is taken L steps later. Every
transformer has 2 layers with a memory of M = 16 steps each, so one layer spans 16 steps, and the
stack, through its memory, 32. The LSTM has 2 layers of the same width and no such bound. Of the
corridors, 10 lies within the span of a layer, 24 beyond it but within the stack's, and 40 beyond
that, where a transformer cannot know the cue: its chance is one half.

All are trained by V-MPO on as many steps with the same settings: the defaults of OnlineConfig, but
for 8 environments and segments of 64 steps in place of 64 and 32; gates have the paper's bias of 2.
An LSTM learns what to keep through the gradient within a segment, so a segment must be longer than
the longest episode, 41 steps. And its outputs begin near to zero, so it needs more updates than a
transformer: 512 steps for each make 1570 of them, where 2048 made fewer than 500, and an LSTM that
could not walk. These settings were chosen with the LSTM on seeds below 10, which the results leave
out.

    python experiments/memory_horizon.py

writes experiments/results/memory_horizon.json (each run with its command, commit, device, date and
seeds), .md (the table) and .png (the figure). Runs that are in the JSON already are not run again;
--again runs them all.
"""

import dataclasses
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from gtrxl_jax.files import atomic
from gtrxl_jax.nn.cores import core_config
from gtrxl_jax.ops.statistics import mean_and_interval
from gtrxl_jax.pictures.curves import success_against_horizon
from gtrxl_jax.training.config import EnvConfig, EvaluationConfig, OnlineConfig
from gtrxl_jax.training.online import OnlineTrainer
from gtrxl_jax.training.progress import ConsoleWriter
from gtrxl_jax.training.results import provenance
from gtrxl_jax.training.run import train

MEMORY_SIZE = 16
LAYERS = 2
NUM_ENVS, UNROLL = 8, 64
FIRST_SEED = 10
LENGTHS = (10, 24, 40)
TOTAL_STEPS = 800_000
LABELS = {"lstm": "LSTM", "trxl": "TrXL", "trxl-i": "TrXL-I", "gtrxl": "GTrXL (GRU)"}
RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run."""

    cores: tuple[str, ...] = tuple(LABELS)
    lengths: tuple[int, ...] = LENGTHS
    num_seeds: int = 5
    again: bool = False
    """Run also what is in the results already."""


def job(core: str, length: int, seed: int) -> OnlineConfig:
    """One run of the table."""
    return OnlineConfig(
        env=EnvConfig(params={"corridor_length": length}, num_envs=NUM_ENVS),
        core=core_config(core, "small", layers=LAYERS, memory_size=MEMORY_SIZE),
        evaluation=EvaluationConfig(episodes=512, interval=0, policy="sample"),
        total_steps=TOTAL_STEPS,
        unroll=UNROLL,
        seed=seed,
    )


def run(core: str, length: int, num_seeds: int) -> dict[str, Any]:
    """Train and evaluate one cell, seed after seed."""
    results = []
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
    for seed in seeds:
        trainer = OnlineTrainer(job(core, length, seed))
        progress = ConsoleWriter(trainer.num_visits * trainer.steps_per_visit)
        results.append(train(trainer, writers=[progress]).result)
        print(f"  seed {seed}: {results[-1].evaluation}", flush=True)
    return provenance() | {
        "core": core,
        "length": length,
        "seeds": list(seeds),
        "steps": results[0].steps,
        "success": [result.evaluation["success"][0] for result in results],
        "return": [result.evaluation["return"][0] for result in results],
        "seconds": sum(result.compile_seconds + result.train_seconds for result in results),
        "steps_per_second": float(np.median([result.steps_per_second for result in results])),
    }


def report(records: list[dict[str, Any]]) -> None:
    """Write the table and the figure of what has been run."""
    by_cell = {(r["core"], r["length"]): r for r in records}
    lengths = sorted({length for _, length in by_cell})
    cores = [core for core in LABELS if all((core, length) in by_cell for length in lengths)]
    if not cores:
        return
    success = {c: np.array([by_cell[c, n]["success"] for n in lengths]) for c in cores}
    success_against_horizon(
        {LABELS[core]: values.T for core, values in success.items()},
        lengths,
        RESULTS / "memory_horizon.png",
        span=MEMORY_SIZE,
        chance=0.5,
    )
    head = "| core | " + " | ".join(f"L = {n}" for n in lengths) + " |"
    rows = [head, "|---" * (len(lengths) + 1) + "|"]
    for core in cores:
        means, halves = mean_and_interval(success[core], axis=1)
        cells = [f"{m:.3f} ± {h:.3f}" for m, h in zip(means, halves, strict=True)]
        rows.append(f"| {LABELS[core]} | " + " | ".join(cells) + " |")
    minutes = sum(record["seconds"] for record in records) / 60
    some = records[-1]
    text = [
        "# Success against memory horizon",
        "",
        "Success on 512 held-out episodes a seed, mean and 95 % interval over "
        f"{len(some['seeds'])} seeds; passive T-Maze, one layer's memory {MEMORY_SIZE} steps, "
        f"{LAYERS} layers, the same settings and {records[-1]['steps']:,} steps for every core. "
        "Chance is 0.5 for an agent that reaches the junction.",
        "",
        *rows,
        "",
        f"`python experiments/memory_horizon.py`, {minutes:.0f} minutes in all, on "
        f"{some['device']}, {some['date'][:10]}, commits {_commits(records)}.",
        "",
    ]
    with atomic(RESULTS / "memory_horizon.md") as temporary:
        temporary.write_text("\n".join(text))


def _commits(records: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(record["commit"] for record in records))


def main(settings: Settings) -> None:
    """Run what is missing, one cell at a time, keeping each as soon as it is done."""
    path = RESULTS / "memory_horizon.json"
    records = json.loads(path.read_text()) if path.exists() and not settings.again else []
    with tempfile.TemporaryDirectory() as cache:
        # The seeds of a cell are one program, compiled once.
        jax.config.update("jax_compilation_cache_dir", cache)
        for length, core in itertools.product(settings.lengths, settings.cores):
            if any((r["core"], r["length"]) == (core, length) for r in records):
                continue
            print(f"{LABELS[core]}, L = {length}", flush=True)
            records.append(run(core, length, settings.num_seeds))
            with atomic(path) as temporary:
                temporary.write_text(json.dumps(records, indent=1) + "\n")
    report(records)
    print((RESULTS / "memory_horizon.md").read_text())


if __name__ == "__main__":
    main(tyro.cli(Settings))
