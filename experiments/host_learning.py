"""The same tasks in environments on the host and in jitted ones, by default settings.

    python experiments/host_learning.py
    python experiments/host_learning.py --seeds 1 --only "CartPole-v1, gymnasium"

A cell is `gtrxl train --env.name TASK`, with PPO and GTrXL: in gymnasium's environment, with one
actor that is an update behind, and in the jitted one of this package or of gymnax. The memory size
and the number of steps depend on the task only. In MiniGrid-MemoryS7, both see the kinds of the
cells in view, one-hot, of the five kinds that occur; "all numbers" has all three numbers of each
cell, one-hot, 1,617 inputs instead of 245: two of three seeds guess at once there, and stay at it.

The update that the actor is behind delays what is learned soon: in CartPole to a return of 475, by
an iteration of ten updates. With `--actors.lag 0`, seed 0 is there as soon as the jitted one.

Hopper, which needs the extra mujoco, is not jitted, and has no entropy bonus, which would keep its
actions as random as they can be.

Writes host_learning.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation
from jaxtyping import Float

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.plugins import import_plugins
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import (
    Lines,
    Paragraph,
    draw_returns,
    median,
    solved_share,
    table,
)

MINIGRID = "MiniGrid-MemoryS7-v0"
HOST = "gymnasium"
JITTED = "jitted"
KINDS = (0, 1, 2, 5, 6)
"""Of the cells of MiniGrid-Memory, in minigrid's numbers: unseen, empty, wall, key and ball."""


def memory_of_kinds() -> gymnasium.Env[Any, Any]:
    """Return MiniGrid-MemoryS7 with the observations of the jitted one."""
    import minigrid  # noqa: F401, PLC0415, registers it

    def one_hot(observation: Any) -> Float[np.ndarray, " F"]:
        return (observation["image"][..., :1] == KINDS).astype(np.float32).ravel()

    space = gymnasium.spaces.Box(0.0, 1.0, (7 * 7 * len(KINDS),), np.float32)
    return TransformObservation(gymnasium.make(MINIGRID), one_hot, space)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, with its settings in both kinds of environments.

    Attributes:
      memory_size: the core's, in steps.
      total_steps: steps of the run.
      goal: the score, and the value at which the task is solved.
      wrappers: those of the environment on the host.
      algorithm: PPO's settings.
      kinds: the environments that are compared.
      host: name of the environment on the host, if it is another one than the task's.
    """

    memory_size: int
    total_steps: int
    goal: tuple[str, float]
    wrappers: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithm: PPOConfig = PPOConfig()
    kinds: tuple[str, ...] = (HOST, JITTED)
    host: str = ""


TASKS = {
    "CartPole-v1": Task(16, 200_000, ("return", 475)),
    "Pendulum-v1": Task(16, 500_000, ("return", -200)),
    "Acrobot-v1": Task(16, 200_000, ("return", -100)),
    MINIGRID: Task(32, 1_000_000, ("return", 0.9), host="host_learning:memory_of_kinds"),
    f"{MINIGRID}, all numbers": Task(
        32,
        1_000_000,
        ("return", 0.9),
        wrappers={"keys": "image", "categories": 11},
        kinds=(HOST,),
        host=f"{HOST}:{MINIGRID}",
    ),
    "Hopper-v5": Task(
        16, 1_000_000, ("return", 1500), algorithm=PPOConfig(entropy_cost=0.0), kinds=(HOST,)
    ),
}


def job(name: str, kind: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell."""
    task, config = TASKS[name], preset("default")
    is_host = kind == HOST
    host = task.host or f"{HOST}:{name}"
    import_plugins([host])
    return dataclasses.replace(
        config,
        env=EnvConfig(
            host if is_host else name,
            wrappers=task.wrappers if is_host else {},
            num_envs=config.env.num_envs,
        ),
        core=core_config("gtrxl", memory_size=task.memory_size),
        algorithm=task.algorithm,
        evaluation=dataclasses.replace(config.evaluation, episodes=64),
        total_steps=total_steps or task.total_steps,
    )


def grid(options: Options) -> list[Cell]:
    """Return all cells."""
    return [
        Cell(
            {"task": name, "environment": kind},
            job(name, kind, options.steps),
            options.seeds or 3,
            task.goal,
        )
        for name, task in TASKS.items()
        for kind in task.kinds
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells, rows = by_cell(records, "task", "environment"), []
    panels: dict[str, Lines] = {
        name: [("goal", TASKS[name].goal[1], ":")] for name in dict.fromkeys(n for n, _ in cells)
    }
    path = options.results / "host_learning.png"
    draw_returns(cells, (HOST, JITTED), panels, path, "episode/return")
    for (name, kind), runs in cells.items():
        score, goal = runs[0]["goal"]["score"], float(runs[0]["goal"]["value"])
        scores_S = scores(runs, score)
        rows.append(
            [
                name,
                kind,
                solved_share(scores_S, goal),
                median(scores_S),
                f"{runs[0]['steps']:,}",
                median(to_goal(runs, "steps"), digits=0),
                median(to_goal(runs, "seconds"), digits=0),
            ]
        )
    return "Environments on the host beside jitted ones", [
        "Seeds at the goal (with the 95 % interval of Wilson), the median of the score, the steps "
        "of a run, and the steps and seconds after which the running score is first at the goal.",
        table(["task", "environment", "solved", "score", "steps", "to goal", "seconds"], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
