"""A batch of environments on the host as a stream of time steps, like `envs.stream`'s.

An episode of n actions spans n + 1 steps: the step after a `last` one is the reset, which ignores
its action. Environments of gymnasium do so with its vector API, in the mode NEXT_STEP.
"""

import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.custom import wrap_errors
from gtrxl_jax.envs.host import pools
from gtrxl_jax.envs.host.simulators import CONSTRUCTORS, Arrays, make_host_env
from gtrxl_jax.envs.multitask import require_alike
from gtrxl_jax.envs.stream import OTHER_SCORES
from gtrxl_jax.plugins import import_plugins, imported_plugins
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.timestep import EpisodeStats, TimeStep, zero_timestep
from gtrxl_jax.validation import require_count

UNKNOWN_LIMIT = 1_000_000
"""The time limit of environments that declare none: the longest episode of an evaluation."""
_MOST_PROBED = 500
"""The most steps of the episode in which an environment is asked what it reports."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostEnv:
    """An environment on the host, of which any number can be made; has what `Stream.env` has.

    Attributes:
      name: see `simulators`.
      params: arguments of its constructor.
      wrappers: see `wrappers`.
    """

    name: str
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, *, render: bool = False) -> Arrays:
        """Create one; see `simulators.make_host_env`."""
        return make_host_env(self.name, self.params, self.wrappers, render=render)

    @property
    def is_pooled(self) -> bool:
        """Whether a batch of them is made as a whole, see `pools`."""
        return self._library == pools.LIBRARY

    @property
    def _library(self) -> str:
        return self.name.partition(":")[0]

    @functools.cached_property
    def facts(self) -> "Facts":
        """The `Facts` of one environment, probed by an episode of random actions.

        Some report their success only at the end. The episode is cut after `_MOST_PROBED` steps; an
        entry of `info` that comes later is not reported. One step is enough for the libraries of
        `simulators`, some of which are slow, and for pools: all have the same entries at each.
        """
        if self.is_pooled:
            return self._facts_of_pool()
        env = self.make()
        try:
            names: set[str] = set()
            with wrap_errors("environment", env.unwrapped):
                env.reset(seed=0)
                env.action_space.seed(0)
                for _ in range(1 if self._library in CONSTRUCTORS else _MOST_PROBED):
                    *_, terminated, truncated, info = env.step(env.action_space.sample())
                    names.update(info)
                    if terminated or truncated:
                        break
            spec, own = getattr(env.spec, "max_episode_steps", None), env.unwrapped
            limits = spec, self.wrappers.get("limit"), getattr(own, "max_steps", None)
            modes = env.metadata.get("render_modes", ())
            return Facts(
                env.observation_space,
                env.action_space,
                tuple(sorted(names)),
                next(filter(None, map(_limit, limits)), None),
                "rgb_array" in modes,
                callable(getattr(own, "oracle_action", None)),
            )
        finally:
            env.close()

    def _facts_of_pool(self) -> "Facts":
        if self.wrappers:
            raise ValueError(
                f"env.wrappers do not apply to {self.name}, whose options are env.params: omit them"
            )
        pool = pools.Pool(self.name, self.params, 1, seed=0)
        try:
            pool.reset()
            pool.action_space.seed(0)
            *_, info = pool.step(np.asarray(pool.action_space.sample())[None])
            reported = tuple(sorted(name for name in info if name not in OTHER_SCORES))
            return Facts(
                pool.observation_space,
                pool.action_space,
                reported,
                pool.limit,
                can_render=False,
                has_oracle=False,
            )
        finally:
            pool.close()

    def time_limit(self, params: Any = None) -> int:
        """Return the number of actions after which every episode has ended, if it is known."""
        return self.facts.limit or UNKNOWN_LIMIT

    @property
    def limit_setting(self) -> str:
        """The setting that limits the time of an episode."""
        return "env.params max_episode_steps N" if self.is_pooled else "env.wrappers limit N"

    def render(self, state: Any, params: Any = None) -> Any:
        """Return the frame that is kept as the state of a recorded step."""
        return state

    @property
    def can_render(self) -> bool:
        """Whether it draws frames."""
        return self.facts.can_render


def _limit(value: Any) -> int | None:
    """Return a value, which may mean anything, if it is a number of steps."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if is_whole and value > 0 else None


class Facts(NamedTuple):
    """The spaces, scores, time limit and rendering of an environment.

    Attributes:
      observation_space, action_space: its spaces.
      reported: the entries of its `info` that are scores of episodes, sorted.
      limit: its time limit; None if unknown.
      can_render: whether it draws frames.
      has_oracle: whether it has an `oracle_action`.
    """

    observation_space: Any
    action_space: Any
    reported: tuple[str, ...]
    limit: int | None
    can_render: bool
    has_oracle: bool


class Arrival(NamedTuple):
    """What B environments return at a time step, in NumPy. See `TimeStep` and `EpisodeStats`."""

    observation: Any
    reward: Float[np.ndarray, " B"]
    discount: Float[np.ndarray, " B"]
    first: Bool[np.ndarray, " B"]
    last: Bool[np.ndarray, " B"]
    episode: Any

    def timestep(self, previous: Any) -> TimeStep:
        """Return the time step, given the previous actions, in the layout of `ActionSpec`."""
        first = jnp.asarray(self.first)

        def unless_first(x: Array) -> Array:
            return jnp.where(first.reshape(-1, *(1,) * (x.ndim - 1)), jnp.zeros_like(x), x)

        return TimeStep(
            observation=jax.tree.map(jnp.asarray, self.observation),
            action=jax.tree.map(unless_first, previous),
            reward=jnp.asarray(self.reward),
            discount=jnp.asarray(self.discount),
            first=first,
            last=jnp.asarray(self.last),
        )


class HostBatch:
    """B environments that step together.

    Args:
      envs: what to make, one entry for each environment.
      seeds: the seed of the first episode of each.
      processes: whether each has a process of its own.
      timeout: the most seconds that a step may take, of environments in processes.
      render: whether they draw frames, if they can.

    Raises:
      TimeoutError: from `reset` and `step`, if an environment does not answer.
      ChildProcessError: if the process of an environment has ended.
    """

    def __init__(
        self,
        envs: Sequence[HostEnv],
        seeds: Sequence[int],
        *,
        processes: bool = False,
        timeout: float | None = None,
        render: bool = False,
    ):
        self._envs, self._seeds, self._timeout = envs, list(seeds), timeout
        self._names = envs[0].facts.reported
        self._episode: Any = None
        if envs[0].is_pooled:
            if any(env is not envs[0] for env in envs):
                raise ValueError(f"env.tasks: {envs[0].name} is made as a whole: use one task")
            self._vector: Any = pools.Pool(envs[0].name, envs[0].params, len(envs), seeds[0])
            return
        # The spaces of other tasks may differ in their bounds only.
        space = envs[0].facts.observation_space
        options: dict[str, Any] = {
            "observation_mode": (batch_space(space, len(envs)), space),
            "autoreset_mode": AutoresetMode.NEXT_STEP,
        }
        if not processes:
            makers = [functools.partial(env.make, render=render) for env in envs]
            self._vector = SyncVectorEnv(makers, **options)
            return
        _start_server()
        modules = [*imported_plugins(), *(env.name for env in envs)]
        workers = [_Worker(env, render, modules, os.getpid()) for env in envs]
        with self._naming_ends():
            self._vector = AsyncVectorEnv(workers, context="forkserver", **options)

    def reset(self) -> Arrival:
        """Start an episode in every environment."""
        if isinstance(self._vector, AsyncVectorEnv):
            with self._naming_ends():
                self._vector.reset_async(seed=[*self._seeds])
                observation, _ = self._wait(self._vector.reset_wait)
        else:
            seeds_B: Any = self._seeds  # The annotation of `seed` lacks sequences.
            observation, _ = self._vector.reset(seed=seeds_B)
        number = len(self._envs)
        no, zero = np.zeros(number, bool), np.zeros(number, np.float32)
        info = dict.fromkeys(self._names, zero)
        before = _statistics(~no, zero, np.zeros(number, np.int32), *_success_and_rest(info))
        return self._arrive(before, observation, zero, no, no, info)

    def step(self, action: Any) -> Arrival:
        """Advance every environment; actions are in the layout of its space, `[B, ...]`."""
        if isinstance(self._vector, AsyncVectorEnv):
            with self._naming_ends():
                self._vector.step_async(action)
                outcome = self._wait(self._vector.step_wait)
        else:
            outcome = self._vector.step(action)
        observation, reward, terminated, truncated, infos = outcome
        info = {name: self._reported(infos, name) for name in self._names}
        reward = reward.astype(np.float32)
        return self._arrive(self._episode, observation, reward, terminated, truncated, info)

    def render(self) -> tuple[Any, ...]:
        """Return the frame of each environment, None without `render`; () if one cannot draw."""
        can_render = all(env.can_render for env in self._envs)  # `Env.render` raises otherwise
        return self._vector.render() if can_render else ()

    def oracle_actions(self) -> Sequence[Any]:
        """Return the action of each environment's oracle; see `acting.host.HostOraclePolicy`."""
        return self._vector.call("oracle_action")

    def close(self) -> None:
        """Close the environments, and end their processes."""
        if isinstance(self._vector, AsyncVectorEnv):
            # Otherwise, closing waits for a pending answer.
            self._vector._state = AsyncState.DEFAULT
            self._vector.close(terminate=True)
        else:
            self._vector.close()

    def _wait(self, wait: Any) -> Any:
        try:
            return wait(timeout=self._timeout)
        except multiprocessing.TimeoutError:
            raise TimeoutError(
                f"{self._envs[0].name}: an environment has not answered for {self._timeout:g} s: "
                "raise actors.timeout"
            ) from None

    @contextmanager
    def _naming_ends(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:  # The pipe of the process is closed.
            raise ChildProcessError(
                f"{self._envs[0].name}: the process of an environment has ended, for a cause that "
                "is printed above"
            ) from error

    def _reported(self, infos: Mapping[str, Any], name: str) -> Float[np.ndarray, " B"]:
        values = infos.get(name)
        if values is None:
            return np.zeros(len(self._envs), np.float32)
        return np.asarray(values, np.float32)

    def _arrive(
        self,
        before: EpisodeStats,
        observation: Any,
        reward: Float[np.ndarray, " B"],
        terminated: Bool[np.ndarray, " B"],
        truncated: Bool[np.ndarray, " B"],
        info: dict[str, Float[np.ndarray, " B"]],
    ) -> Arrival:
        first = np.asarray(before.done)
        last = terminated | truncated
        success, rest = _success_and_rest(
            {name: np.where(first, np.float32(0), value) for name, value in info.items()}
        )
        self._episode = _statistics(
            done=last,
            episode_return=np.where(first, np.float32(0), before.episode_return + reward),
            length=np.where(first, np.int32(0), before.length + np.int32(1)),
            success=success,
            info=rest,
        )
        discount = 1 - terminated.astype(np.float32)
        return Arrival(observation, reward, discount, first, last, self._episode)


@dataclasses.dataclass(frozen=True)
class _Worker:
    """Makes an environment in a process of its own, and one in the trainer's, for its spaces.

    Attributes:
      env: what to make.
      render: whether it draws frames, if it can.
      modules: the plugins to import, since a new process has imported none.
      trainer: the number of the trainer's process.
    """

    env: HostEnv
    render: bool
    modules: Sequence[str]
    trainer: int

    def __call__(self) -> Arrays:
        if os.getpid() != self.trainer:
            # Workers are ended by it, of which JAX's handler would print a stack trace.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            import_plugins(self.modules)
        return self.env.make(render=self.render)


_PLATFORMS = "JAX_PLATFORMS"
_starting = threading.Lock()


def _start_server() -> None:
    """Start the process that starts workers, if there is none.

    Workers have its variables, by which they use the CPU alone: gymnax starts JAX when it is
    imported, on an accelerator that is the trainer's.
    """
    with _starting:
        before = os.environ.get(_PLATFORMS)
        os.environ[_PLATFORMS] = "cpu"
        try:
            forkserver.ensure_running()
        finally:
            del os.environ[_PLATFORMS]
            if before is not None:
                os.environ[_PLATFORMS] = before


_statistics: Any = EpisodeStats
"""Statistics in NumPy, unlike the annotation."""


def _success_and_rest(info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the success, if it is reported, and the other entries."""
    rest = dict(info)
    found = [rest.pop(name) for name in ("success", "is_success") if name in rest]
    return (found[0] if found else None), rest


@struct.dataclass
class HostState:
    """Stands for the state of environments on the host where programs are traced."""

    episode: EpisodeStats


@dataclasses.dataclass(frozen=True, eq=False)
class HostStream:
    """A batch of environments on the host; of N tasks, environment i belongs to task i mod N.

    `reset` and `step` only have the shapes and dtypes of what is to come, for tracing; `open`
    creates the environments.

    Attributes:
      envs: the environment of each task.
      num_envs: B, the number of environments.

    Raises:
      ValueError: if the spaces of two tasks differ, other than in the bounds of observations that
        are floats.
    """

    envs: tuple[HostEnv, ...]
    num_envs: int

    def __post_init__(self) -> None:
        require_count("num_envs", self.num_envs)
        require_alike([_describe(env.facts) for env in self.envs])

    @property
    def env(self) -> HostEnv:
        """The environment of the first task."""
        return self.envs[0]

    @property
    def params(self) -> None:
        """None: parameters are part of the environment."""

    @property
    def num_tasks(self) -> int:
        """The number of tasks, N."""
        return len(self.envs)

    @property
    def tasks(self) -> tuple["HostStream", ...]:
        """A stream for each task."""
        share = self.num_envs // self.num_tasks
        return tuple(HostStream((env,), share) for env in self.envs)

    @property
    def task_B(self) -> Int[Array, " B"]:
        """The task index of each environment, 0 .. N - 1."""
        return jnp.arange(self.num_envs, dtype=jnp.int32) % self.num_tasks

    @property
    def observation_space(self) -> Any:
        """The observation space of one environment."""
        return self.env.facts.observation_space

    @property
    def action_space(self) -> Any:
        """The action space of one environment."""
        return self.env.facts.action_space

    def reset(self, key: Key[Array, ""]) -> tuple[HostState, TimeStep]:
        """Return a state and a first time step of zeros."""
        timestep = zero_timestep(self.observation_space, self.action_space, self.num_envs)
        timestep = dataclasses.replace(
            timestep,
            reward=timestep.reward.astype(jnp.float32),
            discount=timestep.discount.astype(jnp.float32),
        )
        zero = jnp.zeros(self.num_envs, jnp.float32)
        success, info = _success_and_rest(dict.fromkeys(self.env.facts.reported, zero))
        length = jnp.zeros(self.num_envs, jnp.int32)
        return HostState(EpisodeStats(zero != 0, zero, length, success, info)), timestep

    def step(self, state: HostState, action: Any) -> tuple[HostState, TimeStep]:
        """Return a state and a time step of zeros."""
        return self.reset(jax.random.key(0))

    @contextmanager
    def open(self, seed: int | Sequence[int], **options: Any) -> Iterator[HostBatch]:
        """Create the environments, and close them at the end of the context.

        Args:
          seed: the seed of the environments, see `seeds`.
          options: see `HostBatch`.
        """
        batch = self.create(seed, range(self.num_envs), **options)
        try:
            yield batch
        finally:
            batch.close()

    def create(self, seed: int | Sequence[int], rows: Sequence[int], **options: Any) -> HostBatch:
        """Create the environments of some rows of the batch; close them after use."""
        envs = [self.envs[row % self.num_tasks] for row in rows]
        return HostBatch(envs, [seeds(seed, row) for row in rows], **options)


def seeds(seed: int | np.integer | Sequence[int], row: int) -> int:
    """Return the seed of the environment of a row, independent of the others'."""
    entropy = (seed,) if isinstance(seed, int | np.integer) else tuple(seed)
    # From 1, since zeros at the end change nothing.
    return int(np.random.SeedSequence([*entropy, row + 1]).generate_state(1)[0] >> 1)


def _describe(facts: Facts) -> dict[str, Any]:
    action_spec(facts.action_space)  # Raises for a space that no policy fits.
    return {
        "observation space": observation_spec(facts.observation_space),
        "action space": facts.action_space,  # The first task's is used for all tasks.
        "reported info": facts.reported,
    }
