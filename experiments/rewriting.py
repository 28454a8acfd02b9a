"""Rewriting memory: which cores replace what is no longer true, and does a GTrXL fail at it?

    python experiments/rewriting.py
    python experiments/rewriting.py --only corridors causes --seeds 3
    python experiments/rewriting.py --only gtrxl lstm "5 fixed"

Shchendrigin et al. (2026), "Memory Retention Is Not Enough to Master Memory Tasks in Reinforcement
Learning" (arXiv 2601.15086), publish that PPO with a GTrXL stays at the level of an MLP in their
Endless T-Maze, even with one corridor, where LSTM and FFM reach 1.00; and that no agent solves the
harder levels of Color-Cubes. Their settings are not published. There are three studies, with PPO
and the same default settings for every core:

    corridors  Endless T-Maze with 1, 5, 10 and 20 corridors, of 10 moves ("fixed") or of 1 to 10
               ("uniform"). Agents are measured in mazes with other numbers of corridors too, and in
               longer ones.
    cubes      the three levels of Color-Cubes, in the sizes of this package.
    causes     what may make a GTrXL fail in the Endless T-Maze: a memory that does not reach back
               to the cue; attention without positions, as in an earlier version of the authors'
               code, which cannot tell the last cue from others; its PPO settings, with and without
               scaling up the smallest advantages; and its gate. And what a wrong turn costs.

A GTrXL has 2 layers of width 64, each with a memory of 64 steps; the others have as many
parameters, within 10 %. "Swapped" is the fault of some implementations in the second gate; the
control, "memoryless", sees every step as the first.

Writes rewriting.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import memory_horizon
import numpy as np

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.gtrxl import Block, GTrXLConfig, GTrXLCore, RelativeBlock
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.nn.layers import RelativeAttention
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig, OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.plots.style import (
    assign_styles,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.runs import loop
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import ENTRIES, Paragraph, mean_entry, solved_entry, table

CORES: dict[str, tuple[str, dict[str, Any]]] = {
    "gtrxl": ("gtrxl", {}),
    "gtrxl, swapped": ("gtrxl", {"gate_order": "swapped"}),
    "trxl": ("trxl", {"width": 104}),
    "lstm": ("lstm", {"layers": 1, "width": 139}),
    "gru": ("gru", {"layers": 1, "width": 161}),
    "mingru": ("mingru", {"width": 68}),
    "ffm": ("ffm", {"width": 60}),
    "mamba2": ("mamba2", {"width": 60}),
    "memoryless": ("gtrxl", {}),
}
CORRIDORS = {1: 150_000, 5: 200_000, 10: 500_000, 20: 1_000_000}
"""Steps of training by the number of corridors."""
LENGTH = 10
MAZES: dict[str, dict[str, Any]] = {
    f"{n} {lengths}": {"num_corridors": n, "corridor_length": LENGTH, "lengths": lengths}
    for n in CORRIDORS
    for lengths in ("fixed", "uniform")
}
LEVELS = {"Trivial": 2_000_000, "Medium": 4_000_000, "Extreme": 8_000_000}
CAUSES = {
    "gtrxl, memory of 4": ("1 fixed", "5 fixed", "5 uniform"),
    "gtrxl, no positions": ("1 fixed", "5 fixed", "5 uniform"),
    "gtrxl, authors' PPO": ("1 fixed", "5 fixed"),
    "gtrxl, no positions, authors' PPO": ("1 fixed", "5 fixed"),
    "lstm, authors' PPO": ("1 fixed", "5 fixed"),
    "gtrxl, authors' PPO, not scaled up": ("1 fixed",),
    "lstm, authors' PPO, not scaled up": ("1 fixed",),
    "lstm, wrong turn 0.01": ("1 fixed", "5 fixed"),
    "gtrxl, wrong turn 0.01": ("1 fixed", "5 fixed"),
    "lstm, may wait": ("1 fixed", "5 fixed"),
    "gtrxl, may wait": ("1 fixed", "5 fixed"),
}
"""The mazes in which each change is tried."""
OTHERS = [(n, LENGTH) for n in CORRIDORS] + [(5, 2 * LENGTH), (5, 3 * LENGTH)]
"""Number and length of the corridors of the mazes in which agents are measured."""
EPISODES = 64
PUBLISHED = {
    ("1 fixed", "gtrxl"): "about 0.5",
    ("1 fixed", "lstm"): "1.00",
    ("1 fixed", "ffm"): "1.00",
    ("1 fixed", "memoryless"): "about 0.5",
}
"""Success that the paper's page names for one corridor."""


class AttentionWithoutPositions(RelativeAttention):
    """Attention by content alone: the terms of the distance are zero."""

    def _positions(self, farthest: int, dtype: Any) -> Any:
        return 0 * super()._positions(farthest, dtype)


class BlockWithoutPositions(RelativeBlock):
    """The block of GTrXL with such attention."""

    def setup(self) -> None:
        Block.setup(self)
        self.attention = AttentionWithoutPositions(
            self.width,
            self.heads,
            self.head_width,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )


class CoreWithoutPositions(GTrXLCore):
    """A GTrXL whose memory is a set, without an order."""

    @property
    def _block(self) -> RelativeBlock:
        block, fields = super()._block, dataclasses.fields(RelativeBlock)
        names = {field.name for field in fields} - {"name"}
        return BlockWithoutPositions(**{name: getattr(block, name) for name in names})


@dataclasses.dataclass(frozen=True)
class WithoutPositionsConfig(CoreConfig):
    """Settings of `CoreWithoutPositions`."""

    name: str = "rewriting:WithoutPositionsConfig"
    memory_size: int = 64
    """Number of past steps that each layer attends to."""

    def make(self) -> GTrXLCore:
        """Create the core."""
        config = GTrXLConfig(layers=self.layers, width=self.width, memory_size=self.memory_size)
        return CoreWithoutPositions(config=config, **self.shared)


AUTHORS_PPO = {
    "algorithm": PPOConfig(
        gamma=0.995,
        entropy_cost=0.001,
        entropy_final=1.0,
        epochs=3,
        minibatches=8,
        clip_epsilon=0.1,
        value_cost=0.5,
        min_advantage_std=0.0,
    ),
    "optimizer": OptimizerConfig(learning_rate=2.75e-4, final=1.0, clip_norm=0.25),
}
"""PPO of the authors' earlier code, as far as this package has its settings."""


def job(env: EnvConfig, core: str, total_steps: int) -> OnlineConfig:
    """Return the config of a cell: the defaults with these settings changed."""
    kind, *changes = core.split(", ")
    name, settings = CORES[core] if core in CORES else CORES[kind]
    short = {"memory_size": 4} if "memory of 4" in changes else {}
    config = core_config(name, "small", **settings, **short)
    if "no positions" in changes:
        config = WithoutPositionsConfig()
    if "wrong turn 0.01" in changes:
        env = dataclasses.replace(env, params=env.params | {"wrong_penalty": 0.01})
    if "may wait" in changes:
        env = dataclasses.replace(env, params=env.params | {"wait_at_junction": True})
    more: dict[str, Any] = AUTHORS_PPO if "authors' PPO" in changes else {}
    if "not scaled up" in changes:
        bound = {"min_advantage_std": PPOConfig.min_advantage_std}
        more = more | {"algorithm": dataclasses.replace(more["algorithm"], **bound)}
    return OnlineConfig(
        env=env,
        core=config,
        agent=AgentConfig(memoryless=core == "memoryless"),
        total_steps=total_steps,
        **more,
    )


def measure(trained: loop.Trained) -> dict[str, float]:
    """Return the success of a trained agent in mazes with other corridors.

    The time limit is twice the longest solution.
    """
    trainer: Any = trained.trainer
    (stream,) = trainer.tasks
    env, params = stream.env, stream.params

    @jax.jit
    def play(weights: Any, corridors: Any, length: Any) -> Any:
        limit = 2 * corridors * (length + 1)
        mine = params.replace(
            num_corridors=corridors, corridor_length=length, max_steps_in_episode=limit
        )
        evaluate = make_evaluate(trainer.policy, Stream(env, mine, num_envs=1), EPISODES)
        return summarize(evaluate(weights, jax.random.key(trainer.config.seed)))["success"]

    weights = trained.params_per_seed[0]
    return {
        f"success/{n} of {length}": float(np.mean(play(weights, np.int32(n), np.int32(length))))
        for n, length in OTHERS
    }


def grid(options: Options) -> list[Cell]:
    """Return all runs."""

    def cell(study: str, task: str, core: str) -> Cell:
        if study == "cubes":
            env, steps = EnvConfig(f"ColorCubes-{task}"), LEVELS[task]
        else:
            params = MAZES[task]
            env, steps = EnvConfig("EndlessTMaze-v0", params), CORRIDORS[params["num_corridors"]]
        return Cell(
            {"study": study, "task": task, "core": core},
            job(env, core, options.steps or steps),
            options.seeds or 5,
            measure=None if study == "cubes" else measure,
        )

    cells = [cell("corridors", maze, core) for maze in MAZES for core in CORES]
    cells += [cell("causes", maze, core) for core, mazes in CAUSES.items() for maze in mazes]
    cells += [cell("cubes", level, core) for level in LEVELS for core in CORES]
    counts = memory_horizon.num_parameters(cells)
    if any(abs(size / counts["gtrxl"] - 1) > 0.1 for size in counts.values()):
        raise ValueError(f"the cores' numbers of parameters differ by more than 10 %: {counts}")
    return cells


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables and the figure of the available records."""
    counts = memory_horizon.num_parameters(grid(options))
    parameters = "; ".join(f"{core} {size:,}" for core, size in counts.items() if core in CORES)
    planned, done = grid(options), by_cell(records, "study", "task", "core")
    missing = len(planned) - len(done)
    paragraphs: list[Any] = [
        "PPO with default settings and the same steps for every core. Parameters of the cores: "
        f"{parameters}. Of the {len(planned)} cells of the study, {missing} have not been run, and "
        "are not in the tables.",
        ENTRIES,
    ]
    paragraphs += corridors_report(options, records)
    paragraphs += causes_report(records)
    cubes = by_cell([r for r in records if r["labels"]["study"] == "cubes"], "task", "core")
    if cubes:
        rows = [
            [level, core, solved_entry(scores(runs)), mean_entry(scores(runs, "found"))]
            for (level, core), runs in cubes.items()
        ]
        paragraphs += [
            "## Color-Cubes",
            "With the mean number of cubes that were found.",
            table(["level", "core", "solved", "found"], rows),
        ]
    return "Rewriting memory", paragraphs


def corridors_report(options: Options, records: Sequence[Record]) -> list[Paragraph]:
    """Return the paragraphs of the first study, and draw its figure."""
    cells = by_cell([r for r in records if r["labels"]["study"] == "corridors"], "task", "core")
    if not cells:
        return []
    names = [f"success/{n} of {length}" for n, length in OTHERS]
    rows, others = [], []
    for (maze, core), runs in cells.items():
        published = PUBLISHED.get((maze, core), "")
        corridors = mean_entry(scores(runs, "corridors"))
        rows.append([maze, core, solved_entry(scores(runs)), corridors, published])
        others.append([maze, core, *(mean_entry(scores(runs, name)) for name in names)])
    draw(cells, options)
    return [
        "## Endless T-Maze",
        "With the mean number of corridors passed, and the success that the paper names.",
        table(["corridors", "core", "solved", "passed", "published"], rows),
        "## Other mazes than in training",
        "Mean success in mazes with n corridors of l moves (of 1 to l after training on uniform "
        f"lengths), in {EPISODES} episodes with twice the time of the longest solution.",
        table(["trained on", "core", *(f"n {n}, l {length}" for n, length in OTHERS)], others),
    ]


def causes_report(records: Sequence[Record]) -> list[Paragraph]:
    """Return the paragraphs on what may make a GTrXL fail."""
    cells = by_cell([r for r in records if r["labels"]["study"] == "causes"], "core", "task")
    if not cells:
        return []
    rows = [
        [core, maze, solved_entry(scores(runs)), mean_entry(scores(runs, "corridors"))]
        + [", ".join(f"{highest(run):.2f}" for run in runs)]
        for (core, maze), runs in cells.items()
    ]
    return [
        "## What may make a GTrXL fail",
        "A memory of 4 steps for each of two layers reaches back 8 steps, and a corridor has 10. "
        "Without positions, attention is by content alone. The PPO settings are those of an "
        "earlier version of the authors' code, and so is a cost of 0.01 of a wrong turn. Agents "
        "that may wait are not punished for moving forward at a junction. The last column has the "
        "highest success of each seed in training.",
        table(["core", "corridors", "solved", "passed", "highest"], rows),
    ]


def highest(run: Record) -> float:
    """Return the highest success in training, with sampled actions."""
    known = [value for value in run["curve"]["episode/success"]["value"] if value != "NaN"]
    return float(max(known))


def draw(cells: dict[Any, list[Record]], options: Options) -> None:
    """Draw the mean success in other mazes than in training, a row for each training maze.

    At the left against the number of corridors, at the right against their length.
    """
    mazes = [maze for maze in MAZES if any(maze == task for task, _ in cells)]
    few = min(n for n, length in OTHERS if length > LENGTH)
    panels = {
        "corridors": [(n, n, length) for n, length in OTHERS if length == LENGTH],
        f"moves of each of {few} corridors": [
            (length, n, length) for n, length in OTHERS if n == few
        ],
    }
    figure = new_figure(7.4, 2.1 * len(mazes) + 0.3)
    axes_RC = figure.subplots(len(mazes), len(panels), squeeze=False, sharey=True, sharex="col")
    entries: dict[str, Any] = {}
    for maze, axes_C in zip(mazes, axes_RC, strict=True):
        for points, axes in zip(panels.values(), axes_C, strict=True):
            for core, look in assign_styles(tuple(CORES)):
                if runs := cells.get((maze, core)):
                    names = [f"success/{n} of {length}" for _, n, length in points]
                    success_N = [np.nanmean(scores(runs, name)) for name in names]
                    entries[core] = axes.plot([x for x, _, _ in points], success_N, **look)[0]
            axes.set_ylim(-0.03, 1.03)
            axes.set_title(f"trained on {maze.replace(' ', ', ')}", fontsize=9)
            style_axes(axes)
        axes_C[0].set_ylabel("success")
    for label, axes in zip(panels, axes_RC[-1], strict=True):
        axes.set_xlabel(label)
    legend_outside(figure, "", entries)
    save_figure(figure, options.results / "rewriting.png")


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
