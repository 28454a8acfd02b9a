"""Metrics computed in an iteration's program: of the episodes that ended, and of the gates."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gtrxl_jax.envs.stream import EpisodeStats

Summary = dict[str, Float[Array, ""]]
"""Scalars by name."""


def episode_sums(
    episodes: EpisodeStats, task_B: Int[Array, " B"], num_tasks: int
) -> dict[str, Float[Array, " N"]]:
    """Sums over those of the episodes `[B, T]` of each of N tasks that ended, and their number."""
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
    """Means over the episodes that ended in U updates: `episode/return`, and those of each task.

    Without an episode that ended there is nothing to report: NaN. `episode/ended` is their number.
    """
    sums = {name: jnp.sum(sum_UN, axis=0) for name, sum_UN in sums.items()}
    ended_N = sums.pop("ended")
    means: Summary = {}
    for name, sum_N in sums.items():
        means |= by_task(f"episode/{name}", sum_N / ended_N)
        means[f"episode/{name}"] = jnp.sum(sum_N) / jnp.sum(ended_N)
    return means | {"episode/ended": jnp.sum(ended_N)}


def by_task(name: str, values_N: Float[Array, " N"]) -> Summary:
    """A metric for each task, `name/task_0`, or `name` if there is only one."""
    if len(values_N) == 1:
        return {name: values_N[0]}
    return {f"{name}/task_{k}": value for k, value in enumerate(values_N)}


def gate_openings(recorded: Any) -> Summary:
    """The mean opening of each gate: `gate/block_0/attention`."""
    blocks = recorded.get("metrics", {}).get("core", {})
    return {
        f"gate/{block.replace('blocks', 'block')}/{gate.removesuffix('_gate')}": opening
        for block, gates in blocks.items()
        for gate, (opening,) in ((name, records["opening"]) for name, records in gates.items())
    }
