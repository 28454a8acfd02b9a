"""The parameters from which a new run starts, if they are those of another run."""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.runs.checkpoints.arrays import by_name, require_same_arrays
from gtrxl_jax.runs.checkpoints.checkpoint import restore_below
from gtrxl_jax.runs.directory import (
    Folder,
    available_steps,
    is_export,
    require_version,
    settings,
)
from gtrxl_jax.runs.exports import read_params
from gtrxl_jax.runs.trainer import Trainer


def initial_params(trainer: Trainer, folder: Folder | None = None) -> dict[str, np.ndarray]:
    """Return the parameters that a new run takes from the run, or the export, in `init_from`.

    Args:
      trainer: the new run.
      folder: its folder.

    Returns:
      The parameters by path, `[S, ...]` if the new run has several seeds; none if it takes none, or
      has a checkpoint in its folder from which it continues.

    Raises:
      ValueError: if there is no such run, its parameters differ in name, shape or dtype from those
        of the new run, or the numbers of seeds do not match.
    """
    config = trainer.config
    source, patterns = config.init_from, config.init_only
    if not source or (folder and available_steps(folder)):
        return {}
    state = jax.eval_shape(trainer.init, 0)
    here = by_name(state.params)
    _require_matches(here, patterns)
    try:
        require_version(source)
        if is_export(source):
            there, _ = read_params(source)
        else:
            there = restore_below(source, _path_of_params(state))
        num_seeds = settings(source).get("num_seeds", 1)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"init_from: {error}") from None
    if not there:
        raise ValueError(
            f"init_from {source} holds another kind of run: use one of the same command"
        )
    given = _selected(there, patterns)
    require_same_arrays(
        f"init_from {source}",
        {name: array[0] if num_seeds > 1 else array for name, array in given.items()},
        _selected(here, patterns),
        f"use the settings in {Path(source, 'config.json')}, or name equal parts in init_only",
        convert=True,
    )
    given = {name: np.asarray(array, here[name].dtype) for name, array in given.items()}
    if broken := [name for name, array in given.items() if not np.isfinite(array).all()]:
        raise ValueError(f"init_from {source} has diverged: its {broken[0]} is not finite")
    if num_seeds not in (1, config.num_seeds):
        raise ValueError(
            f"init_from {source} has {num_seeds} seeds: set num_seeds to {num_seeds}, not "
            f"{config.num_seeds}, for each to start from its own, or use gtrxl export on one of "
            "them"
        )
    if num_seeds < config.num_seeds:
        return {name: np.stack([array] * config.num_seeds) for name, array in given.items()}
    return given


def _path_of_params(state: Any) -> str:
    """Return the path of the parameters in a state, such as `learner/trainable/params/`."""
    names = jax.tree.unflatten(jax.tree.structure(state), list(by_name(state)))
    return jax.tree.leaves(names.params)[0].removesuffix(next(iter(by_name(state.params))))


def _require_matches(arrays: Mapping[str, Any], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not _selected(arrays, [pattern]):
            parts = ", ".join(dict.fromkeys(f"{name.split('/')[0]}/*" for name in arrays))
            raise ValueError(
                f"init_only {pattern} matches no parameter: choose among {parts}, or their parts"
            )


def _selected(arrays: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Return the arrays whose name matches one of the patterns; all without patterns."""
    return {
        name: array
        for name, array in arrays.items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
