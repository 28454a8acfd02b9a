"""Every memory core on the default job: who learns it, and how soon?

    python experiments/cores_on_default_job.py
    python experiments/cores_on_default_job.py --workers 2 --only gru lstm

This runs the equivalent of `gtrxl train --core.name NAME --total-steps 400000`: the T-Maze with a
corridor of 30, PPO, and the default size of each core. The recurrent cores get gradients over the
unroll of 32 steps, about as many as lie between the cue and the turn. Three seeds each.

Writes experiments/results/cores_on_default_job/ (one file per run) and cores_on_default_job.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro
from study import Options, Record, Run, run_study
from study_report import by_cell, origin, scores, to_goal, write_report

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import OnlineConfig, preset
from gtrxl_jax.plots.tables import ENTRIES, median, solved_entry, table

TOTAL_STEPS = 400_000
MEMORY: dict[str, Any] = {name: {"memory_size": 34} for name in ("gtrxl", "trxl-i", "trxl")}
"""As in the default job: the length of an episode, and a margin."""


def job(core: str, total_steps: int) -> OnlineConfig:
    """Return the config of a core."""
    config = core_config(core, **MEMORY.get(core, {}))
    return dataclasses.replace(preset("default"), core=config, total_steps=total_steps)


def grid(options: Options) -> list[Run]:
    """Return all runs."""
    return [
        Run({"core": core}, seed, job(core, options.steps or TOTAL_STEPS))
        for core in CORES
        for seed in range(options.seeds or 3)
    ]


def report(options: Options, records: Sequence[Record]) -> None:
    """Write the table of the available records."""
    rows = []
    for core, runs in by_cell(records, "core").items():
        rows.append(
            [
                core,
                solved_entry(scores(runs)),
                ", ".join(f"{score:.2f}" for score in scores(runs)),
                median(to_goal(runs, "steps"), digits=0),
            ]
        )
    write_report(
        options.results / "cores_on_default_job.md",
        "Every core on the default job",
        [
            f"The T-Maze with a corridor of 30, PPO and default settings, {records[0]['steps']:,} "
            f"steps. {ENTRIES} Then the success of each seed, and the median steps to a success of "
            "at least 0.95, in training or in an evaluation, over the seeds that reached it.",
            table(["core", "solved", "success", "steps to 0.95"], rows),
            origin(records),
        ],
    )


def main(options: Options) -> None:
    """Run the missing runs, and write the report."""
    report(options, run_study("cores_on_default_job", grid(options), options))


if __name__ == "__main__":
    main(tyro.cli(Options))
