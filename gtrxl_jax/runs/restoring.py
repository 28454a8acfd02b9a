"""Restore the result of a run, and its parameters, from its folder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.runs.checkpoints import checkpoint
from gtrxl_jax.runs.directory import Folder, is_export, require_same_run
from gtrxl_jax.runs.exports import read_params, require_params
from gtrxl_jax.runs.programs import each_seed
from gtrxl_jax.runs.results import Result, read_result
from gtrxl_jax.runs.trainer import Trainer


def finished(trainer: Trainer, folder: Folder) -> Result | None:
    """Return the result of the run in a folder; None if the run has not ended there.

    Raises:
      ValueError: if the folder belongs to another run.
    """
    steps = trainer.num_iterations * trainer.steps_per_iteration
    return finished_run(folder, trainer.config_json, steps, trainer.config.num_seeds)


def finished_run(folder: Folder, config_json: str, steps: int, num_seeds: int) -> Result | None:
    """Return the result of a run that ends after a number of steps, see `finished`."""
    require_same_run(folder, config_json)
    result = read_result(folder)
    return result if result and result.is_final(steps, num_seeds) else None


def params_of(
    trainer: Trainer, folder: Folder, *, best: bool = False
) -> tuple[list[Any], int, dict[str, list[float]]]:
    """Return each seed's parameters in a run, their step, and the settings that were drawn.

    The folder may also be an export, which has a single seed and no drawn settings.

    Raises:
      FileNotFoundError, ValueError, UnusableError: see `gtrxl_jax.load`.
    """
    if is_export(folder):
        if best:
            raise ValueError(f"{folder} has no best checkpoint: it is an export")
        there, exported_at = read_params(folder)
        params = require_params(folder, there, jax.eval_shape(trainer.init, 0).params)
        return [jax.tree.map(jnp.asarray, params)], exported_at, {}
    num_seeds = trainer.config.num_seeds
    init: Any = trainer.init
    seeds: Any = 0
    if num_seeds > 1:
        init, seeds = jax.vmap(init), np.arange(num_seeds)
    like = jax.eval_shape(init, seeds)

    def read() -> Any:
        step = None
        if best:
            known = checkpoint.newest_record(folder)["best"]
            if not known:
                raise ValueError(
                    f"{folder} has no best checkpoint: its config names no score for it"
                )
            step = known[0]
        return checkpoint.restore(
            folder, like, step, part=lambda state: (state.params, trainer.drawn(state))
        )

    (params, drawn), record = checkpoint.while_saving(folder, read)
    drawn = {name: np.atleast_1d(values).tolist() for name, values in drawn.items()}
    return each_seed(num_seeds, params), record["step"], drawn
