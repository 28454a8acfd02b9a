"""The default settings on other tasks.

    python experiments/default_settings.py
    python experiments/default_settings.py --workers 2 --only CartPole-v1 Pendulum-v1

This runs the equivalent of `gtrxl train --env.name TASK` with GTrXL and with an LSTM, which learn
by PPO, and by V-MPO with `--algorithm.name vmpo`: five seeds each, fewer where a run is long. Only
the memory size and the number of steps depend on the task, and in the MinAtar games, evaluation
samples actions: these games have little randomness of their own, and all episodes of the most
likely actions can be the same one. The LSTM has one layer, and about as many parameters as GTrXL.

With `--peer PATH`, a checkout of purejaxrl, its PPO plays the MinAtar games for as many steps; its
score is that of its episodes at the end of training, whose actions are sampled too.

Writes experiments/results/default_settings/ (one file per run) and default_settings.md.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peer_minatar
import tyro
from study import Options, Record, Run, run_study
from study_report import by_cell, origin, scores, to_goal, write_report

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.algorithm_config import AlgorithmConfig, PPOConfig, VMPOConfig
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.ops.statistics import interquartile_mean
from gtrxl_jax.plots.tables import median, solved_share, table

STUDY = "default_settings"
AGENTS: dict[str, tuple[AlgorithmConfig, str, dict[str, Any]]] = {
    "gtrxl": (PPOConfig(), "gtrxl", {}),
    "lstm": (PPOConfig(), "lstm", {"width": 120}),
    "gtrxl, V-MPO": (VMPOConfig(), "gtrxl", {}),
    "lstm, V-MPO": (VMPOConfig(), "lstm", {"width": 120}),
}
"""The algorithm, the core and its settings, besides the memory size."""
GAMES = ("Breakout-MinAtar", "SpaceInvaders-MinAtar")


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What to run."""

    peer: Path | None = None
    """A checkout of luchris429/purejaxrl, to compare with its PPO on the MinAtar games."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, its settings, and the goal at which it counts as solved."""

    env: str
    memory_size: int
    total_steps: int
    goal: tuple[str, float] = ("success", 0.95)
    """A score, and the value at which the task counts as solved; infinite if there is none."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    seeds: int = 5


CHAIN = "MemoryChain-v0"
TASKS = {
    "CartPole-v1": Task("CartPole-v1", 16, 300_000, ("return", 500)),
    "Pendulum-v1": Task("Pendulum-v1", 16, 1_000_000, ("return", -200)),
    "Acrobot-v1": Task("Acrobot-v1", 16, 500_000, ("return", -100)),
    "Catch-bsuite": Task("Catch-bsuite", 16, 300_000, ("return", 0.95)),
    **{
        f"{CHAIN} of {n}": Task(CHAIN, n + 4, steps, params={"memory_length": n, "num_bits": 3})
        for n, steps in ((50, 1_500_000), (100, 2_000_000))
    },
    "AssociativeRetrieval-v0": Task("AssociativeRetrieval-v0", 32, 1_000_000),
    # A view of 7 shows all of the 9 x 9 maze, so that it would not require memory.
    "MiniGrid-MemoryS9-v0": Task(
        "MiniGrid-MemoryS9-v0", 64, 4_000_000, params={"view_size": 3}, seeds=3
    ),
    **{name: Task(name, 16, 1_000_000, ("return", math.inf), seeds=2) for name in GAMES},
}


def job(task: Task, agent: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell: the default settings in another environment."""
    config = preset("default")
    algorithm, core, settings = AGENTS[agent]
    memory: Any = {"memory_size": task.memory_size} if core == "gtrxl" else {}
    policy = "sample" if task.env in GAMES else config.evaluation.policy
    return dataclasses.replace(
        config,
        env=EnvConfig(task.env, task.params, num_envs=config.env.num_envs),
        algorithm=algorithm,
        core=core_config(core, **settings, **memory),
        evaluation=dataclasses.replace(config.evaluation, policy=policy),
        total_steps=total_steps or task.total_steps,
    )


def grid(options: Settings) -> list[Run]:
    """Return all runs, those of the peer if they are possible or saved."""
    runs = []
    for name, task in TASKS.items():
        seeds = range(options.seeds or task.seeds)
        runs += [
            Run({"task": name, "core": agent}, seed, job(task, agent, options.steps), task.goal)
            for agent in AGENTS
            for seed in seeds
        ]
        if name not in GAMES:
            continue
        for seed in seeds:
            steps = options.steps or task.total_steps
            play = functools.partial(peer_minatar.train, options.peer, name, steps, seed)
            run = Run({"task": name, "core": peer_minatar.NAME}, seed, play, task.goal)
            if options.peer or Path(options.results, STUDY, run.file).exists():
                runs.append(run)
    return runs


def report(options: Options, records: Sequence[Record]) -> None:
    """Write the table."""
    rows = []
    for (name, core), runs in by_cell(records, "task", "core").items():
        score, goal = runs[0]["goal"]["score"], float(runs[0]["goal"]["value"])
        scores_S = scores(runs, score)
        known = scores_S[~np.isnan(scores_S)]
        iqm = f"{interquartile_mean(known):.2f}" if len(known) else ""
        rows.append(
            [
                name,
                core,
                f"{score} {goal:g}" if math.isfinite(goal) else score,
                solved_share(scores_S, goal) if math.isfinite(goal) else "",
                f"{median(scores_S)}, {iqm}",
                f"{runs[0]['steps']:,}",
                median(to_goal(runs, "steps"), digits=0),
                median(to_goal(runs, "seconds"), digits=0),
            ]
        )
    write_report(
        options.results / f"{STUDY}.md",
        "The default settings on other tasks",
        [
            "Solved: seeds whose last evaluation reaches the goal, of all seeds, with the 95 % "
            "Wilson interval of that fraction. Score: median and interquartile mean over seeds. To "
            "the goal: medians over the seeds that reached it, in training or in an evaluation; "
            "seconds include start and compilation.",
            table(
                ["task", "core", "goal", "solved", "score", "steps", "to the goal", "seconds"],
                rows,
            ),
            origin(records),
        ],
    )


def main(options: Settings) -> None:
    """Run the missing runs, and write the report."""
    report(options, run_study(STUDY, grid(options), options))


if __name__ == "__main__":
    main(tyro.cli(Settings))
