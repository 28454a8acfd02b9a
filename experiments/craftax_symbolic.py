"""Craftax-Symbolic at one million steps: PPO with GTrXL and with a GRU, beside a published PPO-RNN.

    pip install ".[craftax]"
    python experiments/craftax_symbolic.py
    python experiments/craftax_symbolic.py --only GRU --seeds 1 --steps 20000

Craftax's scoreboard of this number of steps has 2.3 % of the highest return, 226, for PPO with a
GRU (PPO-RNN), 2.2 % without memory, and no transformer. The cells are

    GTrXL     2 layers of width 256, 8 heads of width 32, a memory of 128
    GRU       the published core: one layer of width 512

with one hidden layer of 512 units before the core, and the settings of Craftax_Baselines'
`ppo_rnn.py`, except for the batch: 256 environments and unrolls of 16, as in that repository's
sweeps of a million steps, where the script's own 1024 x 64 would leave 15 updates. The learning
rate decays linearly to 0 over the steps of the run: over one million, as there, and not over the
billion of the other scoreboard.

What differs for both cells: PopArt instead of returns as they are, advantages normalized for each
rollout instead of each minibatch, bootstrapping at the time limit, the previous action and reward
as further inputs, heads with one hidden layer instead of two, and the initializations of this
package. The published score is from a Craftax before version 1.5, which corrected the growth of
plants.

The score is the mean return of fresh episodes of the policy that is trained, with sampled actions.

On CPU, 1,000 steps with learning take 3.9 CPU seconds with GTrXL and 2.8 with the GRU, and
compilation 150 and 125: 1.1 and 0.8 hours of one core for a seed, 6 hours in all, and evaluations.

Writes craftax_symbolic.jsonl and craftax_symbolic.md to experiments/results/.
"""

from collections.abc import Sequence

import numpy as np

from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig, OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.runs.config import EvaluationConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, median, table

CORES: dict[str, CoreConfig] = {
    "GTrXL": core_config("gtrxl", layers=2, width=256, heads=8, head_width=32, memory_size=128),
    "GRU": core_config("gru", layers=1, width=512),
}
PUBLISHED = {"GRU": "5.2 (2.3 %)"}
"""Craftax's scoreboard, of which the return is a percentage of `HIGHEST`."""
HIGHEST = 226
TOTAL_STEPS = 1_000_000
EPISODES = 64


def job(cell: str, total_steps: int) -> OnlineConfig:
    """Return the config of a cell."""
    return OnlineConfig(
        env=EnvConfig("Craftax-Symbolic-v1", num_envs=256),
        core=CORES[cell],
        agent=AgentConfig(encoder="mlp", encoder_width=512, head_width=512),
        algorithm=PPOConfig(
            gamma=0.99,
            gae_lambda=0.8,
            value_cost=0.5,
            entropy_cost=0.01,
            entropy_final=1.0,
            minibatches=8,
            value_clip=0.2,
        ),
        optimizer=OptimizerConfig(learning_rate=2e-4, final=0.0, clip_norm=1.0),
        evaluation=EvaluationConfig(episodes=EPISODES, interval=0, actions="sample"),
        total_steps=total_steps,
        unroll=16,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell(
            {"agent": cell},
            job(cell, options.steps or TOTAL_STEPS),
            options.seeds or 3,
            ("return", np.inf),
        )
        for cell in CORES
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table."""
    rows = []
    for cell, runs in by_cell(records, "agent").items():
        score_S = scores(runs, "return")
        rows.append(
            [
                cell,
                PUBLISHED.get(cell, ""),
                mean_entry(score_S),
                f"{100 * score_S.mean() / HIGHEST:.1f} %",
                ", ".join(f"{score:.2f}" for score in score_S),
                median(scores(runs, "length"), digits=0),
                f"{runs[0]['steps']:,}",
                median([run["seconds"] for run in runs], digits=0),
            ]
        )
    return "Craftax-Symbolic at one million steps", [
        f"Returns of {EPISODES} fresh episodes with sampled actions: the published one of "
        f"Craftax's scoreboard, the mean over seeds with its 95 % interval (Student's t), the "
        f"same as a percentage of the highest return, {HIGHEST}, and each seed. Then medians "
        "over seeds: the length of an episode, and seconds.",
        table(
            [
                "agent",
                "published",
                "return",
                "of the highest",
                "seeds",
                "length",
                "steps",
                "seconds",
            ],
            rows,
        ),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
