"""Every memory core on the default job: who learns it, and how soon?

    python experiments/cores_on_default_job.py
    python experiments/cores_on_default_job.py --workers 2 --only gru lstm

This runs the equivalent of `gtrxl train --core.name NAME --total-steps 400000`: the T-Maze with a
corridor of 30, PPO, and the default size of each core. The recurrent cores get gradients over the
unroll of 32 steps, about as many as lie between the cue and the turn. Three seeds each.

Writes cores_on_default_job.jsonl and cores_on_default_job.md to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import OnlineConfig, preset
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import ENTRIES, Paragraph, median, solved_entry, table

TOTAL_STEPS = 400_000
MEMORY: dict[str, Any] = {name: {"memory_size": 34} for name in ("gtrxl", "trxl-i", "trxl")}
"""As in the default job: the length of an episode, and a margin."""


def job(core: str, total_steps: int) -> OnlineConfig:
    """Return the config of a core."""
    config = core_config(core, **MEMORY.get(core, {}))
    return dataclasses.replace(preset("default"), core=config, total_steps=total_steps)


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell({"core": core}, job(core, options.steps or TOTAL_STEPS), options.seeds or 3)
        for core in CORES
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
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
    return "Every core on the default job", [
        f"The T-Maze with a corridor of 30, PPO and default settings, {records[0]['steps']:,} "
        f"steps. {ENTRIES} Then the success of each seed, and the median steps to a success of "
        "at least 0.95, in training or in an evaluation, over the seeds that reached it.",
        table(["core", "solved", "success", "steps to 0.95"], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
