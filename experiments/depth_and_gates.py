"""Depth, gates and learning rates: which transformers learn, and how fast?

    python experiments/depth_and_gates.py
    python experiments/depth_and_gates.py --workers 2 --only 8 gru trxl

The task is the passive T-Maze with a corridor of 25 and a memory that holds the whole episode; the
algorithm is V-MPO. The
cores are TrXL, TrXL-I and GTrXL with each of its gates, with the gate biases of the paper (gru 2,
the others 1), and for the gru gate also with a bias of 0; at 2, 4 and 8 layers, with three learning
rates and three seeds each.

Writes depth_and_gates.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.nn.cores.gtrxl import GATES
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, OnlineConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.plots.style import assign_styles, legend_outside, new_figure, save_figure, style_axes
from gtrxl_jax.statistics import count_solved
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import ENTRIES, Paragraph, median, solved_entry, table

CORRIDOR = 25
DEPTHS = (2, 4, 8)
RATES = (1e-4, 1e-3, 1e-2)
CORES: dict[str, dict[str, Any]] = {
    "trxl": {"name": "trxl"},
    "trxl-i": {"name": "trxl-i"},
    **{gate: {"name": "gtrxl", "gate": gate} for gate in GATES},
    "gru, bias 0": {"name": "gtrxl", "gate": "gru", "gate_bias": 0.0},
}
"""Settings of each core; GTrXL cores are named by their gates."""
TOTAL_STEPS = 300_000


def job(core: str, depth: int, rate: float, total_steps: int) -> OnlineConfig:
    """Return the config of a cell: the defaults with these settings changed."""
    config = OnlineConfig(
        env=EnvConfig(params={"corridor_length": CORRIDOR}),
        core=core_config(preset="small", layers=depth, memory_size=CORRIDOR + 4, **CORES[core]),
        algorithm=VMPOConfig(),
        total_steps=total_steps,
    )
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    return dataclasses.replace(config, optimizer=optimizer)


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell(
            {"depth": depth, "rate": rate, "core": core},
            job(core, depth, rate, options.steps or TOTAL_STEPS),
            options.seeds or 3,
        )
        for depth in DEPTHS
        for rate in RATES
        for core in CORES
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables and the figure of the available records."""
    cells = by_cell(records, "core", "rate", "depth")
    head = ["core", "learning rate", *(f"{depth} layers" for depth in DEPTHS)]
    success, speed = [], []
    for core in CORES:
        for rate in RATES:
            runs = [cells.get((core, rate, depth), []) for depth in DEPTHS]
            success.append([core, rate, *(solved_entry(scores(r)) if r else "" for r in runs)])
            speed.append([core, rate, *(median(to_goal(r, "steps"), digits=0) for r in runs)])
    draw(cells, options.results / "depth_and_gates.png")
    return "Depth, gates and learning rates", [
        f"Passive T-Maze, a corridor of {CORRIDOR}, V-MPO, {records[0]['steps']:,} steps. "
        "Runs before 2026-11-26 have an entropy bonus of 0.02, the default of that time; later "
        f"ones have today's. {ENTRIES}",
        table(head, success),
        "Environment steps to a success of at least 0.95, in training or in an evaluation: "
        "median over the seeds that reached it.",
        table(head, speed),
    ]


def draw(cells: Mapping[Any, Sequence[Record]], path: Path) -> None:
    """Draw the fraction of solved seeds, and their steps to the goal, by depth, core and rate."""
    figure = new_figure(6.5, 4.6)
    panels = figure.subplots(2, len(DEPTHS), sharex=True, sharey="row")
    places = np.linspace(-0.28, 0.28, len(RATES))
    for depth, (upper, lower) in zip(DEPTHS, panels.T, strict=True):
        for place, (rate, look) in zip(places, assign_styles(map(str, RATES)), strict=True):
            look = look | {"linestyle": "", "markersize": 4}
            runs = [cells.get((core, float(rate), depth), []) for core in CORES]
            shares = [count_solved(scores(r)) / len(r) if r else np.nan for r in runs]
            x = np.arange(len(CORES)) + place
            upper.plot(x, shares, **look, label=f"learning rate {rate}")
            for x_core, r in zip(x, runs, strict=True):
                steps = to_goal(r, "steps")
                lower.plot(np.full(len(steps), x_core), steps / 1e3, **look, fillstyle="none")
        upper.set_title(f"{depth} layers", fontsize=9)
        lower.set_xticks(range(len(CORES)), list(CORES), rotation=90)
        style_axes(upper)
        style_axes(lower)
    panels[0, 0].set_ylim(-0.05, 1.05)
    panels[0, 0].set_ylabel("share of seeds solved")
    panels[1, 0].set_ylim(bottom=0)
    panels[1, 0].set_ylabel("thousand steps to it, each seed")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    legend_outside(figure, "", dict(zip(labels, handles, strict=True)))
    save_figure(figure, path)


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
