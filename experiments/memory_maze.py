"""Memory Maze online: targets found in a 9 x 9 maze by a GTrXL and by an LSTM.

    python experiments/memory_maze.py --workers 2
    python experiments/memory_maze.py --only gtrxl --seeds 1

PPO on images of 36 x 36 pixels instead of 64 x 64, for CPUs, with 20 million steps. An episode has
1,000 steps, and its return is the number of targets found.

    gtrxl    2 layers of width 64, each with a memory of 256 steps
    lstm     1 layer; the agent has as many parameters, within 1 %

Both have an unroll of 64 steps, through which gradients flow.

A run takes hours of one core. It is kept in `--runs`, from which it resumes if it is interrupted.

Writes memory_maze.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.records import curves_of, thinned
from gtrxl_jax.studies.report import Lines, Paragraph, draw_returns, mean_entry, table

TASK = "MemoryMaze-9x9-v0"
SIZE: dict[str, bool | int | float | str] = {"height": 36, "width": 36}
CORES: dict[str, CoreConfig] = {
    "gtrxl": core_config("gtrxl", memory_size=256),
    "lstm": core_config("lstm", layers=1, width=120),
}
TOTAL_STEPS = 20_000_000
EPISODES = 64
KNOWN: Lines = [("explorer", 23.1, "--"), ("random", 0.2, ":")]
"""Scores of players that do not learn, see docs/environments/memory_maze.md."""


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """Options, and where the runs are."""

    runs: Path = Path("build/memory_maze")
    """Folder of the runs."""


def job(core: str, total_steps: int) -> OnlineConfig:
    """Return the config of a cell."""
    return OnlineConfig(
        env=EnvConfig(TASK, SIZE, num_envs=64),
        core=CORES[core],
        agent=AgentConfig(encoder="nature"),
        # Half of the default passes, as images are most of the cost.
        algorithm=PPOConfig(epochs=2, minibatches=8),
        evaluation=EvaluationConfig(episodes=EPISODES, interval=2_000_000),
        checkpoint=CheckpointConfig(interval=500_000),
        total_steps=total_steps,
        unroll=64,
    )


def train(core: str, options: Settings, seed: int) -> Record:
    """Train an agent, from where its run was interrupted."""
    config = dataclasses.replace(job(core, options.steps or TOTAL_STEPS), seed=seed)
    folder = options.runs / f"{core} {seed}"
    result = loop.train(make_trainer(config), folder=folder).result
    return {
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": {name: values[0] for name, values in result.per_seed.items()},
        "curve": thinned(curves_of(read_metrics(folder / "metrics.jsonl"))),
    }


def grid(options: Settings) -> list[Cell]:
    """Return all cells."""
    return [
        Cell(
            {"task": TASK, "core": core},
            functools.partial(train, core, options),
            options.seeds or 2,
        )
        for core in CORES
    ]


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = by_cell(records, "task", "core")
    path = options.results / "memory_maze.png"
    draw_returns(cells, [*CORES], {TASK: KNOWN}, path, "episode/return")
    rows = []
    for (_, core), runs in cells.items():
        return_S = scores(runs, "return")
        seconds = ", ".join(f"{run['seconds'] / 3600:.1f}" for run in runs)
        each = ", ".join(f"{value:.1f}" for value in return_S)
        rows.append([core, mean_entry(return_S, 1), each, f"{runs[0]['steps']:,}", seconds])
    return "Memory Maze, online", [
        f"Targets found in an episode of 1,000 steps: mean of {EPISODES} fresh episodes, with the "
        "95 % interval over seeds, and of each seed; and the hours of its run.",
        table(["core", "return", "seeds", "steps", "hours"], rows),
    ]


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
