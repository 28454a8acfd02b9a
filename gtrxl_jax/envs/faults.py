"""What is wrong with the episodes of an evaluation: found in its program, reported by the host.

The program returns beside its scores, by names that begin with `PREFIX`, arrays with an entry for
each episode: the step of the fault, or `NONE`, and by names that begin with `VALUE`, the value that
is wrong. `require_no_faults` takes them from the scores.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gtrxl_jax.specs.spaces import map_leaves
from gtrxl_jax.specs.values import belongs, holds_all
from gtrxl_jax.timestep import TimeStep

PREFIX = "fault/"
VALUE = f"{PREFIX}value/"
UNFINISHED = f"{PREFIX}unfinished"
NONE = -1


class FaultError(ValueError):
    """Raised when there is a fault in an episode."""


def wrong_values(
    timestep: TimeStep, observation_space: Any
) -> dict[str, tuple[Bool[Array, " B"], Float[Array, " B"]]]:
    """Return where each part of time steps `[B]` has a wrong number, and the largest of them.

    The parts are "reward", which must be finite, and the parts of the observation, as in
    "observation['velocity']", whose numbers must belong to their space, see `specs.values`, unless
    all of their dtype do.
    """
    found = {"reward": _wrong(timestep.reward, jnp.isfinite(timestep.reward))}

    def add(leaf: Any, x: Array, field: str) -> None:
        if not holds_all(leaf, np.dtype(x.dtype)):
            found[field] = _wrong(x, jnp.asarray(belongs(leaf, x)))

    map_leaves(add, observation_space, timestep.observation)
    return found


def _wrong(x: Array, is_right: Array) -> tuple[Bool[Array, " B"], Float[Array, " B"]]:
    axes = tuple(range(1, x.ndim))
    values = jnp.where(is_right, -jnp.inf, x.astype(jnp.float32))
    return ~jnp.all(is_right, axis=axes), jnp.max(values, axis=axes)


def require_no_faults(
    scores: dict[str, np.ndarray], of: str, ignored: Any = False
) -> dict[str, np.ndarray]:
    """Return the scores without the faults.

    Args:
      scores: scores and faults, `[E]` or `[S, E]`.
      of: the environment, for messages.
      ignored: which seeds are not checked, a bool or `[S]`.

    Raises:
      FaultError: if an episode did not end, had an observation outside its space, or a reward that
        is not finite.
    """
    found = {
        name: np.where(np.asarray(ignored)[..., None], NONE, step)
        for name, step in scores.items()
        if name.startswith(PREFIX) and not name.startswith(VALUE)
    }
    # What is not finite may be why an episode does not end.
    for name in sorted(found, key=lambda name: name.startswith(UNFINISHED)):
        wrong = np.argwhere(found[name] != NONE)
        if len(wrong):
            *_, episode = first = tuple(wrong[0])
            value = scores.get(f"{VALUE}{name.removeprefix(PREFIX)}")
            number = np.nan if value is None else float(value[first])
            _raise_fault(name, of, int(episode), int(found[name][first]), number)
    return {name: score for name, score in scores.items() if not name.startswith(PREFIX)}


def raise_unfinished(of: str, length: int, limit: int) -> NoReturn:
    """Raise FaultError for an episode that exceeds the time limit of its environment."""
    raise FaultError(
        f"{of}: an episode has not ended after {length:,} actions, but its time limit is "
        f"{limit:,}: set max_steps_in_episode (or time_limit) to the length of the longest episode"
    )


def raise_endless(of: str, length: int, remedy: str) -> NoReturn:
    """Raise FaultError for an episode of an environment without a time limit."""
    raise FaultError(
        f"{of}: an episode has not ended after {length:,} actions, and no time limit is known: set "
        f"{remedy}"
    )


def score_names(names: Iterable[str]) -> list[str]:
    """Return the sorted names of the scores, without the faults."""
    return sorted(name for name in names if not name.startswith(PREFIX))


def _raise_fault(name: str, of: str, episode: int, step: int, value: float) -> NoReturn:
    if name.startswith(UNFINISHED):
        task = name.removeprefix(UNFINISHED)  # "/task_1", if there are several
        raise_unfinished(f"{of}{task}", step, step)  # An evaluation lasts until the time limit.
    raise_wrong_value(of, name.removeprefix(PREFIX), episode, step, value)


def raise_wrong_value(of: str, part: str, episode: int, step: int, value: float) -> NoReturn:
    """Raise FaultError for a wrong value in a part of a time step, see `wrong_values`."""
    rule = f"is {value:.9g}, outside its space," if np.isfinite(value) else "is not finite"
    raise FaultError(
        f"{of}: {part} {rule} at step {step:,} of the episode of "
        f"environment {episode} of the evaluation: correct the environment"
    )
