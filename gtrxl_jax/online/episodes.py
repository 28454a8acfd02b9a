"""Metrics computed in an iteration's program: of finished episodes, of modules, of losses."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Real

from gtrxl_jax.envs.stream import EpisodeStats

Summary = dict[str, Real[Array, ""]]
"""Scalars by name."""


def episode_sums(
    episodes: EpisodeStats, task_B: Int[Array, " B"], num_tasks: int
) -> dict[str, Float[Array, " N"]]:
    """Sum statistics `[B, T]` over the finished episodes of each of N tasks, and count these."""
    task_BN = jax.nn.one_hot(task_B, num_tasks, dtype=bool)
    numbers = {"return": episodes.episode_return, "length": episodes.length}
    if episodes.success is not None:
        numbers["success"] = episodes.success
    numbers["ended"] = jnp.ones_like(episodes.done)

    def sum_by_task(x_BT: Array) -> Array:
        sum_B = jnp.sum(jnp.where(episodes.done, x_BT.astype(jnp.float32), 0), axis=1)
        return jnp.sum(jnp.where(task_BN, sum_B[:, None], 0), axis=0)

    return {name: sum_by_task(x_BT) for name, x_BT in numbers.items()}


def episode_means(sums: dict[str, Float[Array, "U N"]]) -> Summary:
    """Compute means over the episodes finished in U updates: `episode/return`, also for each task.

    Means are NaN if no episode finished. `episode/ended` is the number of finished episodes.
    """
    sums = {name: jnp.sum(sum_UN, axis=0) for name, sum_UN in sums.items()}
    ended_N = sums.pop("ended")
    means: Summary = {}
    for name, sum_N in sums.items():
        means |= by_task(f"episode/{name}", sum_N / ended_N)
        means[f"episode/{name}"] = jnp.sum(sum_N) / jnp.sum(ended_N)
    return means | {"episode/ended": jnp.sum(ended_N)}


def by_task(name: str, values_N: Float[Array, " N"]) -> Summary:
    """Return a metric for each task as `name/task_0`, or as `name` if there is only one task."""
    if len(values_N) == 1:
        return {name: values_N[0]}
    return {f"{name}/task_{k}": value for k, value in enumerate(values_N)}


def reported(recorded: Any) -> Summary:
    """Return the means of all values sown by modules: "core/blocks_0/attention_gate/opening"."""
    return {
        "/".join(key.key for key in path if hasattr(key, "key")): jnp.mean(value)
        for path, value in jax.tree.leaves_with_path(recorded)
    }


def gradient_shares(
    losses: Callable[[Array], Mapping[str, Array]], y: Array, groups: Mapping[str, tuple[str, ...]]
) -> Summary:
    """Compute each group's share of the losses' gradient at the core's output: `share/GROUP`.

    The share is the norm of the gradient of the group's losses with respect to y, divided by the
    sum of the norms of all groups.

    Args:
      losses: function from y to the loss terms by name.
      y: the core's output.
      groups: the beginnings of the names of each group's losses.
    """

    def total(y: Array, names: tuple[str, ...]) -> Any:
        return sum(term for name, term in losses(y).items() if name.startswith(names))

    norms = {group: optax.tree.norm(jax.grad(total)(y, names)) for group, names in groups.items()}
    everything = sum(norms.values())
    everything = jnp.where(everything > 0, everything, 1)
    return {f"share/{group}": norm / everything for group, norm in norms.items()}
