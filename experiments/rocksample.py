"""A published GTrXL, corrected: RockSample with 11 x 11 cells and 11 rocks, as in POBAX.

    python experiments/rocksample.py
    python experiments/rocksample.py --only GRU --seeds 1 --steps 100000

POBAX (Tao et al. 2025, arXiv 2508.00046) published PPO with GTrXL below PPO with a GRU. Its
transformer has the arguments of the second gate in the wrong order (`core.gate_order swapped`).
The cells are

    GTrXL             the paper's order of the gate
    GTrXL, swapped    POBAX's order: the published transformer
    GRU               the published GRU
    GTrXL, V-MPO      the first core with V-MPO and its default settings
    GRU, V-MPO        the GRU with that algorithm, its environments and its window

and the last two again, and the swapped order of the gate, with "value cost 2": a weight of the
value loss of 2 instead of 0.25, so that the value has a larger share in the gradient of the core
(`share/value` in the metrics). All have the settings of POBAX's scripts for this task, 5 million
steps, and three seeds, or five with that value cost. The transformer has 2 layers of width 96, 8
heads of width 32, a memory of 128 and a gradient window of 64; the GRU has width 256, its own
learning rate, entropy bonus and number of environments, and a window of 128.

Whether an agent with the settings of POBAX ever leaves the exit is decided early. The cells "early"
are the beginnings of such runs, whose learning rate decays over 5 million steps as well, with eight
seeds each, and a third cell has the paper's order with a gate bias of 0 instead of 2.

The cells "PPO, 64 environments" have the default settings of this package's PPO, except for four
minibatches, four times the environments of the others, and for either core a window of 64. They
have only 2 million steps.

What differs from POBAX for all cells: PopArt instead of normalized rewards, advantages normalized
for each rollout instead of each minibatch, bootstrapping at the time limit, the previous reward
(normalized; in recorded runs, clipped to 1) as a further input, and ReLU instead of GELU in the
feed-forward networks. All cells play the map of the published transformer; POBAX's GRU played
another one.

The score is POBAX's: the return discounted by 0.99 of the policy that is trained, with sampled
actions. It is measured on fresh episodes here, and was on those of training there.

Writes rocksample.jsonl, .md and .png, the returns over training of the agents with V-MPO and with
larger rollouts, to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig, OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.runs.config import EvaluationConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, draw_returns, mean_entry, median, table

SWAPPED, GRU = "GTrXL, swapped", "GRU"
PPO_CELLS = ("GTrXL", SWAPPED, GRU)
VMPO_CELLS = ("GTrXL, V-MPO", "GRU, V-MPO")
VALUE_CELLS = (
    "GTrXL, V-MPO, value cost 2",
    "GTrXL, swapped, V-MPO, value cost 2",
    "GRU, V-MPO, value cost 2",
)
EARLY_CELLS = ("GTrXL, early", "GTrXL, swapped, early", "GTrXL, gate bias 0, early")
BATCH_CELLS = ("GTrXL, PPO, 64 environments", "GRU, PPO, 64 environments")
PUBLISHED = {SWAPPED: "about 11", GRU: "12.8"}
"""POBAX's discounted returns; 8.3 without memory."""
TOTAL_STEPS, BATCH_STEPS, EARLY_STEPS = 5_000_000, 2_000_000, 400_000
SEEDS = dict.fromkeys(VALUE_CELLS, 5) | dict.fromkeys(EARLY_CELLS, 8)
GAMMA = 0.99
EPISODES = 64
SCORE = "discounted_return"
MAP_SEED = 2024


def transformer(cell: str) -> CoreConfig:
    """Return POBAX's transformer, with the gates of a cell."""
    return core_config(
        "gtrxl",
        width=96,
        heads=8,
        head_width=32,
        memory_size=128,
        gate_bias=0.0 if "gate bias 0" in cell else None,
        gate_order="swapped" if cell.startswith(SWAPPED) else "stream_first",
    )


def job(cell: str, total_steps: int) -> OnlineConfig:
    """Return the config of a cell."""
    config = OnlineConfig(
        env=EnvConfig("RockSample-11-11", {"map_seed": MAP_SEED}, num_envs=16),
        core=transformer(cell),
        agent=AgentConfig(encoder="linear"),
        evaluation=EvaluationConfig(episodes=EPISODES, interval=0, actions="sample"),
        total_steps=total_steps,
        unroll=64,
    )
    gru = core_config("gru", layers=1, width=256)
    core = gru if cell.startswith(GRU) else config.core
    if cell in BATCH_CELLS:
        return dataclasses.replace(
            config,
            env=dataclasses.replace(config.env, num_envs=64),
            core=core,
            algorithm=PPOConfig(minibatches=4),
            total_steps=min(total_steps, BATCH_STEPS),
        )
    if cell not in PPO_CELLS + EARLY_CELLS:
        vmpo = VMPOConfig(value_cost=2.0) if cell in VALUE_CELLS else VMPOConfig()
        return dataclasses.replace(config, algorithm=vmpo, core=core)
    ppo = PPOConfig(
        gamma=GAMMA,
        gae_lambda=0.7,
        value_cost=0.5,
        entropy_cost=0.1,
        entropy_final=1.0,
        minibatches=4,
        value_clip=0.2,
    )
    optimizer = OptimizerConfig(learning_rate=2.5e-4, final=0.0, clip_norm=0.5)
    if cell in EARLY_CELLS:
        optimizer = dataclasses.replace(optimizer, horizon=total_steps)
        config = dataclasses.replace(config, total_steps=min(total_steps, EARLY_STEPS))
    if cell != GRU:
        return dataclasses.replace(config, algorithm=ppo, optimizer=optimizer, segments=2)
    return dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, num_envs=8),
        core=core,
        # POBAX's value loss lacks the factor of 1/2 here.
        algorithm=dataclasses.replace(ppo, value_cost=1.0, entropy_cost=0.2),
        optimizer=dataclasses.replace(optimizer, learning_rate=2.5e-3),
        unroll=128,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell(
            {"agent": cell},
            job(cell, options.steps or TOTAL_STEPS),
            options.seeds or SEEDS.get(cell, 3),
            goal=("return", np.inf),
        )
        for cell in PPO_CELLS + EARLY_CELLS + BATCH_CELLS + VMPO_CELLS + VALUE_CELLS
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table."""
    rows = []
    for cell, runs in by_cell(records, "agent").items():
        score_S = scores(runs, SCORE)
        rows.append(
            [
                cell,
                PUBLISHED.get(cell, ""),
                mean_entry(score_S, digits=1),
                ", ".join(f"{score:.1f}" for score in score_S),
                median(scores(runs, "return"), digits=1),
                median(scores(runs, "length"), digits=0),
                f"{runs[0]['steps']:,}",
                median([run["seconds"] for run in runs], digits=0),
            ]
        )
    draw(options, records)
    return "A published GTrXL, corrected", [
        "RockSample with 11 x 11 cells and 11 rocks. The first cells, up to the early ones, "
        "have the settings of POBAX, the others this package's and the same cores. Scores are "
        f"returns discounted by {GAMMA}, means of {EPISODES} fresh episodes with sampled "
        "actions: those published by POBAX (8.3 without memory), the mean over seeds with its "
        "95 % interval (Student's t), and each seed. Then medians over seeds: the return "
        "without discount, the length of an episode, and seconds.",
        table(
            [
                "agent",
                "published",
                "discounted return",
                "seeds",
                "return",
                "length",
                "steps",
                "seconds",
            ],
            rows,
        ),
    ]


def draw(options: Options, records: Sequence[Record]) -> None:
    """Draw the returns over training of the agents that leave the exit."""
    panels = {
        "V-MPO": VMPO_CELLS,
        "V-MPO, value cost 2": VALUE_CELLS,
        "PPO, 64 environments": BATCH_CELLS,
    }
    cells = {
        (panel, SWAPPED if cell.startswith(SWAPPED) else cell.split(",")[0]): runs
        for cell, runs in by_cell(records, "agent").items()
        for panel, names in panels.items()
        if cell in names
    }
    at_exit = [("the exit at once", 10.0, "--")]
    draw_returns(
        cells,
        PPO_CELLS,
        {panel: at_exit for panel, _ in cells},
        options.results / "rocksample.png",
        "episode/return",
    )


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
