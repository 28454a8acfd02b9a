"""Divergence of runs, detected by the training program and reported by the host.

After every update, the program checks that quantities are finite or in range, in the order in which
errors propagate between them. An iteration reports its first failed update, the first failed
quantity in it, and the observation that does not belong to its space as some of its metrics, so
that no additional transfer to the host is required.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gtrxl_jax.specs import told_of

QUANTITIES = (
    "observation",
    "reward",
    "loss",
    "gradient norm",
    "parameters",
    "temperature",
    "multiplier of the KL",
    "legal actions",
)
"""The quantities that are checked; a trainer checks those that it has."""

LARGEST_MULTIPLIER = 1e6
"""Lagrange multipliers change by about the learning rate per update: none recovers from here."""

HEALTHY = -1

_QUANTITY, _UPDATE, _OUTSIDE = "diverged/quantity", "diverged/update", "diverged/outside"


class DivergedError(RuntimeError):
    """Raised when a run has diverged."""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The divergence of one seed of a run.

    Attributes:
      seed: the seed, numbered as in the config.
      quantity: the quantity, of `QUANTITIES`, that was not finite or out of range, or empty.
      step: number of steps at which it was detected.
      detail: a line about the value, such as "observation['id'] is 5, outside Discrete(3)"; empty
        if there is none.
    """

    seed: int
    quantity: str
    step: int
    detail: str = ""

    def __str__(self) -> str:
        if self.detail:
            return f"seed {self.seed} stopped: {self.detail}, at step {self.step:,}"
        if self.quantity == "legal actions":
            return (
                f"seed {self.seed} stopped: legal_actions allows none in a state at step "
                f"{self.step:,}, in which the episode goes on"
            )
        verb = "are" if self.quantity == "parameters" else "is"
        return (
            f"seed {self.seed} diverged: its {self.quantity} {verb} not finite, or out of range, "
            f"at step {self.step:,}"
        )


def finite(tree: Any) -> Bool[Array, ""]:
    """Return whether all numbers in the arrays of a pytree are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def in_range(multipliers: Any) -> Bool[Array, ""]:
    """Return whether Lagrange multipliers are positive and below `LARGEST_MULTIPLIER`."""
    return jnp.all(
        jnp.stack([(x > 0) & (x < LARGEST_MULTIPLIER) for x in jax.tree.leaves(multipliers)])
    )


def first_nonfinite(sound: Mapping[str, Bool[Array, ""]]) -> Int[Array, ""]:
    """Return the index in `QUANTITIES` of the first unsound one; `HEALTHY` if all are sound."""
    index = jnp.array(HEALTHY, jnp.int32)
    for place in reversed(range(len(QUANTITIES))):
        if QUANTITIES[place] in sound:
            index = jnp.where(sound[QUANTITIES[place]], index, place)
    return index


def first_failure(
    nonfinite_U: Int[Array, " U"],
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Return the first failure of U results of `first_nonfinite`, else `HEALTHY`; and its index."""
    index = jnp.argmax(nonfinite_U != HEALTHY).astype(jnp.int32)
    return nonfinite_U[index], index


def over_updates(
    nonfinite_U: Int[Array, " U"], outside_U4: Int[Array, "U 4"] | None = None
) -> dict[str, Int[Array, "..."]]:
    """Reduce the checks of an iteration's updates to a few metrics.

    Args:
      nonfinite_U: the results of `first_nonfinite`.
      outside_U4: the results of `specs.first_outside` for the observations, if they are checked.
    """
    quantity, update = first_failure(nonfinite_U)
    outside = {} if outside_U4 is None else {_OUTSIDE: outside_U4[update]}
    return {_QUANTITY: quantity, _UPDATE: update, **outside}


def mask(diverged: Iterable[Divergence], first_seed: int, num_seeds: int) -> Bool[np.ndarray, "*S"]:
    """Return whether each seed has diverged: `[S]`, or a scalar for a single one."""
    gone_S = np.zeros(num_seeds, bool)
    gone_S[[one.seed - first_seed for one in diverged]] = True
    return gone_S if num_seeds > 1 else gone_S.reshape(())


def take_from(
    metrics: dict[str, np.ndarray],
    first_seed: int,
    begin: int,
    steps_per_update: int,
    observation_space: Any = None,
) -> list[Divergence]:
    """Remove an iteration's report from its metrics, and return the seeds that diverged.

    Args:
      metrics: of one seed, or with an entry for each; the report is removed in place.
      first_seed: the number of the first seed.
      begin: the step at which the iteration began.
      steps_per_update: number of steps of an update.
      observation_space: the space of the observations that were checked.
    """
    quantities, updates = (np.atleast_1d(metrics.pop(name)) for name in (_QUANTITY, _UPDATE))
    outside = metrics.pop(_OUTSIDE, None)
    found = []
    for n in np.flatnonzero(quantities != HEALTHY).tolist():
        quantity, detail = QUANTITIES[quantities[n]], ""
        if quantity == "observation" and outside is not None:
            detail = told_of(observation_space, outside.reshape(len(quantities), -1)[n])
        step = begin + (int(updates[n]) + 1) * steps_per_update
        found.append(Divergence(first_seed + n, quantity, step, detail))
    return found
