"""Memory Maze (Pasukonis et al. 2022), as its own package has it: `memory-maze:9x9`."""

import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from gtrxl_jax.envs.host.dm_env import DmEnv
from gtrxl_jax.extras import install_command
from gtrxl_jax.validation import require_choice

LIBRARY = "memory-maze"

_PACKAGE = "memory_maze"

SECONDS = {"9x9": 250, "11x11": 500, "13x13": 750, "15x15": 1000}
"""The length of an episode in mazes of each size; by default, four actions a second."""


def find_size(size: str) -> Callable[..., DmEnv]:
    """Return the constructor of the mazes of a size; its arguments are the package's.

    The observation is the image, or a dict with `global_observables` or with `image_only_obs` as
    False.

    Raises:
      ValueError: if the size is unknown.
      ImportError: if the package, or a library to draw with, is not installed.
    """
    require_choice(f"size of {LIBRARY}", size, SECONDS)
    task = getattr(_tasks(f"{LIBRARY}:{size}"), f"memory_maze_{size}")
    return functools.partial(_make, task, SECONDS[size])


def _make(task: Callable[..., Any], seconds: int, **settings: Any) -> DmEnv:
    is_image = settings.setdefault("image_only_obs", not settings.get("global_observables", False))
    return DmEnv(
        lambda seed: task(seed=seed, **settings),
        image="" if is_image else "image",
        max_steps=round(seconds * settings.get("control_freq", 4)),
    )


def _tasks(name: str) -> types.ModuleType:
    """Import the package's tasks without the package itself, which imports the old gym."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # as the package does
    if _PACKAGE not in sys.modules and (spec := importlib.util.find_spec(_PACKAGE)):
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(f"{_PACKAGE}.tasks")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"environment {name} requires {error.name}: {install_command(LIBRARY)}"
        ) from error
    except (AttributeError, ImportError, RuntimeError) as error:  # Raised by the rendering library.
        text = " ".join(str(error).split()).rstrip(".")
        raise ImportError(
            f"environment {name} cannot draw with MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {text}: "
            "install EGL (libegl1 in Debian), or OSMesa (libosmesa6) with MUJOCO_GL=osmesa"
        ) from error
