"""The parameters of runs: read from a folder, exported, and taken over by a new run.

An export is a folder with

    params.safetensors   the parameters by path, `core/blocks/gate/kernel`, and their step; and the
                         units of values, `value_units`
    config.json          the config of the run, of a single seed
    README.md            the model card

The parameters have the format of the library safetensors: reading it executes nothing.
"""

import fnmatch
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import Float

from gtrxl_jax.runs import checkpoint
from gtrxl_jax.runs.addresses import local_folder
from gtrxl_jax.runs.arrays import by_name, each_seed, paths_of, require_same_arrays
from gtrxl_jax.runs.directory import (
    Folder,
    available_steps,
    is_export,
    params_path,
    read_config,
    require_version,
)
from gtrxl_jax.runs.trainer import Trainer

UNITS = "value_units"
"""Name of the units of values in an export."""
ValueUnits = Float[np.ndarray, "2 N"]
"""Mean and scale of an agent's values in each of N tasks: scale * value + mean is in the units of
the rewards, see `ops.popart`."""


def params_of(
    trainer: Trainer, folder: Folder, *, best: bool = False, step: int | None = None
) -> tuple[list[Any], int, dict[str, list[float]], list[ValueUnits | None]]:
    """Return each seed's parameters in a run, their step, and what belongs to them.

    The folder may also be an export, which has a single seed and no sampled settings. Parameters
    are converted if `jax_enable_x64` differs from its value in the run.

    Returns:
      The parameters of each seed; the step; the settings sampled for each seed, by name, `[S]`; and
      the units of each seed's values, None if they are those of the rewards.

    Raises:
      FileNotFoundError, ValueError, UnusableError: see `gtrxl_jax.load`.
    """
    there, step, drawn, units = _read_saved(trainer, folder, best=best, step=step)
    init: Any = trainer.init
    seeds: Any = 0
    num_seeds = trainer.config.num_seeds
    if num_seeds > 1:
        init, seeds = jax.vmap(init), np.arange(num_seeds)
    like = jax.eval_shape(init, seeds).params
    here, config = by_name(like), Path(folder, "config.json")
    source = f"the checkpoint in {folder}"
    remedy = f"build the agent from {config}, or restore another run"
    if is_export(folder):
        source = f"{params_path(folder)}"
        remedy = f"it does not belong to {config}: export the run again"
    require_same_arrays(source, there, here, remedy, convert=True)
    # Arrays without entries are not stored.
    leaves = [
        jnp.asarray(there.get(name, np.zeros(leaf.shape)), leaf.dtype)
        for name, leaf in here.items()
    ]
    params = jax.tree.unflatten(jax.tree.structure(like), leaves)
    settings_S = {name: np.atleast_1d(values).tolist() for name, values in drawn.items()}
    units_per_seed = [None] * num_seeds if units is None else each_seed(num_seeds, units)
    return each_seed(num_seeds, params), step, settings_S, units_per_seed


def initial_params(trainer: Trainer, folder: Folder | None = None) -> dict[str, np.ndarray]:
    """Return the parameters that a new run takes from the run, or the export, in `init_from`.

    Args:
      trainer: the new run.
      folder: its folder.

    Returns:
      The parameters by path, `[S, ...]` if the new run has several seeds; none if it takes none, or
      has a checkpoint in its folder, from which it resumes.

    Raises:
      ValueError: if there is no such run, its parameters differ in name, shape or dtype from the
        parameters of the new run, or the numbers of seeds do not match.
    """
    config = trainer.config
    source, patterns = config.init_from, config.init_only
    if not source or (folder and available_steps(folder)):
        return {}
    source = local_folder(source)
    here = by_name(jax.eval_shape(trainer.init, 0).params)
    _require_matches(here, patterns)
    try:
        require_version(source)
        there, *_ = _read_saved(trainer, source)
        num_seeds = read_config(source).get("num_seeds", 1)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"init_from: {error}") from None
    if not there:
        raise ValueError(
            f"init_from {source} was trained by another algorithm or command, whose checkpoints "
            "differ: use an export of it, by gtrxl export"
        )
    given = _select(there, patterns)
    require_same_arrays(
        f"init_from {source}",
        {name: array[0] if num_seeds > 1 else array for name, array in given.items()},
        _select(here, patterns),
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


def _read_saved(
    trainer: Trainer, folder: Folder, *, best: bool = False, step: int | None = None
) -> tuple[dict[str, np.ndarray], int, dict[str, np.ndarray], Float[np.ndarray, "*S 2 N"] | None]:
    """Read what `params_of` returns: parameters by path, step, sampled settings, units of values.

    There are no parameters in a run of another kind, whose state has none where the trainer's has.
    """
    if is_export(folder):
        if best:
            raise ValueError(f"{folder} has no best checkpoint: it is an export")
        if step is not None:
            raise ValueError(f"{folder} has no checkpoint of step {step}: it is an export")
        params, step, units = read_export(folder)
        return params, step, {}, units
    state = jax.eval_shape(trainer.init, 0)
    paths = paths_of(state.params, state)
    name, path = next(iter(by_name(state.params))), jax.tree.leaves(paths)[0]
    prefix = path.removesuffix(name)
    drawn = paths_of(trainer.sampled_hyperparameters(state), state)
    statistics = paths_of(trainer.value_statistics(state), state)
    others = {*drawn.values(), *jax.tree.leaves(statistics)}
    arrays, record = checkpoint.read_arrays(
        folder, lambda path: path.startswith(prefix) or path in others, best=best, step=step
    )
    params = {
        path.removeprefix(prefix): array
        for path, array in arrays.items()
        if path.startswith(prefix)
    }
    sampled = {name: arrays[path] for name, path in drawn.items() if path in arrays}
    units = None
    if statistics and arrays.keys() >= set(jax.tree.leaves(statistics)):
        known = jax.tree.map(arrays.get, statistics)
        units = np.stack([known.mean_N, known.scale_N], axis=-2)
    return params, record["step"], sampled, units


def _require_matches(arrays: Mapping[str, Any], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not _select(arrays, [pattern]):
            parts = ", ".join(dict.fromkeys(f"{name.split('/')[0]}/*" for name in arrays))
            raise ValueError(
                f"init_only {pattern} matches no parameter: choose among {parts}, or their parts"
            )


def _select(arrays: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Return the arrays whose name matches one of the patterns; all without patterns."""
    return {
        name: array
        for name, array in arrays.items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def write_params(
    path: str | os.PathLike[str], params: Any, step: int, units: ValueUnits | None = None
) -> None:
    """Write parameters to a file.

    Args:
      path: the file.
      params: any pytree of arrays.
      step: the step of their checkpoint.
      units: the units of values, if they are not those of the rewards.
    """
    arrays = by_name(jax.device_get(params))
    if units is not None:
        arrays[UNITS] = units
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # Not save_file, whose file only its owner may read.
    Path(path).write_bytes(safetensors.numpy.save(contiguous, {"step": str(step)}))


def read_export(folder: Folder) -> tuple[dict[str, np.ndarray], int, ValueUnits | None]:
    """Return the parameters of an export, by path, their step, and the units of values.

    Raises:
      ValueError: if the file is damaged.
    """
    path = params_path(folder)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step = int((file.metadata() or {})["step"])
            return arrays, step, arrays.pop(UNITS, None)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): export the run again") from None
