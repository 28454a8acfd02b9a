"""Memory Maze online: targets found in a 9 x 9 maze by a GTrXL and by an LSTM.

    python experiments/memory_maze_online.py --only "64 x 64" --workers 4      # on a GPU
    python experiments/memory_maze_online.py --only "36 x 36" --workers 2      # on CPUs

PPO on images of 64 x 64 pixels, the original size, for GPUs; and of 36 x 36 with smaller agents,
for CPUs. An episode has 1,000 steps, and its return is the number of targets found. Gradients flow
through unrolls of 64 steps. Trained agents also play with a memory that is cleared every 64 steps,
and at every step.

    gtrxl               2 layers, each with a memory of 512 steps, or of 256 for the small images
    gtrxl, recency 2    the same, whose heads but one prefer recent steps at first
    lstm                1 layer; the agent has as many parameters, within 4 %

With small images, the last two also learn at a lower rate than PPO's own, 0.0002.

Runs are kept in `--runs`, from which they resume if they are interrupted. Set
XLA_PYTHON_CLIENT_PREALLOCATE=false if several share a GPU.

Writes memory_maze_online.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from gtrxl_jax.loading import evaluate
from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell
from gtrxl_jax.studies.records import curves_of, thinned
from gtrxl_jax.studies.report import Lines, Paragraph, draw_returns, table

TASK = "MemoryMaze-9x9-v0"
EPISODES = 64
FORGET = {64: "cleared every 64 steps", 1: "no memory"}
"""The numbers of steps after which trained agents forget everything, and their names."""
LOWER = 0.0002
"""A second learning rate, lower than PPO's own."""
KNOWN: Lines = [("explorer", 23.1, "--"), ("random", 0.2, ":")]
"""Scores of players that do not learn, see docs/environments/memory_maze.md."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of runs.

    Attributes:
      side: height and width of the images.
      cores: the cores by name, which ends with the learning rate if it is not PPO's own.
      num_envs: number of environments.
      stagger: whether these start in different parts of an episode.
      minibatches: of an epoch.
      total_steps: environment steps of a run.
    """

    side: int
    cores: dict[str, CoreConfig]
    num_envs: int
    stagger: bool
    minibatches: int
    total_steps: int


SIZES = {
    "64 x 64": Size(
        side=64,
        cores={
            "gtrxl": core_config("gtrxl", width=128, memory_size=512),
            "gtrxl, recency 2": core_config("gtrxl", width=128, memory_size=512, recency=2.0),
            "lstm": core_config("lstm", layers=1, width=264),
        },
        num_envs=256,
        stagger=True,
        minibatches=16,
        total_steps=25_000_000,
    ),
    "36 x 36": Size(
        side=36,
        cores={
            "gtrxl": core_config("gtrxl", memory_size=256),
            "gtrxl, recency 2": core_config("gtrxl", memory_size=256, recency=2.0),
            "lstm": core_config("lstm", layers=1, width=120),
            f"gtrxl, recency 2, {LOWER}": core_config("gtrxl", memory_size=256, recency=2.0),
            f"lstm, {LOWER}": core_config("lstm", layers=1, width=120),
        },
        num_envs=64,
        stagger=False,
        minibatches=8,
        total_steps=6_000_000,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """Options, and where the runs are."""

    runs: Path = Path("build/memory_maze")
    """Folder of the runs."""


def job(size: Size, core: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell."""
    images: dict[str, bool | int | float | str] = {"height": size.side, "width": size.side}
    config = OnlineConfig(
        env=EnvConfig(TASK, images, num_envs=size.num_envs, stagger=size.stagger),
        core=size.cores[core],
        agent=AgentConfig(encoder="nature"),
        # Half of the default passes, as images are most of the cost.
        algorithm=PPOConfig(epochs=2, minibatches=size.minibatches),
        evaluation=EvaluationConfig(episodes=EPISODES, interval=2_000_000),
        checkpoint=CheckpointConfig(interval=500_000),
        total_steps=total_steps or size.total_steps,
        unroll=64,
    )
    if core.endswith(f", {LOWER}"):
        optimizer = dataclasses.replace(config.optimizer, learning_rate=LOWER)
        config = dataclasses.replace(config, optimizer=optimizer)
    return config


def train(images: str, core: str, options: Settings, seed: int) -> Record:
    """Train an agent, from where its run was interrupted."""
    config = dataclasses.replace(job(SIZES[images], core, options.steps), seed=seed)
    folder = options.runs / f"{images} {core} {seed}".replace(",", "").replace(" ", "-")
    result = loop.train(make_trainer(config), folder=folder).result
    found = {name: values[0] for name, values in result.per_seed.items()}
    for steps in FORGET:
        played, _ = evaluate(folder, EPISODES, forget=steps)
        found[f"forgetting/{steps}"] = played["return"].per_seed[0]
    return {
        "steps": result.steps,
        "seconds": round(result.compile_seconds + result.train_seconds, 1),
        "scores": found,
        "curve": thinned(curves_of(read_metrics(folder / "metrics.jsonl"))),
    }


def grid(options: Settings) -> list[Cell]:
    """Return all cells."""
    return [
        Cell(
            {"task": TASK, "images": images, "core": core},
            functools.partial(train, images, core, options),
            options.seeds or 2,
        )
        for images, size in SIZES.items()
        for core in size.cores
    ]


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = by_cell(records, "images", "core")
    panels = {images: KNOWN for images in SIZES if any(run[0] == images for run in cells)}
    path = options.results / "memory_maze_online.png"
    cores = list(dict.fromkeys(core for size in SIZES.values() for core in size.cores))
    draw_returns(cells, cores, panels, path, "episode/return")
    rows = []
    for (images, core), runs in cells.items():
        minutes = ", ".join(f"{run['seconds'] / 60:.0f}" for run in runs)
        forgetting = [each(runs, f"forgetting/{steps}") for steps in FORGET]
        rows.append([images, core, each(runs), *forgetting, f"{runs[0]['steps']:,}", minutes])
    head = ["images", "core", "return", *FORGET.values(), "steps", "minutes"]
    return "Memory Maze, online", [
        f"Targets found in an episode of 1,000 steps, mean of {EPISODES} fresh episodes, of each "
        "seed; with a memory that is cleared, where measured; and the minutes of training.",
        table(head, rows),
    ]


def each(runs: Sequence[Record], score: str = "return") -> str:
    """Return a score of each seed that has it."""
    return ", ".join(f"{run['scores'][score]:.1f}" for run in runs if score in run["scores"])


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
