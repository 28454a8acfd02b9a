"""The default settings on other tasks.

    python experiments/default_settings.py
    python experiments/default_settings.py --workers 2 --only CartPole-v1 Pendulum-v1

This runs the equivalent of `gtrxl train --env.name TASK` with GTrXL and with an LSTM, which learn
by PPO, and by V-MPO with `--algorithm.name vmpo`: five seeds each, fewer where a run is long. Only
the memory size and the number of steps depend on the task, and in the MinAtar games, evaluation
samples actions: these games have little randomness of their own, and all episodes of the most
likely actions can be the same one. The LSTM has one layer, and about as many parameters as GTrXL.
"RND" is PPO with a bonus for exploration, `--agent.rnd 0.05`, or 0.5 in MountainCarContinuous,
where an action costs up to 0.1.

With `--peer PATH`, a checkout of purejaxrl, its PPO plays the MinAtar games for as many steps; its
score is that of its episodes at the end of training, whose actions are sampled too.

Writes default_settings.jsonl and default_settings.md to experiments/results/.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.statistics import interquartile_mean
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import Paragraph, median, solved_share, table

RND = "gtrxl, RND"
AGENTS: dict[str, tuple[AlgorithmConfig, str, dict[str, Any]]] = {
    "gtrxl": (PPOConfig(), "gtrxl", {}),
    RND: (PPOConfig(), "gtrxl", {}),
    "lstm": (PPOConfig(), "lstm", {"width": 120}),
    "gtrxl, V-MPO": (VMPOConfig(), "gtrxl", {}),
    "lstm, V-MPO": (VMPOConfig(), "lstm", {"width": 120}),
}
"""The algorithm, the core and its settings, besides the memory size."""
PEER = "feed-forward PPO of purejaxrl"
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
    bonus: float = 0.05
    """The weight of the bonus of RND."""


CHAIN = "MemoryChain-v0"
TASKS = {
    "CartPole-v1": Task("CartPole-v1", 16, 300_000, ("return", 500)),
    "Pendulum-v1": Task("Pendulum-v1", 16, 1_000_000, ("return", -200)),
    "Acrobot-v1": Task("Acrobot-v1", 16, 500_000, ("return", -100)),
    "MountainCarContinuous-v0": Task(
        "MountainCarContinuous-v0", 16, 300_000, ("return", 90), bonus=0.5
    ),
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
    "MiniGrid-MemoryS13-v0": Task("MiniGrid-MemoryS13-v0", 96, 3_000_000, params={"view_size": 3}),
    **{name: Task(name, 16, 1_000_000, ("return", math.inf), seeds=2) for name in GAMES},
}


def job(task: Task, agent: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell: the default settings in another environment."""
    config = preset("default")
    algorithm, core, settings = AGENTS[agent]
    memory: Any = {"memory_size": task.memory_size} if core == "gtrxl" else {}
    actions = "sample" if task.env in GAMES else config.evaluation.actions
    return dataclasses.replace(
        config,
        env=EnvConfig(task.env, task.params, num_envs=config.env.num_envs),
        agent=dataclasses.replace(config.agent, rnd=task.bonus if agent == RND else 0.0),
        algorithm=algorithm,
        core=core_config(core, **settings, **memory),
        evaluation=dataclasses.replace(config.evaluation, actions=actions),
        total_steps=total_steps or task.total_steps,
    )


def grid(options: Settings) -> list[Cell]:
    """Return all cells, those of the peer if there is a checkout of it."""
    cells = []
    for name, task in TASKS.items():
        seeds = options.seeds or task.seeds
        cells += [
            Cell({"task": name, "core": agent}, job(task, agent, options.steps), seeds, task.goal)
            for agent in AGENTS
        ]
        if options.peer and name in GAMES:
            import peer_minatar

            steps = options.steps or task.total_steps
            play = functools.partial(peer_minatar.train, options.peer, name, steps)
            cells.append(Cell({"task": name, "core": PEER}, play, seeds, task.goal))
    return cells


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table."""
    rows = []
    by_core = by_cell(records, "task", "core")
    for name, core in itertools.product(TASKS, (*AGENTS, PEER)):
        if not (runs := by_core.get((name, core))):
            continue
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
    return "The default settings on other tasks", [
        "Solved: seeds whose last evaluation reaches the goal, of all seeds, with the 95 % "
        "Wilson interval of that fraction. Score: median and interquartile mean over seeds. To "
        "the goal: medians over the seeds that reached it, in training or in an evaluation; "
        "seconds include start and compilation.",
        table(
            ["task", "core", "goal", "solved", "score", "steps", "to the goal", "seconds"],
            rows,
        ),
    ]


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
