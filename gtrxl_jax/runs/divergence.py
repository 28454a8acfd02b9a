"""Divergence of runs, detected by the training program and reported by the host.

After every update, the program checks that quantities are finite or in range. An iteration reports
for each quantity the first update in which it was not, and the observation that does not belong to
its space, as some of its metrics, so that no additional transfer to the host is required. The cause
is the first of the quantities, in the order in which errors propagate, in the first failed update.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from gtrxl_jax.specs import describe_outside

ORDER = (
    "observation",
    "legal actions",
    "reward",
    "loss",
    "gradient norm",
    "parameters",
)
"""The order in which errors propagate; other quantities follow."""

LARGEST_MULTIPLIER = 1e6
"""Lagrange multipliers change by about the learning rate per update: none recovers from here."""

HEALTHY = -1

_REPORT, _OUTSIDE = "diverged/", "diverged/outside"


class DivergedError(RuntimeError):
    """Raised when a run has diverged."""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The divergence of one seed of a run.

    Attributes:
      seed: the seed, numbered as in the config.
      quantity: the quantity that was not finite or out of range, such as "loss", or empty.
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
                f"{self.step:,}, in which the episode continues"
            )
        verb = "are" if self.quantity == "parameters" else "is"
        return (
            f"seed {self.seed} diverged: its {self.quantity} {verb} not finite, or out of range, "
            f"at step {self.step:,}"
        )


def is_finite(tree: Any) -> Bool[Array, ""]:
    """Return whether all numbers in the arrays of a pytree are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def is_in_range(multipliers: Any) -> Bool[Array, ""]:
    """Return whether Lagrange multipliers are positive and below `LARGEST_MULTIPLIER`."""
    return jnp.all(
        jnp.stack([(x > 0) & (x < LARGEST_MULTIPLIER) for x in jax.tree.leaves(multipliers)])
    )


CHECK = "finite/"
"""Begins the names of metrics that are checks of updates: whether a quantity is finite."""


def pop_checks(metrics: dict[str, Array]) -> dict[str, Array]:
    """Remove the checks from metrics, in place; return them by quantity."""
    names = [name for name in metrics if name.startswith(CHECK)]
    return {name.removeprefix(CHECK): metrics.pop(name) for name in names}


def reduce_checks(
    checks: Mapping[str, Bool[Array, " U"]], outside_U4: Int[Array, "U 4"] | None = None
) -> dict[str, Int[Array, "..."]]:
    """Reduce the checks of an iteration's updates to a few metrics.

    Args:
      checks: by quantity, whether it was finite and in range in each update.
      outside_U4: the results of `specs.first_outside` for the observations, if they are checked.
    """

    def first_failure(ok_U: Bool[Array, " U"]) -> Int[Array, ""]:
        return jnp.where(jnp.all(ok_U), HEALTHY, jnp.argmin(ok_U)).astype(jnp.int32)

    report = {f"{_REPORT}{name}": first_failure(ok_U) for name, ok_U in checks.items()}
    if outside_U4 is not None:
        report[_OUTSIDE] = outside_U4[report[f"{_REPORT}observation"]]
    return report


def diverged_mask(
    diverged: Iterable[Divergence], first_seed: int, num_seeds: int
) -> Bool[np.ndarray, "*S"]:
    """Return whether each seed has diverged: `[S]`, or a scalar for a single one."""
    diverged_S = np.zeros(num_seeds, bool)
    diverged_S[[one.seed - first_seed for one in diverged]] = True
    return diverged_S if num_seeds > 1 else diverged_S.reshape(())


def pop_report(
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
    outside = metrics.pop(_OUTSIDE, None)
    report = {
        name.removeprefix(_REPORT): np.atleast_1d(metrics.pop(name))
        for name in [*metrics]
        if name.startswith(_REPORT)
    }
    place = {name: ORDER.index(name) if name in ORDER else len(ORDER) for name in report}
    found = []
    for n in range(len(next(iter(report.values())))):
        failed = [
            (int(update_S[n]), place[name], name)
            for name, update_S in report.items()
            if update_S[n] != HEALTHY
        ]
        if not failed:
            continue
        update, _, quantity = min(failed)
        detail = ""
        if quantity == "observation" and outside is not None:
            detail = describe_outside(observation_space, np.atleast_2d(outside)[n])
        step = begin + (update + 1) * steps_per_update
        found.append(Divergence(first_seed + n, quantity, step, detail))
    return found
