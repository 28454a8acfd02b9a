"""PPO, V-MPO and R2D2 with the default settings, on the same tasks.

    python experiments/algorithms.py --workers 2
    python experiments/algorithms.py --only ppo "T-Maze of 100" --seeds 1

This runs the equivalent of `gtrxl train --algorithm.name ALGORITHM --env.name TASK` with GTrXL.
Only the memory size and the number of steps depend on the task, and in RepeatPrevious the lambda,
for the reason given in popgym_baselines.py. V-MPO learns one pass over each rollout, PPO four
epochs. V-MPO also has its paper's weight of the value loss, 1 instead of 0.25. R2D2, off-policy,
takes part where actions are discrete: it learns from each segment several times, so steps to the
goal compare better than seconds.

Writes algorithms.jsonl and algorithms.md to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.online.on_policy import OnPolicyConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import Paragraph, median, solved_share, table

ALGORITHMS: dict[str, AlgorithmConfig] = {
    "vmpo": VMPOConfig(),
    "vmpo, value cost 1": VMPOConfig(value_cost=1.0),
    "ppo": PPOConfig(),
    "r2d2": R2D2Config(),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """The settings of a task, and the goal at which it counts as solved."""

    env: EnvConfig
    memory_size: int
    total_steps: int
    goal: tuple[str, float] = ("success", 0.95)
    gae_lambda: float = 0.95


TASKS = {
    "T-Maze of 30": Task(EnvConfig("TMazePassive-v0", {"corridor_length": 30}), 32, 600_000),
    "T-Maze of 100": Task(EnvConfig("TMazePassive-v0", {"corridor_length": 100}), 104, 1_000_000),
    "MemoryChain of 100": Task(
        EnvConfig("MemoryChain-v0", {"memory_length": 100, "num_bits": 3}), 104, 1_500_000
    ),
    "RepeatPreviousMedium": Task(
        EnvConfig("RepeatPreviousMedium-v0"), 32, 700_000, ("return", 0.95), 0.5
    ),
    "CartPole": Task(EnvConfig("CartPole-v1"), 16, 300_000, ("return", 500)),
    "Pendulum": Task(EnvConfig("Pendulum-v1"), 16, 600_000, ("return", -200)),
}


def job(task: Task, algorithm: AlgorithmConfig, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell."""
    config = preset("default")
    core: Any = config.core
    if isinstance(algorithm, OnPolicyConfig):
        algorithm = dataclasses.replace(algorithm, gae_lambda=task.gae_lambda)
    return dataclasses.replace(
        config,
        env=dataclasses.replace(task.env, num_envs=config.env.num_envs),
        core=dataclasses.replace(core, memory_size=task.memory_size),
        algorithm=algorithm,
        total_steps=total_steps or task.total_steps,
    )


def grid(options: Options) -> list[Cell]:
    """Return all cells."""
    return [
        Cell(
            {"task": name, "algorithm": algorithm},
            job(task, config, options.steps),
            options.seeds or 5,
            task.goal,
        )
        for name, task in TASKS.items()
        for algorithm, config in ALGORITHMS.items()
        if (name, algorithm) != ("Pendulum", "r2d2")  # whose actions are continuous
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table."""
    rows = []
    for (name, algorithm), runs in by_cell(records, "task", "algorithm").items():
        score, goal = runs[0]["goal"]["score"], float(runs[0]["goal"]["value"])
        scores_S = scores(runs, score)
        rows.append(
            [
                name,
                algorithm,
                f"{score} {goal:g}",
                solved_share(scores_S, goal),
                ", ".join(f"{value:.4g}" for value in sorted(scores_S)),
                f"{runs[0]['steps']:,}",
                median(to_goal(runs, "steps"), digits=0),
                median(to_goal(runs, "seconds"), digits=0),
            ]
        )
    return "PPO, V-MPO and R2D2", [
        "Solved: seeds whose last evaluation reaches the goal, of all seeds, with the 95 % "
        "Wilson interval of that fraction; the score of each seed; the steps of a run. To the "
        "goal: medians over the seeds that reached it, in training or in an evaluation; "
        "seconds include start and compilation, whose results seeds of a cell share.",
        table(
            ["task", "algorithm", "goal", "solved", "scores", "steps", "to goal", "seconds"],
            rows,
        ),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
