"""Restore the result of a run, its parameters, and those that it starts from, from folders."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.runs.checkpoints import checkpoint
from gtrxl_jax.runs.checkpoints.arrays import by_name, require_same_arrays
from gtrxl_jax.runs.directory import (
    Folder,
    available_steps,
    is_export,
    require_same_run,
    require_version,
    settings,
)
from gtrxl_jax.runs.exports import read_params, require_params
from gtrxl_jax.runs.programs import each_seed
from gtrxl_jax.runs.results import Result, read_result
from gtrxl_jax.runs.trainer import Trainer


def finished(trainer: Trainer, folder: Folder) -> Result | None:
    """Return the result of the run in a folder; None if the run has not ended there.

    Raises:
      ValueError: if the folder belongs to another run.
    """
    require_same_run(folder, trainer.config_json)
    result = read_result(folder)
    steps = trainer.num_iterations * trainer.steps_per_iteration
    if result and (result.steps >= steps or len(result.diverged) == trainer.config.num_seeds):
        return result
    return None


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
    step = None
    if best:
        known = checkpoint.newest_record(folder)["best"]
        if not known:
            raise ValueError(f"{folder} has no best checkpoint: its config names no score for it")
        step = known[0]
    (params, drawn), record = checkpoint.restore(
        folder,
        jax.eval_shape(init, seeds),
        step,
        part=lambda state: (state.params, trainer.drawn(state)),
    )
    drawn = {name: np.atleast_1d(values).tolist() for name, values in drawn.items()}
    return each_seed(num_seeds, params), record["step"], drawn


def initial_params(trainer: Trainer, folder: Folder | None = None) -> dict[str, np.ndarray]:
    """Return the parameters that a new run takes from that in `init_from`, by path.

    That run may also be an export.

    Args:
      trainer: the new run.
      folder: its folder.

    Returns:
      The parameters, `[S, ...]` if the new run has several seeds; none if it takes none, or has a
      checkpoint in its folder from which it continues.

    Raises:
      ValueError: if there is no such run, its parameters differ in name, shape or dtype from those
        of the new run, or the numbers of seeds do not match.
    """
    config = trainer.config
    source = config.init_from
    if not source or (folder and available_steps(folder)):
        return {}
    state = jax.eval_shape(trainer.init, 0)
    names = jax.tree.unflatten(jax.tree.structure(state), list(by_name(state)))
    here = by_name(state.params)
    chosen = _selected(here, config.init_only)
    if not chosen:
        parts = ", ".join(dict.fromkeys(f"{name.split('/')[0]}/*" for name in here))
        raise ValueError(
            f"init_only {' '.join(config.init_only)} matches no parameter: choose among {parts}, "
            "or their parts"
        )
    below = jax.tree.leaves(names.params)[0].removesuffix(next(iter(here)))
    try:
        require_version(source)
        there = _by_path(source, below)
        num_seeds = settings(source).get("num_seeds", 1)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"init_from: {error}") from None
    if not there:
        raise ValueError(
            f"init_from {source} holds another kind of run: use one of the same command"
        )
    given = _selected(there, config.init_only)
    require_same_arrays(
        f"init_from {source}",
        {name: x[0] if num_seeds > 1 else x for name, x in given.items()},
        chosen,
        f"use the settings in {Path(source, 'config.json')}, or name equal parts in init_only",
    )
    if broken := [name for name, x in given.items() if not np.isfinite(x).all()]:
        raise ValueError(f"init_from {source} has diverged: its {broken[0]} is not finite")
    if num_seeds not in (1, config.num_seeds):
        raise ValueError(
            f"init_from {source} has {num_seeds} seeds: set num_seeds to {num_seeds}, not "
            f"{config.num_seeds}, for each to start from its own, or use gtrxl export on one of "
            "them"
        )
    if num_seeds < config.num_seeds:
        return {name: np.stack([x] * config.num_seeds) for name, x in given.items()}
    return given


def _by_path(folder: Folder, below: str) -> dict[str, np.ndarray]:
    """Return the parameters of a run, whose path in its state is given, or those of an export."""
    return read_params(folder)[0] if is_export(folder) else checkpoint.restore_below(folder, below)


def _selected(arrays: dict[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Return the arrays whose name matches one of the patterns; all without patterns."""
    return {
        name: array
        for name, array in arrays.items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
