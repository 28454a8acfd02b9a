"""RATE on MiniGrid-Memory: success in mazes larger than those of the training.

    python experiments/rate_minigrid.py --workers 2
    python experiments/rate_minigrid.py --only "RATE, 5 segments" DT --seeds 1

The view is of 3 cells, so that a model has to go back, see the object in the room, and remember it
until it has seen one of the objects at the end. Models are trained on episodes of the oracle in
mazes of 7 to 41 cells, all shorter than K * T = 90 steps, in a curriculum of one to K segments:

    RATE, 3 segments     5 memory tokens, valve CA-2; K = 3, T = 30
    RATE, 5 segments     the same; K = 5, T = 18
    DT                   without memory; all 90 steps at once, a sliding window in longer episodes
    BC-LSTM              behavior cloning with an LSTM over 90 steps; also with four times as many
                         updates, which take it as long as RATE's

They are then played, with the most likely actions, in mazes of each size of `SIZES`. The authors of
RATE trained on episodes of a PPO agent, and ended episodes after 95 steps: the column "61, 95
steps" has that limit, which not even the oracle always keeps. Their models were larger, and took
25,000 updates.

Writes rate_minigrid.jsonl, .md and .png to experiments/results/.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.scripted import OraclePolicy
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import DataConfig, OfflineConfig, OfflineEnvConfig
from gtrxl_jax.offline.evaluation import make_play
from gtrxl_jax.plots.curves import plot_success_against_horizon
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import ENTRIES, Paragraph, solved_entry, table

ENV = "MiniGrid-Memory"
ARGUMENTS: dict[str, bool | int | float | str] = {"view_size": 3, "num_actions": 3}
TRAINED, STEPS = 41, 90
"""The largest maze of the training, and N * K."""
UPDATES = 1500
MODELS: dict[str, tuple[str, int, int]] = {
    "RATE, 3 segments": ("rate", 30, UPDATES),
    "RATE, 5 segments": ("rate", 18, UPDATES),
    "DT": ("dt", 30, UPDATES),
    "BC-LSTM": ("bc-lstm", 30, UPDATES),
    "BC-LSTM, 6000 updates": ("bc-lstm", 30, 4 * UPDATES),
}
"""The model, the steps of a segment, and the number of updates."""
SIZES = (11, 21, 31, 41, 61, 81, 121, 241)
CAPPED = "61, 95 steps"
PUBLISHED = {"RATE, 3 segments": {31: 0.73, 61: 0.63}, "DT": {31: 0.35, 61: 0.17}}
EPISODES = 128


def job(model: str, updates: int | None) -> OfflineConfig:
    """Return the config of a cell."""
    name, unroll, default_updates = MODELS[model]
    largest = ARGUMENTS | {"size": TRAINED, "random_length": True, "max_steps_in_episode": 95}
    return OfflineConfig(
        env=OfflineEnvConfig(ENV, largest),
        # Whole episodes, since the object is seen near their beginning.
        data=DataConfig(episodes=10_000, start="episode", weight="uniform"),
        model=model_config(name),
        unroll=unroll,
        segments=STEPS // unroll,
        curriculum=True,
        total_updates=updates or default_updates,
        remat=False,
    )


def streams() -> dict[str, Stream]:
    """Return the mazes in which the models are played, by name."""

    def maze(size: int, limit: int) -> Stream:
        arguments = ARGUMENTS | {"size": size, "max_steps_in_episode": limit}
        return Stream(*make_env(ENV, **arguments), EPISODES)

    # The oracle's episodes take at most 2 * size steps.
    return {str(size): maze(size, 2 * size + 20) for size in SIZES} | {CAPPED: maze(61, 95)}


def play(policy: Policy, mazes: Mapping[str, Stream], params: Any, seed: int) -> dict[str, float]:
    """Return the success in each of the mazes."""
    played = jax.jit(make_play(policy, mazes, EPISODES))(params, jax.random.key(seed))
    return {k: float(np.mean(v)) for k, v in played.items() if k.startswith("success")}


def play_oracle(seed: int) -> Record:
    """Return the scores of the oracle, whose policy is that of one maze."""
    success: dict[str, float] = {}
    for name, maze in streams().items():
        policy = OraclePolicy(maze.env, maze.params)
        success |= play(policy, {name: maze}, None, seed)
    return {"scores": success}


def measure(trained: Any) -> dict[str, float]:
    """Return the success of a trained model in each of the mazes."""
    trainer = trained.trainer
    return play(trainer.policy, streams(), trained.params_per_seed[0], trainer.config.seed)


def grid(options: Options) -> list[Cell]:
    """Return all cells."""
    learners = [
        Cell({"model": label}, job(label, options.steps), options.seeds or 3, measure=measure)
        for label in MODELS
    ]
    return [*learners, Cell({"model": "oracle"}, play_oracle)]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    names = [*map(str, SIZES), CAPPED]
    rows: list[list[str]] = []
    curves = {}
    cells = by_cell(records, "model")
    for label, of_cell in cells.items():
        success_SN = np.stack([scores(of_cell, f"success/{name}") for name in names], axis=1)
        rows.append([label, *map(solved_entry, success_SN.T)])
        if label in MODELS:
            curves[label] = success_SN[:, : len(SIZES)]
        theirs = {str(size): f"{value:.2f}" for size, value in PUBLISHED.get(label, {}).items()}
        if theirs:
            theirs[CAPPED] = theirs.pop("61")
            rows.append([f"{label}, published", *(theirs.get(name, "") for name in names)])
    plot_success_against_horizon(
        curves,
        np.array(SIZES),
        options.results / "rate_minigrid.png",
        x_label=f"cells along a side of the maze; trained on up to {TRAINED}",
        chance=0.5,
    )
    return "RATE on MiniGrid-Memory", [
        f"Success on {EPISODES} episodes in mazes of each size, played with the most likely "
        f"actions; trained on mazes of 7 to {TRAINED} cells. A guess has 0.5. {ENTRIES}",
        table(["model", *names], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
