"""GTrXL against LSTM and GRU in the worlds of the papers: who learns to remember?

    python experiments/memory_worlds.py
    python experiments/memory_worlds.py --workers 2 --only "Numpad 2 x 2"

Numpad on a grid of 2 x 2 and 3 x 3 pads, Numpad with the sphere on 2 x 2, and MiniGrid-Memory of 9
x 9 and 13 x 13 with a view of 3, also from images of 24 x 24 pixels. Agents learn Numpad of 2 x 2
on a grid with V-MPO and the others with PPO. All settings are the defaults, except those that
follow from the task: the memory size, and the unroll and the number of environments, which are the
same for all cores; and environments that are not in lockstep (`env.stagger`) in the worlds of
Numpad that are learned with PPO. MiniGrid-Memory of 9 x 9 is learned at a second learning rate
too, and its images at this one, by an MLP as the encoder. Layers are those of each core's default,
and widths such that all agents have as many parameters, within 7 %.

For comparison, policies that do not learn play each world: one that chooses at random, and the best
that a perfect memory can do: the explorer of Numpad, which finds the sequence by trial, or the
oracle of MiniGrid-Memory, which looks at the object first.

Writes memory_worlds.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.scripted import ExplorerPolicy, OraclePolicy, RandomPolicy
from gtrxl_jax.envs.faults import require_no_faults
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig, OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.statistics import interquartile_mean
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, draw_returns, median, table

SIZES = {
    "gtrxl": {"layers": 2, "width": 64},
    "lstm": {"layers": 1, "width": 119},
    "gru": {"layers": 1, "width": 132},
}
PERFECT, RANDOM = "perfect memory", "random"


@dataclasses.dataclass(frozen=True)
class World:
    """An environment, and the settings that follow from it."""

    env: str
    params: dict[str, Any]
    memory_size: int
    total_steps: int
    algorithm: AlgorithmConfig = VMPOConfig()
    learning_rate: float | None = None
    num_envs: int = 16
    unroll: int = 64
    stagger: bool = False
    encoder: str = "auto"


WORLDS = {
    "Numpad 2 x 2": World("NumpadDiscrete-v0", {"size": 2}, 64, 1_000_000),
    "Numpad 3 x 3": World(
        "NumpadDiscrete-v0", {"size": 3}, 100, 10_000_000, PPOConfig(), stagger=True
    ),
    "Numpad 2 x 2, sphere": World(
        "Numpad-v0", {"size": 2}, 128, 3_000_000, PPOConfig(), unroll=128, stagger=True
    ),
    "MiniGrid-Memory 9 x 9": World(
        "MiniGrid-Memory", {"size": 9, "view_size": 3, "num_actions": 3}, 64, 1_500_000, PPOConfig()
    ),
    "MiniGrid-Memory 9 x 9, 0.001": World(
        "MiniGrid-Memory",
        {"size": 9, "view_size": 3, "num_actions": 3},
        64,
        1_500_000,
        PPOConfig(),
        learning_rate=1e-3,
    ),
    "MiniGrid-Memory 9 x 9, images": World(
        "MiniGrid-Memory",
        {"size": 9, "view_size": 3, "num_actions": 3, "observation": "rgb", "tile_size": 8},
        64,
        1_500_000,
        PPOConfig(),
        learning_rate=1e-3,
        encoder="mlp",
    ),
    "MiniGrid-Memory 13 x 13": World(
        "MiniGrid-Memory",
        {"size": 13, "view_size": 3, "num_actions": 3},
        96,
        2_000_000,
        PPOConfig(),
    ),
}


def job(world: World, core: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell: the defaults with these settings changed."""
    memory = {"memory_size": world.memory_size} if core == "gtrxl" else {}
    return OnlineConfig(
        env=EnvConfig(world.env, world.params, num_envs=world.num_envs, stagger=world.stagger),
        core=core_config(core, "small", **SIZES[core], **memory),
        agent=AgentConfig(encoder=world.encoder),
        algorithm=world.algorithm,
        optimizer=OptimizerConfig(learning_rate=world.learning_rate),
        total_steps=total_steps or world.total_steps,
        unroll=world.unroll,
    )


def play(world: World, kind: str, seed: int) -> Record:
    """Return the mean scores of a policy that does not learn, over 1024 episodes."""
    env, params = make_env(world.env, **world.params)
    if kind == RANDOM:
        policy: Policy = RandomPolicy(env.action_space(params))
    else:
        perfect = ExplorerPolicy if hasattr(env, "explorer_action") else OraclePolicy
        policy = perfect(env, params)
    evaluate = jax.jit(make_evaluate(policy, Stream(env, params, num_envs=1), 1024))
    played = require_no_faults(
        jax.device_get(summarize(evaluate(None, jax.random.key(seed)))), world.env
    )
    return {"scores": {name: float(np.mean(values)) for name, values in played.items()}}


def grid(options: Options) -> list[Cell]:
    """Return all runs, those of policies that do not learn among them."""
    cells = []
    for name, world in WORLDS.items():
        for kind in (PERFECT, RANDOM):
            labels = {"world": name, "core": kind}
            cells.append(Cell(labels, functools.partial(play, world, kind)))
        for core in SIZES:
            config = job(world, core, options.steps)
            cells.append(Cell({"world": name, "core": core}, config, options.seeds or 5))
    return cells


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = by_cell(records, "world", "core")
    rows = []
    for world in WORLDS:
        for core in (PERFECT, *SIZES, RANDOM):
            if runs := cells.get((world, core)):
                returns_S, success_S = scores(runs, "return"), scores(runs)
                rows.append(
                    [
                        world,
                        core,
                        ", ".join(f"{value:.2f}" for value in sorted(returns_S)),
                        f"{interquartile_mean(returns_S):.2f}",
                        median(success_S),
                        f"{runs[0]['steps']:,}" if "steps" in runs[0] else "",
                    ]
                )
    lines = {
        world: [
            (kind, run["scores"]["return"], style)
            for kind, style in ((PERFECT, "--"), (RANDOM, ":"))
            for run in cells.get((world, kind), [])
        ]
        for world in WORLDS
        if any((world, core) in cells for core in SIZES)
    }
    draw_returns(cells, tuple(SIZES), lines, options.results / "memory_worlds.png")
    return "GTrXL against LSTM and GRU in the papers' worlds", [
        "Mean return of the last evaluation, for each seed, and the interquartile mean over "
        "seeds; the median success rate; and the environment steps of training. Perfect memory "
        "and random are policies that do not learn, over 1024 episodes.",
        table(["world", "agent", "returns", "IQM", "success", "steps"], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
