"""Actors: threads that act in environments on the host, and pass segments to the learner.

    shares = [(programs, rows) for rows in rows_of_actors(mesh, num_envs, config.count)]
    with Actors(shares, stream, config, mesh, first=0, seed=seed) as actors:
        actors.start(key)
        actors.publish(params)          before update 0
        experience = actors.take()      what update 0 learns from
        actors.publish(params)          before update 1

Each actor has a share of the environments and the memory of its agents. For update n it acts with
the parameters after n - lag updates, exactly: with a lag of 0 it waits for the learner, with a lag
of 1, the default, it acts while the learner learns from what it did before. A run on environments
that are deterministic given their seeds thus gives the same numbers every time.

Where an environment raises an error, or does not answer, the actor drops the rollout that it is in,
and restarts them. The learner therefore gets whole segments only: no step is lost, and none is in
two segments.
"""

import dataclasses
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import Array, Int, Key

from gtrxl_jax.acting.host import to_numpy
from gtrxl_jax.acting.policy import AgentPolicy, choose_actions
from gtrxl_jax.envs.host.stream import Arrival, HostBatch, HostStream
from gtrxl_jax.online.algorithm import Experience
from gtrxl_jax.online.config import ActorsConfig
from gtrxl_jax.parallel.placement import local_rows, split_local_rows
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import TimeStep

_CLOSING_SECONDS = 8.0
"""The most seconds that actors get to end."""


class ActorError(OSError):
    """Raised when the environments of an actor have failed too often."""


@struct.dataclass
class Acting:
    """The state of an actor within a segment, on its device.

    Attributes:
      policy: state of the policy.
      previous: the previous actions, in the layout of `ActionSpec`.
      step: number of steps of the segment so far.
      kept: `[T, B]`, the time steps, actions and extras so far.
    """

    policy: Any
    previous: Any
    step: Int[Array, ""]
    kept: tuple[TimeStep, Any, Any]


class ActingPrograms:
    """The programs of an actor of B environments.

    Args:
      policy: the policy that acts.
      stream: the environments of the run.
      segments: K, the number of segments of a rollout.
      unroll: T, the number of steps of a segment.
      batch: B.
      device: the device on which they run.

    Attributes:
      start, keys, begin, step, finish, join: the programs, from `compile` on.
    """

    start: Callable[..., Any]
    keys: Callable[..., Any]
    begin: Callable[..., Any]
    step: Callable[..., Any]
    finish: Callable[..., Any]
    join: Callable[..., Any]

    def __init__(
        self,
        policy: AgentPolicy,
        stream: HostStream,
        segments: int,
        unroll: int,
        batch: int,
        device: jax.Device,
    ):
        self.policy, self.segments, self.unroll, self.batch = policy, segments, unroll, batch
        self.device, self._stream, self._space = device, stream, stream.action_space

    def compile(self, params: Any) -> None:
        """Compile all programs.

        They are compiled for their arguments' shapes, not on first use: a jitted function would be
        compiled again for the first segment and the first step, whose arguments are from elsewhere.

        Args:
          params: the shapes and dtypes of the parameters.
        """
        here = SingleDeviceSharding(self.device)

        def compiled(function: Callable[..., Any], *like: Any, **options: Any) -> tuple[Any, Any]:
            arguments = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), like
            )
            lowered = jax.jit(function, **options).lower(*arguments)
            return lowered.compile(), lowered.out_info

        stream = dataclasses.replace(self._stream, num_envs=self.batch)
        key, number, task_B = jax.random.key(0), np.int32(0), np.zeros(self.batch, np.int32)
        state, first = jax.eval_shape(stream.reset, key)
        arrival = Arrival._make((*(getattr(first, name) for name in Arrival._fields[:-1]), ()))
        episodes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.batch, self.unroll), x.dtype), state.episode
        )
        self.start, (memory, previous) = compiled(self._start, out_shardings=here)
        self.keys, (key_KT, key_K) = compiled(self._keys, key, number, number)
        self.begin, acting = compiled(self._begin, params, memory, previous, arrival)
        self.step, (acting, _) = compiled(
            self._step, params, acting, arrival, key_KT, number, donate_argnums=1
        )
        self.finish, (_, experience) = compiled(
            self._finish, params, acting, memory, arrival, key_K, number, episodes, task_B
        )
        self.join, _ = compiled(self._join, [experience] * self.segments)

    def own(self, params: Any) -> Any:
        """Return the copy of parameters that is on the device, of parameters on every device."""

        def copy_of(x: jax.Array) -> jax.Array:
            return next(s.data for s in x.addressable_shards if s.device == self.device)

        return jax.tree.map(copy_of, params)

    def _start(self) -> tuple[Any, Any]:
        """Return the memory of new agents, and the actions before the first ones."""
        memory = self.policy.agent.initial_memory(self.batch)
        return memory, action_spec(self._space).zeros(self.batch)

    def _keys(
        self, key: Key[Array, ""], update: Int[Array, ""], actor: Int[Array, ""]
    ) -> tuple[Key[Array, "K T"], Key[Array, " K"]]:
        """Return the keys of the steps and of the bootstrap steps of a rollout.

        Those of the first actor are those of jitted environments, see `OnlineTrainer.act`.
        """
        key = jax.random.fold_in(key, update)
        of_actor = jax.random.fold_in(key, self.segments * self.unroll + actor)
        key = jnp.where(actor == 0, key, of_actor)
        key_K = key[None] if self.segments == 1 else jax.random.split(key, self.segments)
        return jax.vmap(lambda key: jax.random.split(key, self.unroll))(key_K), key_K

    def _begin(self, params: Any, memory: Any, previous: Any, arrival: Arrival) -> Acting:
        """Return the state at the start of a segment."""
        # Copies, since steps are donated what is passed on.
        memory, previous = jax.tree.map(jnp.copy, (memory, previous))
        policy = self.policy.start(params, memory, self.unroll)
        timestep, key = arrival.timestep(previous), jax.random.key(0)
        chosen = jax.eval_shape(
            functools.partial(choose_actions, self.policy, self._space),
            params,
            policy,
            timestep,
            key,
        )
        kept = jax.tree.map(
            lambda x: jnp.zeros((self.unroll, *x.shape), x.dtype),
            (timestep, chosen.action, chosen.extras),
        )
        return Acting(policy, previous, jnp.zeros((), jnp.int32), kept)

    def _step(
        self, params: Any, acting: Acting, arrival: Arrival, key_KT: Any, segment: Any
    ) -> tuple[Acting, Any]:
        """Act at a time step; return the new state, and the actions for the environments."""
        timestep, key = arrival.timestep(acting.previous), key_KT[segment, acting.step]
        chosen = choose_actions(self.policy, self._space, params, acting.policy, timestep, key)
        kept = jax.tree.map(
            lambda x_TB, x_B: x_TB.at[acting.step].set(x_B),
            acting.kept,
            (timestep, chosen.action, chosen.extras),
        )
        state = Acting(chosen.state, chosen.clipped, acting.step + 1, kept)
        return state, chosen.environment_action

    def _finish(
        self,
        params: Any,
        acting: Acting,
        memory: Any,
        arrival: Arrival,
        key_K: Any,
        segment: Any,
        episodes: Any,
        task_B: Int[Array, " B"],
    ) -> tuple[Any, Experience]:
        """Return the memory after a segment, and the segment.

        `memory` is the memory before it, `arrival` what arrived after its last action, and
        `episodes` the statistics after each action, `[B, T]`.
        """
        bootstrap_step = arrival.timestep(acting.previous)
        *_, bootstrap = self.policy.act(params, acting.policy, bootstrap_step, key_K[segment])
        timesteps, actions, extras = jax.tree.map(lambda x_TB: x_TB.swapaxes(0, 1), acting.kept)
        experience = Experience(
            memory=memory,
            timesteps=jax.tree.map(
                lambda x_BT, x_B: jnp.concatenate([x_BT, x_B[:, None]], axis=1),
                timesteps,
                bootstrap_step,
            ),
            actions=actions,
            extras=extras,
            bootstrap=bootstrap,
            episodes=episodes,
            task=task_B,
        )
        return self.policy.finish(params, acting.policy), experience

    def _join(self, segments: Sequence[Experience]) -> Experience:
        """Return a rollout: the K segments of each environment in consecutive rows."""
        return jax.tree.map(
            lambda *x_KB: jnp.stack(x_KB, axis=1).reshape(-1, *x_KB[0].shape[1:]), *segments
        )


class _Closed(Exception):
    """Raised in an actor that is to end."""


class _EnvironmentFailed(Exception):
    """Raised in an actor for an error of its environments, which is its cause."""


class _Versions:
    """Versions of the acting parameters, of which actors wait for the one that they need."""

    def __init__(self) -> None:
        self._params: dict[int, Any] = {}
        self._changed = threading.Condition()
        self.closed = False

    def publish(self, version: int, params: Any, oldest: int) -> None:
        """Add a version, and drop those before the oldest that is still needed."""
        with self._changed:
            self._params = {v: p for v, p in self._params.items() if v >= oldest}
            self._params[version] = params
            self._changed.notify_all()

    def wait(self, version: int) -> Any:
        """Return a version as soon as there is one.

        Raises:
          _Closed: if the actors are to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or version in self._params)
            if self.closed:
                raise _Closed
            return self._params[version]

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


@dataclasses.dataclass
class _Rollout:
    """What an actor passes on: the experience, and how many updates its parameters were behind."""

    experience: Experience
    lag: int


@dataclasses.dataclass(frozen=True)
class _Task:
    """What the environments of an actor are doing: since when, and the most seconds it may take."""

    since: float
    seconds: float
    is_creation: bool


class _Actor(threading.Thread):
    """A thread that acts in its share of the environments.

    Attributes:
      rollouts: its rollouts, in order; an error is the last entry.
      task: what the environments are doing; None when they are idle.
    """

    def __init__(self, actors: "Actors", index: int, programs: ActingPrograms, rows: Sequence[int]):
        super().__init__(name=f"actor-{index}", daemon=True)
        self._all, self._index, self._programs, self._rows = actors, index, programs, rows
        self.rollouts: queue.Queue[_Rollout | BaseException] = queue.Queue(actors.config.lag + 1)
        self.task: _Task | None = None
        self._restarts = 0
        self._envs: HostBatch | None = None
        self._task_B = np.asarray(rows, np.int32) % np.int32(actors.stream.num_tasks)

    def run(self) -> None:
        update = self._all.first
        try:
            while True:
                version = max(self._all.first, update - self._all.config.lag)
                params = self._all.versions.wait(version)
                try:
                    experience = self._rollout(params, update)
                except _EnvironmentFailed as failure:
                    self._restart(failure.__cause__)
                    continue
                self._put(_Rollout(experience, update - version))
                update += 1
        except _Closed:
            pass
        except BaseException as error:  # Any error, also of JAX, ends the actor.
            self._put(error)
        finally:
            if self._envs:
                self._envs.close()

    def _put(self, item: Any) -> None:
        while not self._all.versions.closed:
            try:
                return self.rollouts.put(item, timeout=0.1)
            except queue.Full:
                pass

    def _restart(self, error: Any) -> None:
        """Drop the environments, which have raised an error.

        Raises:
          ActorError: if they have failed too often.
        """
        name, config = self._all.stream.env.name, self._all.config
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self._restarts += 1
        if self._restarts > config.restarts:
            raise ActorError(
                f"actor {self._index}: {name} has failed {self._restarts} times, at last with "
                f"{text}: correct the environment, or raise actors.restarts"
            ) from error
        print(
            f"actor {self._index}: {text}; restarting {name} (restart "
            f"{self._restarts} of {config.restarts})",
            file=sys.stderr,
            flush=True,
        )
        envs, self._envs = self._envs, None
        if envs:
            try:
                envs.close()
            except Exception as failure:  # The environment is already broken.
                print(f"actor {self._index}: {failure}", file=sys.stderr, flush=True)

    def _start(self, update: int) -> None:
        """Create the environments, and the memory of the agents in them."""
        every, config = self._all, self._all.config
        seed = [every.seed, self._restarts, update] if update or self._restarts else every.seed
        create = functools.partial(
            every.stream.create, processes=config.processes, timeout=config.timeout
        )
        envs = self._envs = self._ask(create, seed, self._rows, created=len(self._rows))
        self._arrival = self._ask(envs.reset)
        self._memory, self._previous = self._programs.start()

    def _ask(self, function: Any, *arguments: Any, created: int = 0) -> Any:
        """Call a function of the environments, and record what they do; it may create a number.

        Raises:
          _EnvironmentFailed: for any error.
        """
        seconds = self._all.config.timeout * max(created, 1)
        self.task = _Task(time.monotonic(), seconds, is_creation=created > 0)
        try:
            return function(*arguments)
        except BaseException as error:  # a simulator may exit
            raise _EnvironmentFailed from error
        finally:
            self.task = None

    def _rollout(self, params: Any, update: int) -> Experience:
        programs, every = self._programs, self._all
        if self._envs is None:
            self._start(update)
        assert self._envs is not None
        params = programs.own(params)
        number = jax.process_index() * every.config.count + self._index
        key_KT, key_K = programs.keys(every.key, np.int32(update), np.int32(number))
        memory, previous, arrival = self._memory, self._previous, self._arrival
        segments: list[Experience] = []
        for segment in map(np.int32, range(programs.segments)):
            acting, episodes = programs.begin(params, memory, previous, drop_episode(arrival)), []
            for _ in range(programs.unroll):
                if every.versions.closed:
                    raise _Closed
                acting, action = programs.step(
                    params, acting, drop_episode(arrival), key_KT, segment
                )
                arrival = self._ask(self._envs.step, to_numpy(action))
                episodes.append(arrival.episode)
            previous = acting.previous
            episodes_BT = jax.tree.map(lambda *x_B: np.stack(x_B, axis=1), *episodes)
            memory, experience = programs.finish(
                params,
                acting,
                memory,
                drop_episode(arrival),
                key_K,
                segment,
                episodes_BT,
                self._task_B,
            )
            segments.append(experience)
        self._memory, self._previous, self._arrival = memory, previous, arrival
        return programs.join(segments) if len(segments) > 1 else segments[0]


def drop_episode(arrival: Arrival) -> Arrival:
    """Return an arrival without the statistics of its episode, which the policy does not read."""
    return arrival._replace(episode=())


def rows_of_actors(mesh: Mesh, num_envs: int, count: int) -> list[list[int]]:
    """Return the environments of each actor of this process, by their rows in the batch.

    Raises:
      ValueError: if actors do not divide the environments of this process.
    """
    own = local_rows(mesh, num_envs)
    if len(own) % count:
        raise ValueError(
            f"env.num_envs {num_envs} leaves {len(own)} to a process, which do not divide over "
            f"actors.count {count}: use a multiple of it"
        )
    return [rows.tolist() for rows in np.split(own, count)]


class Actors:
    """The actors of a process.

    Args:
      shares: the programs and the environments of each, see `rows_of_actors`.
      stream: the environments of the run.
      config: settings.
      mesh: the devices of the run.
      first: the number of the first update, counted from 0.
      seed: the seed of the environments.

    Attributes:
      started: whether they have been started.
      lag: how many updates the parameters behind the last `take` were behind, averaged over the
        actors.
      waited: seconds that the last `take` waited.
    """

    def __init__(
        self,
        shares: Sequence[tuple[ActingPrograms, Sequence[int]]],
        stream: HostStream,
        config: ActorsConfig,
        mesh: Mesh,
        first: int,
        seed: int,
    ):
        (programs, _), *_ = shares
        self.stream, self.config = stream, config
        self.first, self.seed = first, seed
        self.started = False
        self._segments = programs.segments
        self.versions = _Versions()
        self.lag = self.waited = 0.0
        self._version = first
        self._mesh = mesh
        self._actors = [_Actor(self, index, *share) for index, share in enumerate(shares)]

    def __enter__(self) -> "Actors":
        return self

    def __exit__(self, *_: object) -> None:
        self.versions.close()
        end = time.monotonic() + _CLOSING_SECONDS
        for actor in self._actors if self.started else ():
            actor.join(max(end - time.monotonic(), 0))

    def start(self, key: Key[Array, ""]) -> None:
        """Start to act, given the PRNG key of the run."""
        data: Any = np.asarray(jax.random.key_data(key))  # without its devices
        self.started, self.key = True, jax.random.wrap_key_data(data)
        for actor in self._actors:
            actor.start()

    def publish(self, params: Any) -> None:
        """Pass on the parameters before the next update, which are on every device."""
        self.versions.publish(self._version, params, self._version - self.config.lag)
        self._version += 1

    def take(self) -> Experience:
        """Return the rollout of all environments for the next update, on the mesh.

        Raises:
          ActorError: if the environments of an actor have failed too often, or have ended it.
          TimeoutError: if they do not answer.
        """
        began = time.monotonic()
        rollouts = [self._take(actor) for actor in self._actors]
        self.waited = time.monotonic() - began
        self.lag = float(np.mean([rollout.lag for rollout in rollouts]))
        parts = [rollout.experience for rollout in rollouts]
        if len(parts) == 1 and self._mesh.size == 1:
            return parts[0]
        local = jax.tree.map(lambda *x: np.concatenate(list(map(np.asarray, x))), *parts)
        rows = self.stream.num_envs * self._segments
        return split_local_rows(local, self._mesh, rows, axis=0)

    def _take(self, actor: _Actor) -> _Rollout:
        while True:
            # Read before the queue, whose last entry may be the actor's error.
            is_alive = actor.is_alive()
            try:
                item = actor.rollouts.get(timeout=0.5)
            except queue.Empty:
                if not is_alive:
                    raise ActorError(
                        f"{actor.name}: {self.stream.env.name} has ended its thread: set "
                        "actors.processes"
                    ) from None
                self._require_in_time(actor)
                continue
            if isinstance(item, BaseException):
                raise item
            return item

    def _require_in_time(self, actor: _Actor) -> None:
        task, processes, name = actor.task, self.config.processes, self.stream.env.name
        # Of environments in processes, the actor itself takes notice.
        if not task or time.monotonic() - task.since <= task.seconds + processes * 10:
            return
        if task.is_creation:
            doing, remedy = f"has been creating its environments, {name},", ""
        else:
            doing = f"{name} has not answered"
            remedy = "" if processes else ", or set actors.processes, which lets it be restarted"
        raise TimeoutError(
            f"{actor.name}: {doing} for {task.seconds:g} s: raise actors.timeout{remedy}"
        )
