"""Returns relative to the returns of a random and of a reference policy.

The score of a task is

    min((return - random) / (reference - random), 1)

with the mean return of the evaluation's episodes, and the score of an agent is the mean over its
tasks: the mean capped human-normalized score of DMLab-30 (Espeholt et al. 2018, "IMPALA"), where
the reference is a human. The cap keeps one easy task from hiding others that are not learned.

The returns of both policies are those of a known set of tasks, `dmlab30`, or are read from a TOML
or JSON file, by the name of the environment, or by `task_0`, `task_1`, ... for tasks that differ in
their parameters only:

    [TMazePassive-v0]
    random = 0.05
    reference = 1.0
"""

import json
import math
import numbers
import os
import tomllib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gtrxl_jax.envs.host import dmlab30
from gtrxl_jax.online.config import EnvConfig

FIELDS = ("random", "reference")

KNOWN: dict[str, dict[str, Any]] = {"dmlab30": dmlab30.REFERENCES}
"""Known returns, by the name of a set of tasks."""


def read_returns(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the reference returns.

    Args:
      path: one of `KNOWN`, or a file.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is neither TOML nor JSON, or does not contain a table.
    """
    if path in KNOWN:
        return KNOWN[str(path)]
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"env.references {path} does not exist: name a TOML or JSON file, or {', '.join(KNOWN)}"
        )
    parse = json.loads if path.suffix == ".json" else tomllib.loads
    try:
        table = parse(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"env.references {path} is neither TOML nor JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"env.references {path} must be a table of tasks, not {table!r}")
    return table


def returns_of_tasks(
    env: EnvConfig,
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]] | None:
    """Return the returns of the random and of the reference policy in each task; None without any.

    Raises:
      ValueError: if a task is missing, or its entry has not two different finite numbers.
    """
    if not env.reference_returns:
        return None
    rows = []
    for k, (name, _) in enumerate(env.members):
        entry = env.reference_returns.get(f"task_{k}", env.reference_returns.get(name))
        if not isinstance(entry, dict) or not all(map(_is_finite, map(entry.get, FIELDS))):
            raise ValueError(
                f"env.references {env.references} must have an entry {name} (or task_{k}) with "
                f"the numbers random and reference, got {entry!r}"
            )
        row = [float(entry[field]) for field in FIELDS]
        if row[0] == row[1]:
            raise ValueError(
                f"env.references {env.references} has equal random and reference returns for "
                f"{name}, {row[0]:g}: nothing can be measured between them"
            )
        rows.append(row)
    random_N, reference_N = np.array(rows).T
    return random_N, reference_N


def normalized_scores(
    return_NE: Float[Array, "N E"],
    random_N: Float[np.ndarray, " N"],
    reference_N: Float[np.ndarray, " N"],
) -> dict[str, Float[Array, "1"]]:
    """Return the score `normalized`, the mean over tasks, and with several, each task's.

    `normalized/uncapped` is the mean without the cap. Each has a single value rather than one per
    episode, since the cap applies to means.
    """
    mean_N = jnp.mean(return_NE.astype(float), axis=1)
    low_N, high_N = (jnp.asarray(x, mean_N.dtype) for x in (random_N, reference_N))
    uncapped_N = (mean_N - low_N) / (high_N - low_N)
    score_N = jnp.minimum(uncapped_N, 1)
    scores = {
        "normalized": jnp.mean(score_N)[None],
        "normalized/uncapped": jnp.mean(uncapped_N)[None],
    }
    if len(score_N) > 1:
        scores |= {f"normalized/task_{k}": score[None] for k, score in enumerate(score_N)}
    return scores


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
