"""Runs that go wrong: found in the program that trains them, and told by the host.

After every update the program checks what must be finite or in range, in the order in which one
thing spoils the next. An iteration reports the first update that failed and the first quantity in it,
as two of its metrics, so that the host learns of it without another transfer.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

QUANTITIES = (
    "observation",
    "reward",
    "loss",
    "gradient norm",
    "parameters",
    "temperature",
    "multiplier of the KL",
)
"""What is checked; a trainer checks those that it has."""

LARGEST_MULTIPLIER = 1e6
"""Lagrange multipliers move by about the learning rate in an update: none gets here and returns."""

HEALTHY = -1

_QUANTITY, _UPDATE = "diverged/quantity", "diverged/update"


class DivergedError(RuntimeError):
    """A run has come to where going on is pointless."""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """What went wrong in one seed of a run.

    Attributes:
      seed: which, as the config counts them.
      quantity: what was not finite or not in range, of `QUANTITIES`.
      step: after how many steps.
    """

    seed: int
    quantity: str
    step: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed} diverged: its {self.quantity} is not finite, or out of range, at "
            f"step {self.step:,}"
        )


def finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number in the arrays of a pytree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def in_range(multipliers: Any) -> Bool[Array, ""]:
    """Whether all Lagrange multipliers of a pytree are positive and not absurdly large."""
    return jnp.all(
        jnp.stack([(x > 0) & (x < LARGEST_MULTIPLIER) for x in jax.tree.leaves(multipliers)])
    )


def first_nonfinite(sound: Mapping[str, Bool[Array, ""]]) -> Int[Array, ""]:
    """The place in `QUANTITIES` of the first that is not sound; `HEALTHY` if all are."""
    index = jnp.array(HEALTHY, jnp.int32)
    for place in reversed(range(len(QUANTITIES))):
        if QUANTITIES[place] in sound:
            index = jnp.where(sound[QUANTITIES[place]], index, place)
    return index


def over_updates(nonfinite_U: Int[Array, " U"]) -> dict[str, Int[Array, ""]]:
    """What `first_nonfinite` gave in the updates of an iteration, as two metrics of it."""
    update = jnp.argmax(nonfinite_U != HEALTHY).astype(jnp.int32)
    return {_QUANTITY: nonfinite_U[update], _UPDATE: update}


def take_from(
    metrics: dict[str, np.ndarray], first_seed: int, begin: int, steps_per_update: int
) -> list[Divergence]:
    """Take an iteration's report out of its metrics.

    Args:
      metrics: of one seed, or with an entry for each; the report is removed.
      first_seed: the number of the first seed.
      begin: the step at which the iteration began.
      steps_per_update: steps of an update.
    """
    quantities, updates = (np.atleast_1d(metrics.pop(name)) for name in (_QUANTITY, _UPDATE))
    return [
        Divergence(
            seed=first_seed + n,
            quantity=QUANTITIES[quantities[n]],
            step=begin + (int(updates[n]) + 1) * steps_per_update,
        )
        for n in np.flatnonzero(quantities != HEALTHY).tolist()
    ]
