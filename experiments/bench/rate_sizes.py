"""RATE and the Decision Transformer at the sizes of RATE's paper, for its six kinds of tasks.

    python experiments/bench/rate_sizes.py
    python experiments/bench/rate_sizes.py --only mujoco

For each task, with the sizes, segments and batches of the authors' configurations, and our encoders
and images: parameters; the temporaries that XLA allocates for a batch; seconds of a batch of
training, timed alternately; and milliseconds of an acting step in one environment. DT sees all
segments at once, when it learns and in a sliding window when it acts. Published (table 7): the
parameters and hours of RATE on an A100.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import tyro
from gymnasium.spaces import Box, Discrete, Space
from rate import acting, peak, training
from timing import Row, interleaved, show

from gtrxl_jax.data.spaces import dataset_spaces, to_record
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import OfflineConfig, OfflineEnvConfig, OfflineEvaluationConfig
from gtrxl_jax.offline.trainer import OfflineTrainer


@dataclasses.dataclass(frozen=True)
class Task:
    """A kind of task of the paper.

    Attributes:
      observation, action: its spaces.
      published: millions of parameters of RATE.
      hours: published, of training on an A100.
      batch, unroll: trajectories of a batch, and steps of each of their three segments.
    """

    observation: Space
    action: Space
    published: float
    hours: float
    batch: int = 64
    unroll: int = 30


def image(*shape: int) -> Box:
    """Return the space of images."""
    return Box(0, 255, shape, np.uint8)


def vector(size: int) -> Box:
    """Return a space without bounds."""
    return Box(-np.inf, np.inf, (size,), np.float32)


TASKS: Mapping[str, Task] = {
    "tmaze": Task(vector(4), Discrete(4), 2.4, 2),
    "vizdoom": Task(image(64, 112, 3), Discrete(5), 6.0, 4),
    "minigrid": Task(image(84, 84, 3), Discrete(3), 6.0, 10),
    "memory-maze": Task(image(64, 64, 3), Discrete(6), 6.0, 12),
    "atari": Task(image(84, 84, 4), Discrete(4), 4.7, 9, batch=128),
    "mujoco": Task(vector(17), Box(-1, 1, (6,), np.float32), 0.6, 10, batch=512, unroll=20),
}
"""The tasks by the names of `model_config`'s presets; of MuJoCo, HalfCheetah, with an eighth of the
published batch, of which DT would need more than 20 GB."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure."""

    only: tuple[str, ...] = tuple(TASKS)
    """The tasks."""
    batch: int | None = None
    """Trajectories of a batch; by default, those of the task."""
    rounds: int = 2
    acting_rounds: int = 10
    """Number of rounds of acting, each with the steps of one segment."""
    keep: bool = True
    """Write the table to results/bench."""


def make_trainer(name: str, model: str, batch: int | None) -> OfflineTrainer:
    """Create the trainer of a task, without its data."""
    task = TASKS[name]
    spaces = to_record(dataset_spaces(task.observation, task.action))
    return OfflineTrainer(
        OfflineConfig(
            env=OfflineEnvConfig("", spaces=spaces),
            model=model_config(model, name, return_scale=1.0),
            evaluation=OfflineEvaluationConfig(target_return=1.0),
            unroll=task.unroll,
            batch_size=batch or task.batch,
            updates_per_iteration=1,
            devices=1,
        )
    )


def measure(name: str, settings: Settings) -> list[Row]:
    """Measure both models for a task."""
    models = ("rate", "dt")
    trainers = {model: make_trainer(name, model, settings.batch) for model in models}
    learn = {model: training(trainer) for model, trainer in trainers.items()}
    act = {model: acting(trainer) for model, trainer in trainers.items()}
    batch = interleaved(learn, settings.rounds)
    step = interleaved(act, settings.acting_rounds)
    rows = []
    for model, trainer in trainers.items():
        params = jax.eval_shape(trainer.init, 0).params
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        of = f"{name}, {model}"
        rows += [
            Row(f"{of}: parameters", size / 1e6, "million"),
            Row(f"{of}: peak memory of a batch", peak(trainer), "MB"),
            Row(f"{of}: training batch", batch[model], "s"),
            Row(f"{of}: acting step", 1e3 * step[model] / TASKS[name].unroll, "ms"),
        ]
    return [
        *rows,
        Row(f"{name}: published parameters of RATE", TASKS[name].published, "million"),
        Row(f"{name}: published training of RATE", TASKS[name].hours, "hours"),
    ]


def main(settings: Settings) -> None:
    """Measure all tasks, and keep what there is after each."""
    before: list[Row] = []
    for name in settings.only:
        rows = measure(name, settings)
        title = "RATE and DT at the paper's sizes"
        show("rate_sizes", title, rows, keep=settings.keep, before=before)
        before += rows


if __name__ == "__main__":
    main(tyro.cli(Settings))
