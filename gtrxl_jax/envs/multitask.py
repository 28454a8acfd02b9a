"""A stream of several tasks side by side, for multi-task agents; one task is a special case."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, Shaped

from gtrxl_jax.envs.stream import PRNGKey, Stream, StreamState
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.timestep import EpisodeStats, TimeStep


@struct.dataclass
class MultiTaskState:
    """The state of the stream between steps.

    Attributes:
      tasks: the state of each task's stream.
    """

    tasks: tuple[StreamState, ...]

    @property
    def episode(self) -> EpisodeStats:
        """Statistics of the running episodes, `[B]`, to be read after each step."""
        return _interleave([state.episode for state in self.tasks])

    @property
    def env(self) -> Any:
        """The states of the environments, `[B]`."""
        return _interleave([state.env for state in self.tasks])


@dataclasses.dataclass(frozen=True, eq=False)
class MultiTaskStream:
    """Combine N streams into one with the interface of `Stream`.

    Environment i of the B environments belongs to task i mod N. Devices with equal shares of the
    batch thus have equal shares of every task, and interleaving the tasks moves no data between
    devices.

    Attributes:
      tasks: one stream for each task, with equal numbers of environments and equal spaces.

    Raises:
      ValueError: if `tasks` is empty, or two tasks differ in their number of environments, their
        spaces, or the entries of `info` that they report.
    """

    tasks: tuple[Stream, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty: pass at least one stream")
        require_alike([_describe(task) for task in self.tasks])

    @property
    def num_tasks(self) -> int:
        """The number of tasks, N."""
        return len(self.tasks)

    @property
    def num_envs(self) -> int:
        """The number of environments of all tasks together, B."""
        return self.num_tasks * self.tasks[0].num_envs

    @property
    def task_B(self) -> Int[Array, " B"]:
        """The task index of each environment, 0 .. N - 1."""
        return jnp.arange(self.num_envs, dtype=jnp.int32) % self.num_tasks

    @property
    def action_space(self) -> Any:
        """The action space of one environment."""
        return self.tasks[0].action_space

    @property
    def observation_space(self) -> Any:
        """The observation space of one environment."""
        return self.tasks[0].observation_space

    def reset(self, key: PRNGKey) -> tuple[MultiTaskState, TimeStep]:
        """Start every environment; task k uses `fold_in(key, k)`. See `Stream.reset`."""
        return _combine(
            [task.reset(jax.random.fold_in(key, k)) for k, task in enumerate(self.tasks)]
        )

    def stagger(self, state: MultiTaskState, key: PRNGKey) -> MultiTaskState:
        """Truncate each running episode at a random step. See `Stream.stagger`."""
        return MultiTaskState(
            tuple(
                task.stagger(state.tasks[k], jax.random.fold_in(key, k))
                for k, task in enumerate(self.tasks)
            )
        )

    def step(self, state: MultiTaskState, action: Any) -> tuple[MultiTaskState, TimeStep]:
        """Advance every environment by one time step. See `Stream.step`."""
        return _combine(
            [
                task.step(state.tasks[k], jax.tree.map(lambda x, k=k: self.of_task(k, x), action))
                for k, task in enumerate(self.tasks)
            ]
        )

    def of_task(self, number: int, x: Shaped[Array, "B ..."]) -> Shaped[Array, "b ..."]:
        """Return the B / N rows that belong to one task."""
        return x.reshape(-1, self.num_tasks, *x.shape[1:])[:, number]


def require_alike(tasks: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for the first task of which a fact differs from that of the first one."""
    for number, facts in enumerate(tasks):
        for what, value in facts.items():
            if value != tasks[0][what]:
                raise ValueError(
                    f"the {what} of task {number} is {value}, but the {what} of task 0 is "
                    f"{tasks[0][what]}: one agent requires tasks that share it"
                )


def _combine(
    results: Sequence[tuple[StreamState, TimeStep]],
) -> tuple[MultiTaskState, TimeStep]:
    states, timesteps = zip(*results, strict=True)
    return MultiTaskState(tuple(states)), _interleave(timesteps)


def _interleave(trees: Sequence[Any]) -> Any:
    """Merge N trees of `[b, ...]` into one of `[b * N, ...]`, taking a row of each in turn."""
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *trees)


def _describe(stream: Stream) -> dict[str, Any]:
    return {
        "number of environments": stream.num_envs,
        "observation space": observation_spec(stream.observation_space),
        "action space": action_spec(stream.action_space),
        "reported_info": stream.reported_info,
    }
