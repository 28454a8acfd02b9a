"""What is wrong with the episodes of an evaluation: found in its program, reported by the host.

The program returns beside its scores, by names that begin with `PREFIX`, an array with an entry for
each episode: the step of the fault, or `NONE`. `require_sound` takes them from the scores.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from gtrxl_jax.timestep import TimeStep

PREFIX = "fault/"
UNFINISHED = f"{PREFIX}unfinished"
NONE = -1


class FaultError(ValueError):
    """Raised when there is a fault in an episode."""


def nonfinite(timestep: TimeStep) -> dict[str, Bool[Array, " B"]]:
    """Return where each part of time steps `[B]`, by name, has a number that is not finite.

    The parts are "fault/reward" and those of the observation: "fault/observation['velocity']".
    """
    parts = {
        f"observation{jax.tree_util.keystr(path)}": leaf
        for path, leaf in jax.tree.leaves_with_path(timestep.observation)
    }
    return {
        f"{PREFIX}{name}": ~jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim)))
        for name, x in {**parts, "reward": timestep.reward}.items()
        if jnp.issubdtype(x.dtype, jnp.floating)
    }


def require_sound(
    scores: dict[str, np.ndarray], of: str, ignored: Any = False
) -> dict[str, np.ndarray]:
    """Return the scores without the faults.

    Args:
      scores: scores and faults, `[E]` or `[S, E]`.
      of: the environment, for messages.
      ignored: which seeds are not checked, a bool or `[S]`.

    Raises:
      FaultError: if an episode did not end, or had an observation or a reward that is not finite.
    """
    found = {
        name: np.where(np.asarray(ignored)[..., None], NONE, step)
        for name, step in scores.items()
        if name.startswith(PREFIX)
    }
    # What is not finite may be why an episode does not end.
    for name in sorted(found, key=lambda name: name.startswith(UNFINISHED)):
        wrong = np.argwhere(found[name] != NONE)
        if len(wrong):
            *_, episode = first = tuple(wrong[0])
            _refuse(name, of, int(episode), int(found[name][first]))
    return {name: score for name, score in scores.items() if name not in found}


def refuse_unfinished(of: str, length: int, limit: int) -> NoReturn:
    """Raise FaultError for an episode of an environment that goes on at its time limit."""
    raise FaultError(
        f"{of}: an episode goes on after {length:,} actions, but its time limit is {limit:,}: set "
        "max_steps_in_episode (or time_limit) to the length of the longest episode"
    )


def score_names(names: Iterable[str]) -> list[str]:
    """Return the sorted names that are not those of faults."""
    return sorted(name for name in names if not name.startswith(PREFIX))


def _refuse(name: str, of: str, episode: int, step: int) -> NoReturn:
    if name.startswith(UNFINISHED):
        refuse_unfinished(of, step, step - 1)  # an evaluation goes one action further
    raise FaultError(
        f"{of}: {name.removeprefix(PREFIX)} is not finite at step {step:,} of the episode of "
        f"environment {episode} of the evaluation: correct the environment"
    )
