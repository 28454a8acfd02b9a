"""Run folders that hold checkpoints of random numbers, without training or compilation."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import lock_folder
from gtrxl_jax.runs.params import params_of
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.runs.results import Result, record_of, scores_of, write_result
from gtrxl_jax.runs.trainer import Trainer


def save(folder: Path, trainer: Trainer, value: float | None = None, step: int = 100) -> list[Any]:
    """Save a state.

    Args:
      folder: the folder of the run.
      trainer: the run.
      value: the value of every number in the state; by default they are random.
      step: the step of the checkpoint.

    Returns:
      The parameters of each seed.
    """
    generator = np.random.default_rng(0)

    def array(leaf: Any) -> Any:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.zeros((*leaf.shape, 2), jnp.uint32))
        numbers = 0.3 * generator.normal(size=leaf.shape)
        with np.errstate(invalid="ignore"):
            return (numbers if value is None else np.full(leaf.shape, value)).astype(leaf.dtype)

    state = jax.tree.map(array, Programs(trainer).like)
    with lock_folder(folder, trainer.config_json), Saver(folder) as saver:
        saver.save(step, state, {"best": None})
    return [jax.device_get(params) for params in params_of(trainer, folder)[0]]


def finish(folder: Path, trainer: Trainer) -> None:
    """Write the result of a run that ended after 100 steps, in which each seed has a success."""
    seeds = trainer.config.num_seeds
    scores = scores_of({"success": np.linspace(0, 1, seeds * 2).round().reshape(seeds, 2)})
    write_result(folder, record_of(trainer.config, Result(scores, 100, 1.0, 2.0, 3.0)))
