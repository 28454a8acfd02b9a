"""Online training in environments that step on the host: actors beside the learner.

    trainer = make_trainer(config)      a `HostTrainer` if the environment's name is of the host

The learner's program is `HostTrainer.update`, which learns as the jitted trainer does, from the
segments that `actors` bring. Checkpoints keep the learner; the environments, whose state cannot be
saved in general, are restarted when a run resumes.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.envs.host.wrappers import require_wrappers
from gtrxl_jax.online.actors import ActingPrograms, Actors, rows_of_actors
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.trainer import OnlineTrainer, TrainState
from gtrxl_jax.parallel.placement import AXES
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.validation import validate


def make_trainer(config: OnlineConfig) -> OnlineTrainer:
    """Return the trainer of a run, by where its environments step."""
    is_host = False
    if isinstance(config, OnlineConfig):
        validate(config)
        is_host = is_host_env(config.env.first)
    return (HostTrainer if is_host else OnlineTrainer)(config)


def make_host_stream(config: OnlineConfig) -> HostStream:
    """Create the description of the environments of a run.

    Raises:
      ValueError: if an option is of jitted environments only, or an environment does not fit.
    """
    env = config.env
    require_wrappers(env.wrappers)
    for name, _ in env.members:
        if not is_host_env(name):
            raise ValueError(f"env.tasks: {name} is jitted, and {env.first} is not: use one kind")
    if env.stagger:
        raise ValueError(f"env.stagger is of jitted environments, unlike {env.first}: omit it")
    if env.trial > 1:
        raise ValueError(f"env.trial is of jitted environments, unlike {env.first}: omit it")
    if config.num_seeds > 1:
        raise ValueError(
            f"num_seeds {config.num_seeds} are trained in one program, but {env.first} steps on "
            "the host: start a run for each seed, as gtrxl sweep does with seed = [0, 1] in its "
            "[grid]"
        )
    share = config.actors.count * env.num_tasks
    if env.num_envs % share:
        raise ValueError(
            f"env.num_envs {env.num_envs} does not divide over actors.count "
            f"{config.actors.count} and {env.num_tasks} tasks: use a multiple of {share}"
        )
    members = [HostEnv(name, params, env.wrappers) for name, params in env.members]
    return HostStream(tuple(members), env.num_envs)


class HostTrainer(OnlineTrainer):
    """The functions of an online run in environments on the host; implements `Trainer`.

    The state has no actor, whose environments are not arrays. The data of an update are its
    experience, and the statistics of the values that acted, see `Algorithm.value_statistics`.
    """

    stream: Any

    def __init__(self, config: OnlineConfig):
        super().__init__(config)
        actors = config.actors
        self.notes = [
            *self.notes,
            f"{actors.count} actor(s) on the host, {actors.lag} update(s) behind; environments "
            "are restarted when a run resumes",
            *(
                f"{env.name} has no time limit that is known, and evaluations wait for the end of "
                f"an episode: set {env.limit_setting}"
                for env in self.stream.envs
                if env.facts.limit is None
            ),
        ]

    def make_stream(self) -> HostStream:
        """Create the environments of the run."""
        return make_host_stream(self.config)

    def programs(self, *arguments: Any, **options: Any) -> "HostPrograms":
        """Return the programs of the run."""
        return HostPrograms(self, *arguments, **options)

    def init(self, *arguments: Any, **options: Any) -> TrainState:
        """Return the state of a new run, see `OnlineTrainer.init`, without that of environments."""
        return dataclasses.replace(super().init(*arguments, **options), actor=())

    def experience(self) -> Any:
        """Return the shapes and dtypes of what an update learns from."""

        def act() -> Any:
            state = super(HostTrainer, self).init(0)
            return self.act(state.params, state.actor, state.key)[1]

        return jax.eval_shape(act)

    def update(self, state: TrainState, data: Any = None, stage: Hashable = None) -> Any:
        """Learn from experience. Returns what `OnlineTrainer.update` does."""
        experience, acted = data
        experience = self.algorithm.convert_values(state.learner, experience, acted)
        return self.learn_from(state, (), experience)


class HostPrograms(Programs):
    """The programs of a run in environments on the host, and its actors.

    Args:
      trainer, compiling, devices: see `Programs`.
    """

    is_blocking = True

    def __init__(
        self,
        trainer: HostTrainer,
        compiling: Callable[[], Any] = contextlib.nullcontext,
        devices: Sequence[Any] | None = None,
    ):
        super().__init__(trainer, compiling, devices)
        self._trainer: Any = trainer
        self.updates = 1
        config = trainer.config
        rows = rows_of_actors(self.mesh, config.env.num_envs, config.actors.count)
        policies = [trainer.algorithm.behavior.of_rows(part) for part in rows]
        sizes = config.segments, config.unroll, len(rows[0])

        @functools.cache
        def acting(policy: AgentPolicy, device: jax.Device) -> ActingPrograms:
            return ActingPrograms(policy, trainer.stream, *sizes, device)

        # Actors of the same policy on a device share its programs.
        places = itertools.cycle(self.mesh.local_devices)
        self._shares = [
            (acting(policy, device), part)
            for policy, part, device in zip(policies, rows, places, strict=False)
        ]

    def feed(self, first: int) -> Generator[tuple[Any, Any], None, None]:
        """Yield None and the actors for each iteration; they end when it is closed."""
        config = self._trainer.config
        updates = (first - 1) * config.updates_per_iteration
        stream = self._trainer.stream
        with Actors(self._shares, stream, config.actors, self.mesh, updates, config.seed) as actors:
            yield from ((stage, actors) for stage, _ in super().feed(first))

    def iteration(self, stage: Hashable, data: Any) -> Callable[..., Any]:
        """Return the function from (state, data) to new state and metrics; it donates the state."""
        if stage not in self._iterations:
            with self._compiling():
                lowered = self.lower(stage, data)
                _, metrics = lowered.out_info
                self._update = lowered.compile()
                self._publish, self._summarize = self._compile_rest(metrics)
                for programs in dict.fromkeys(programs for programs, _ in self._shares):
                    programs.compile(self.like.params)
            self._iterations[stage] = self._iterate
        return self._iterations[stage]

    def _compile_rest(self, metrics: Any) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        """Return what passes parameters on, and what summarizes the metrics of an iteration."""
        trainer = self._trainer
        replicate = functools.partial(jax.jit, out_shardings=self._everywhere)

        def publish(learner: Any) -> Any:
            algorithm = trainer.algorithm
            published = algorithm.acting_params(learner), algorithm.value_statistics(learner)
            # Copies, since the learner's program is donated its state.
            return jax.tree.map(jnp.copy, published)

        def summarize(metrics: Any, state: TrainState) -> Any:
            return trainer.summarize(jax.tree.map(lambda *x: jnp.stack(x), *metrics), state)

        of_update = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._everywhere), metrics
        )
        of_updates = [of_update] * trainer.config.updates_per_iteration
        return (
            replicate(publish).lower(self.like.learner).compile(),
            replicate(summarize).lower(of_updates, self.like).compile(),
        )

    def lower(self, stage: Hashable, data: Any) -> jax.stages.Lowered:
        """Lower the program of an update, to which each process brings its part of the data."""
        over_batch = NamedSharding(self.mesh, PartitionSpec(AXES))
        experience = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=over_batch),
            self._trainer.experience(),
        )
        statistics = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._everywhere),
            self._trainer.value_statistics(self.like),
        )
        program = jax.jit(
            self._trainer.update,
            donate_argnums=0,
            out_shardings=(self._placed, self._everywhere),
            compiler_options=self._options,
        )
        with jax.set_mesh(self.mesh):
            return program.lower(self.like, (experience, statistics))

    def _pass_on(self, state: TrainState, actors: Actors) -> None:
        """Publish the acting parameters, and remember the statistics of their values."""
        params, statistics = self._publish(state.learner)
        self._statistics.append(statistics)
        actors.publish(params)

    def _iterate(self, state: TrainState, actors: Actors) -> tuple[TrainState, Any]:
        """Make the updates of an iteration."""
        if not actors.started:
            actors.start(state.key)
            # Those of the versions that are still needed: the first is the next to be learned from.
            self._statistics = collections.deque[Any](maxlen=actors.config.lag + 1)
            self._pass_on(state, actors)
        began, waited, lags, metrics = time.monotonic(), 0.0, [], []
        for _ in range(self._trainer.config.updates_per_iteration):
            experience = actors.take()
            waited += actors.waited
            lags.append(actors.lag)
            with jax.set_mesh(self.mesh):
                state, of_update = self._update(state, (experience, self._statistics[0]))
            self._pass_on(state, actors)
            metrics.append(of_update)
        summary = jax.device_get(self._summarize(metrics, state))
        seconds = time.monotonic() - began
        return state, summary | {
            "actors/lag": np.mean(lags, dtype=np.float32),
            "actors/learner_waits": np.float32(waited / seconds),
        }
