"""Sensitivity to hyperparameters: 25 draws, the same for every core (GTrXL paper, Figures 5 and 7).

    python experiments/sensitivity.py --workers 2
    python experiments/sensitivity.py --only gru lstm --seeds 10

The task is the passive T-Maze with a corridor of 50 and a memory that holds the whole episode; the
algorithm is V-MPO. The cores are TrXL, TrXL-I and GTrXL with each of its gates, of 4 layers of
width 64, so that gates add parameters, as in the paper, and an LSTM with as many as GTrXL with the
GRU gate, within 10 %. That gate also has a bias of 0 instead of 2. Unrolls of 128 steps hold an
episode, so that the LSTM has a gradient from the turn to the cue.

A seed draws, log-uniformly, the bound of the KL, in the range of the paper, and the learning rate,
which the paper holds at 0.0001 for billions of steps. As in the paper, runs are ranked at a
quarter, at half and at the end of training.

Writes sensitivity.jsonl, .md and .png to experiments/results/.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from memory_horizon import num_parameters

from gtrxl_jax.nn.cores.gtrxl import GATES
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, OnlineConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.plots.style import assign_styles, legend_outside, new_figure, save_figure, style_axes
from gtrxl_jax.statistics import count_solved
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import Paragraph, mean_entry, median, table

CORRIDOR = 50
UNROLL = 128
DRAWS = 25
TOTAL_STEPS = 400_000
TIMES = (0.25, 0.5, 1.0)
SWEEP = {"epsilon_alpha": (0.001, 0.1), "learning_rate": (3e-4, 1e-2)}
MEMORY = {"layers": 4, "memory_size": CORRIDOR + 4}
CORES: dict[str, dict[str, Any]] = {
    "lstm": {"name": "lstm", "layers": 2, "width": 136},
    "trxl": {"name": "trxl", **MEMORY},
    "trxl-i": {"name": "trxl-i", **MEMORY},
    **{gate: {"name": "gtrxl", "gate": gate, **MEMORY} for gate in GATES},
    "gru, bias 0": {"name": "gtrxl", "gate": "gru", "gate_bias": 0.0, **MEMORY},
}
"""Settings of each core; GTrXL cores are named by their gates."""


def job(core: str, total_steps: int) -> OnlineConfig:
    """Return the config of a cell: the defaults with these settings changed."""
    return OnlineConfig(
        env=EnvConfig(params={"corridor_length": CORRIDOR}, num_envs=1024 // UNROLL),
        core=core_config(preset="small", **CORES[core]),
        algorithm=VMPOConfig(),
        sweep=SWEEP,
        total_steps=total_steps,
        unroll=UNROLL,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    steps, seeds = options.steps or TOTAL_STEPS, options.seeds or DRAWS
    return [Cell({"core": core}, job(core, steps), seeds) for core in CORES]


def success_at(record: Record, share: float) -> float:
    """Return the success in training at a share of a run, the mean of three iterations."""
    curve = record["curve"]["episode/success"]
    seen = np.asarray(curve["step"]) <= share * record["steps"]
    return float(np.mean(np.asarray(curve["value"])[seen][-3:])) if seen.any() else 0.0


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = by_cell(records, "core")
    rows = [
        [
            core,
            f"{count_solved(scores(runs))}/{len(runs)}",
            mean_entry(scores(runs)),
            *(mean_entry([success_at(run, share) for run in runs]) for share in TIMES),
            median(to_goal(runs, "steps"), digits=0),
        ]
        for core, runs in cells.items()
    ]
    draw(cells, options.results / "sensitivity.png")
    sizes = num_parameters(grid(options))
    return "Sensitivity to hyperparameters", [
        f"Passive T-Maze, a corridor of {CORRIDOR}, V-MPO, {records[0]['steps']:,} steps. Each run "
        "has its own draw of the bound of the KL, log-uniform from "
        f"{' to '.join(f'{bound:g}' for bound in SWEEP['epsilon_alpha'])}, and of the learning "
        f"rate, from {' to '.join(f'{bound:g}' for bound in SWEEP['learning_rate'])}; the draws "
        "are the same for all cores. Parameters of the cores: "
        + "; ".join(f"{core} {size:,}" for core, size in sizes.items() if core in cells)
        + ".",
        "Runs that solve the task (a success of at least 0.95 in the last evaluation) of all; the "
        "mean of that success over the runs, with its 95 % interval (Student's t); the mean "
        "success in training at a quarter, at half and at the end of training; and the median "
        "environment steps to a success of 0.95, over the runs that reached it.",
        table(["core", "solved", "success", "a quarter", "half", "end", "to 0.95"], rows),
    ]


def draw(cells: Mapping[Any, Sequence[Record]], path: Path) -> None:
    """Draw the success of the runs of each core by rank, at three times of training."""
    figure = new_figure(7.5, 2.7)
    panels = figure.subplots(1, len(TIMES), sharey=True)
    entries: dict[str, Any] = {}
    for share, axes in zip(TIMES, panels, strict=True):
        for core, look in assign_styles(CORES):
            if runs := cells.get(core, []):
                ranked = np.sort([success_at(run, share) for run in runs])[::-1]
                look = look | {"markersize": 3}
                entries[core] = axes.plot(np.arange(1, len(ranked) + 1), ranked, **look)[0]
        axes.set_title(f"{round(share * TOTAL_STEPS):,} steps", fontsize=9)
        axes.set_xlabel("rank of the run")
        axes.set_ylim(-0.05, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_axes(axes)
    panels[0].set_ylabel("success in training")
    legend_outside(figure, "", entries)
    save_figure(figure, path)


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
