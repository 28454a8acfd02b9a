"""RATE, Decision Transformers and behaviour cloning on MiniGrid-Memory, in larger mazes too.

    python experiments/rate_minigrid.py --workers 2
    python experiments/rate_minigrid.py --only RATE --seeds 1

The agent starts anywhere in a corridor, has to go back to a room to see an object, and then to its
match at the other end. Models are trained on the oracle's episodes in mazes of up to 41 cells
(`random_length`), which end within 90 steps: 3 segments of 30 for RATE, and all 90 steps at once
for the others. They are then evaluated in mazes of a fixed size, up to twice as large, with a time
limit of 4 steps for each cell of the size. The final parameters are evaluated, without selection
of checkpoints. As in RATE, the view is of 3 x 3 cells; here, it is one-hot instead of an image, and
models have 2 layers of width 64 instead of 8, and train in minutes on two cores.

RATE's published scores (arXiv 2306.09459) are from models that were trained on mazes of 41 alone,
on the episodes of a trained agent.

Writes experiments/results/rate_minigrid/ (one file per run), rate_minigrid.md and .png.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tyro
from study import Options, Record, Run, run_study
from study_report import by_cell, origin, write_report

from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.sequence.registry import ModelConfig, model_config
from gtrxl_jax.offline.config import OfflineConfig, OfflineEvaluationConfig, TaskConfig
from gtrxl_jax.offline.evaluation import make_play
from gtrxl_jax.plots.curves import success_against_horizon
from gtrxl_jax.plots.tables import ENTRIES, solved_entry, table
from gtrxl_jax.runs.loop import Trained

STUDY = "rate_minigrid"
TRAINING = 41
SIZES = (11, 21, 31, 41, 61, 81)
EPISODES = 128
PUBLISHED = {"RATE": {31: 0.73, 61: 0.63}, "DT": {31: 0.35, 61: 0.17}}
MODELS: dict[str, ModelConfig] = {
    "RATE": model_config("rate"),
    "RATE, cache of 90": model_config("rate", cache_size=90),
    "DT": model_config("dt"),
    "BC-LSTM": model_config("bc-lstm"),
}


def params_of(size: int) -> dict[str, Any]:
    """Return the parameters of the environment in evaluation."""
    return {
        "size": size,
        "view_size": 3,
        "num_actions": 3,
        "max_steps_in_episode": 4 * size,
    }


def job(model: ModelConfig, updates: int | None) -> OfflineConfig:
    """Return the config of a run, except its seed."""
    return OfflineConfig(
        task=TaskConfig("MiniGrid-Memory", params_of(TRAINING) | {"random_length": True}),
        model=model,
        evaluation=OfflineEvaluationConfig(episodes=EPISODES),
        curriculum=True,
        total_updates=updates or 600,
        remat=False,
    )


def success_by_size(trained: Trained) -> Mapping[str, float]:
    """Return the success rate in mazes of each size."""
    trainer = trained.trainer
    (params,) = trained.params_per_seed
    key = jax.random.key(trainer.config.seed)
    name = trainer.config.task.name
    streams = {str(n): Stream(*make_env(name, **params_of(n)), EPISODES) for n in SIZES}
    played = jax.jit(make_play(trainer.policy, streams, EPISODES))(params, key)
    return {f"success/{n}": float(np.mean(played[f"success/{n}"])) for n in SIZES}


def report(options: Options, records: Sequence[Record]) -> None:
    """Write the table and the figure of the available records."""
    rows: list[list[str]] = []
    curves: dict[str, Any] = {}
    for model, runs in by_cell(records, "model").items():
        curves[model] = np.array(
            [[float(r["scores"][f"success/{n}"]) for n in SIZES] for r in runs]
        )
        rows.append([model, *map(solved_entry, curves[model].T)])
        rows.append([f"{model}, mean", *(f"{mean:.2f}" for mean in curves[model].mean(axis=0))])
        if theirs := PUBLISHED.get(model):
            entries = [f"{theirs[n]:.2f}" if n in theirs else "" for n in SIZES]
            rows.append([f"{model}, published mean", *entries])
    write_report(
        options.results / f"{STUDY}.md",
        "RATE on MiniGrid-Memory",
        [
            f"Success on {EPISODES} episodes in mazes of each size, after training on mazes of up "
            f"to {TRAINING}. A turn by chance succeeds with 0.5. {ENTRIES}",
            table(["model", *SIZES], rows),
            origin(records),
        ],
    )
    success_against_horizon(
        curves,
        SIZES,
        options.results / f"{STUDY}.png",
        published={model: (list(line), list(line.values())) for model, line in PUBLISHED.items()},
        x_label="size of the maze",
        chance=0.5,
    )


def main(options: Options) -> None:
    """Run the missing runs, and write the report."""
    runs = [
        Run({"model": label}, seed, job(model, options.steps), measure=success_by_size)
        for seed in range(options.seeds or 3)
        for label, model in MODELS.items()
    ]
    report(options, run_study(STUDY, runs, options))


if __name__ == "__main__":
    main(tyro.cli(Options))
