"""Several tasks side by side: the stream of a multi-task agent, of which one task is a case."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Int, Shaped

from gtrxl_jax.envs.stream import EpisodeStats, PRNGKey, Stream, StreamState
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class MultiTaskState:
    """What the stream carries between steps.

    Attributes:
      tasks: the state of each task's stream.
    """

    tasks: tuple[StreamState, ...]

    @property
    def episode(self) -> EpisodeStats:
        """Statistics of the running episodes `[B]`, to be read after each step."""
        return _interleave([state.episode for state in self.tasks])


@dataclasses.dataclass(frozen=True, eq=False)
class MultiTaskStream:
    """N streams as one, with the interface of `Stream`.

    Environment i of the B is of task i mod N, so devices that share the batch in equal parts share
    every task in equal parts, and putting the tasks together moves nothing between them.

    Attributes:
      tasks: one stream for each task, all with as many environments and the same spaces.

    Raises:
      ValueError: there is no task, or what an agent sees of two of them differs.
    """

    tasks: tuple[Stream, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks is empty: give at least one stream")
        expected, *others = map(_seen_by_an_agent, self.tasks)
        for number, other in enumerate(others, start=1):
            for what, value in other.items():
                if value != expected[what]:
                    raise ValueError(
                        f"the {what} of task {number} is {value}, of task 0 {expected[what]}: "
                        "one agent can play only tasks that share it"
                    )

    @property
    def num_tasks(self) -> int:
        """N."""
        return len(self.tasks)

    @property
    def num_envs(self) -> int:
        """B, of all tasks together."""
        return self.num_tasks * self.tasks[0].num_envs

    @property
    def task_B(self) -> Int[Array, " B"]:
        """The task of each environment, 0 .. N - 1."""
        return jnp.arange(self.num_envs, dtype=jnp.int32) % self.num_tasks

    @property
    def action_space(self) -> spaces.Space:
        """The space of one environment's actions."""
        return self.tasks[0].action_space

    @property
    def observation_space(self) -> spaces.Space:
        """The space of one environment's observations."""
        return self.tasks[0].observation_space

    def reset(self, key: PRNGKey) -> tuple[MultiTaskState, TimeStep]:
        """Start every environment; task k gets `fold_in(key, k)`. See `Stream.reset`."""
        return _together(
            [task.reset(jax.random.fold_in(key, k)) for k, task in enumerate(self.tasks)]
        )

    def step(self, state: MultiTaskState, action: Any) -> tuple[MultiTaskState, TimeStep]:
        """Advance every environment by a time step. See `Stream.step`."""
        return _together(
            [
                task.step(state.tasks[k], jax.tree.map(lambda x, k=k: self.of_task(k, x), action))
                for k, task in enumerate(self.tasks)
            ]
        )

    def of_task(self, number: int, x: Shaped[Array, "B ..."]) -> Shaped[Array, "b ..."]:
        """The B / N rows that belong to one task."""
        return x.reshape(-1, self.num_tasks, *x.shape[1:])[:, number]


def _together(
    results: Sequence[tuple[StreamState, TimeStep]],
) -> tuple[MultiTaskState, TimeStep]:
    states, timesteps = zip(*results, strict=True)
    return MultiTaskState(tuple(states)), _interleave(timesteps)


def _interleave(trees: Sequence[Any]) -> Any:
    """N trees of `[b, ...]` to one of `[b * N, ...]`, a row of each in turn."""
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *trees)


def _seen_by_an_agent(stream: Stream) -> dict[str, Any]:
    return {
        "number of environments": stream.num_envs,
        "observation space": observation_spec(stream.observation_space),
        "action space": action_spec(stream.action_space),
        "report of success": stream.reports_success,
    }
