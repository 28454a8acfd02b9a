"""Exported parameters: those of a trained network, without the rest of its run.

An export is a folder with

    params.safetensors   the parameters by path, `core/blocks_0/gate/kernel`, and their step
    config.json          the config of the run, of a single seed
    card.md              the model card

The format of the parameters is that of the library safetensors: reading it executes nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gtrxl_jax.extras import install_command
from gtrxl_jax.runs.checkpoints.arrays import by_name, require_same_arrays
from gtrxl_jax.runs.directory import Folder, exported


def write_params(path: str | os.PathLike[str], params: Any, step: int) -> None:
    """Write parameters to a file.

    Args:
      path: the file.
      params: any pytree of arrays.
      step: the step of their checkpoint.

    Raises:
      ModuleNotFoundError: if the extra "export" is not installed.
    """
    arrays = by_name(jax.device_get(params))
    _safetensors().numpy.save_file(
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        os.fspath(path),
        {"step": str(step)},
    )


def read_params(folder: Folder) -> tuple[dict[str, np.ndarray], int]:
    """Return the parameters of an export, by path, and the step of their checkpoint.

    Raises:
      ModuleNotFoundError: if the extra "export" is not installed.
      ValueError: if the file is damaged.
    """
    library, path = _safetensors(), exported(folder)
    try:
        with library.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return arrays, int((file.metadata() or {})["step"])
    except (library.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): export the run again") from None


def require_params(folder: Folder, there: Mapping[str, Any], like: Any) -> Any:
    """Return the parameters of an export in the containers of `like`.

    They are converted if `jax_enable_x64` is not as it was for the run.

    Raises:
      ValueError: if they differ from those of `like` in name, shape or dtype.
    """
    here = by_name(like)
    require_same_arrays(
        f"{exported(folder)}",
        there,
        here,
        f"it does not belong to {Path(folder, 'config.json')}: export the run again",
        convert=True,
    )
    arrays = [np.asarray(there[name], leaf.dtype) for name, leaf in here.items()]
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"exports require safetensors: {install_command('export')}"
        ) from error
    return safetensors
