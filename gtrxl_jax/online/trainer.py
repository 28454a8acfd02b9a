"""Online training: acting and learning in one program, on a batch of jitted environments.

    trainer = OnlineTrainer(config)
    state = trainer.init(seed)              # a pytree, the complete state of the run
    state, numbers = trainer.update(state)  # one update
    iteration = make_iteration(trainer)     # several updates in one program, see `programs`
    state, metrics = iteration(state)

An update composes two functions:

    actor, experience = trainer.act(params, actor, key)     K segments of T steps, fixed parameters
    learner, metrics = trainer.learn(learner, experience, key)

All of these functions are pure: they can be jitted, vmapped over seeds and hyperparameters, and
applied to sharded states. The memory is projected once for each segment. Acting computes the same
outputs as the segment form does, so algorithms take the acting network's outputs from the
experience instead of recomputing them.

A single-task agent is a multi-task agent with N = 1: each task has its own value output and, with
PopArt, its own return statistics. If jax_enable_x64 is set, the whole run uses float64.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, Real, Shaped

from gtrxl_jax.acting.evaluation import make_evaluate, summarize, zero_episodes
from gtrxl_jax.acting.rollout import ActingState, rollout
from gtrxl_jax.custom import (
    describe_part,
    is_custom,
    require_returned,
    require_scalars,
    wrap_errors,
)
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.host.stream import HostStream
from gtrxl_jax.envs.multitask import MultiTaskState, MultiTaskStream
from gtrxl_jax.envs.padding import pad_spaces
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.encoders import describe_arrays
from gtrxl_jax.online.algorithm import (
    Experience,
    Metrics,
    Setup,
    by_task,
    compute_bonus,
    require_same_state,
)
from gtrxl_jax.online.config import ActorsConfig, OnlineConfig, to_json
from gtrxl_jax.online.normalized import normalized_scores, read_returns, returns_of_tasks
from gtrxl_jax.ops.legal import has_choice
from gtrxl_jax.ops.popart import PopArtStatistics
from gtrxl_jax.parallel.placement import batch_field, gather_parameters, make_mesh
from gtrxl_jax.runs.arrays import replace_arrays
from gtrxl_jax.runs.divergence import pop_checks, reduce_checks
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.specs import action_spec
from gtrxl_jax.specs.values import BELONGS, first_outside
from gtrxl_jax.timestep import EpisodeStats, TimeStep, zero_timestep
from gtrxl_jax.validation import require_instance, validate


@struct.dataclass
class ActorState:
    """The environments and the agent in them, between rollouts; every array begins with the batch.

    Attributes:
      memory: memory of the core before `timestep`.
      stream: state of the environments.
      timestep: the current time step of each environment.
    """

    memory: Any = batch_field()
    stream: MultiTaskState = batch_field()
    timestep: TimeStep = batch_field()


@struct.dataclass
class TrainState:
    """The complete state of a run, sufficient to resume it.

    Attributes:
      learner: what learning changes, see `online.algorithm.Learner`.
      actor: what acting changes, an `ActorState`; () if the environments step on the host.
      key: PRNG key of the run; update n uses `fold_in(key, n)`.
      update: int, number of completed updates.
    """

    learner: Any
    actor: Any
    key: Key[Array, ""]
    update: Int[Array, ""]

    @property
    def params(self) -> Any:
        """The agent's parameters."""
        return self.learner.params


def make_setup(config: OnlineConfig, stream: Any) -> Setup:
    """Return the settings of a run that its algorithm needs."""
    return Setup(
        core=make_core(config.core).clone(param_dtype=jnp.result_type(float)),
        observation_space=stream.observation_space,
        action_space=stream.action_space,
        agent=config.agent,
        optimizer=config.optimizer,
        num_tasks=stream.num_tasks,
        num_envs=config.env.num_envs,
        segments=config.segments,
        unroll=config.unroll,
        num_updates=config.decay_updates,
    )


def sample_hyperparameters(
    config: OnlineConfig, key: Key[Array, ""]
) -> dict[str, Float[Array, ""]]:
    """Return the hyperparameters by name; those in `config.sweep` are sampled log-uniformly.

    They are sampled independently, and the value of each does not depend on which others are.
    """
    names = config.hyperparameters
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))

    def value(name: str) -> Float[Array, ""]:
        if name not in config.sweep:
            owner = config if name == "learning_rate" else config.algorithm
            return jnp.asarray(getattr(owner, name), float)
        low, high = (jnp.log(jnp.asarray(z, float)) for z in config.sweep[name])
        return jnp.exp(jax.random.uniform(keys[name], minval=low, maxval=high))

    return {name: value(name) for name in names}


class OnlineTrainer:
    """The pure functions of an online run; implements `Trainer`.

    Attributes:
      config: config of the run.
      stream: environments of the run.
      algorithm: algorithm of the run.
      agent: the agent that it trains.

    Raises:
      TypeError: if the config, or a field, is of another type.
      ValueError: if the config is invalid; nothing is compiled before this check.
    """

    progress_metrics: tuple[str, ...] = ("episode/return", "episode/success")

    def __init__(self, config: OnlineConfig):
        remedy = "preset(NAME) of gtrxl_jax.online returns one"
        require_instance("config", config, OnlineConfig, remedy)
        validate(config)
        if config.env.references and not config.env.reference_returns:
            table = read_returns(config.env.references)
            env = dataclasses.replace(config.env, reference_returns=table)
            config = dataclasses.replace(config, env=env)
        self._references = returns_of_tasks(config.env)
        self.config, self.config_json = config, to_json(config)
        self.stream: Any = self.make_stream()
        self.algorithm = config.algorithm.make(make_setup(config, self.stream))
        self.agent = self.algorithm.agent
        self.num_iterations = config.num_iterations
        self.steps_per_iteration = config.steps_per_iteration
        evaluation = config.evaluation
        self.policy = self.algorithm.policy(evaluation.actions)
        names = ", ".join(dict.fromkeys(name for name, _ in config.env.members))
        self.title = f"{config.core.name}, trained by {config.algorithm.name} in {names}"
        self.notes: Sequence[str] = describe_arrays(self.agent.encoder)
        self.environment = (config.env.name, config.env.overrides)
        self.tasks = self.stream.tasks
        self.observation_space = self.stream.observation_space
        self.action_space = self.stream.action_space
        self._play = make_evaluate(self.policy, self.stream.tasks, evaluation.episodes)
        if is_custom(self.algorithm):
            require_consistent_update(self)

    def make_stream(self) -> Any:
        """Create the environments, divided equally among the tasks, with common spaces."""
        env = self.config.env
        if is_host_env(env.first):
            raise ValueError(
                f"env.name {env.first} steps on the host: create the trainer by make_trainer of "
                "gtrxl_jax.online"
            )
        for name, _ in env.members:
            if is_host_env(name):
                raise ValueError(
                    f"env.tasks: {name} is on the host, and {env.first} is not: use one kind"
                )
        if env.wrappers:
            raise ValueError(
                f"env.wrappers are of environments on the host, unlike {env.first}: omit them"
            )
        for field in dataclasses.fields(ActorsConfig):
            if (value := getattr(self.config.actors, field.name)) != field.default:
                raise ValueError(
                    f"actors.{field.name} {value} is of environments on the host, unlike "
                    f"{env.first}: leave it at {field.default}"
                )
        share = env.num_envs // env.num_tasks
        streams = [
            require_consistent_env(Stream(*make_env(name, **params), num_envs=share))
            for name, params in env.members
        ]
        return MultiTaskStream(pad_spaces(streams, [name for name, _ in env.members]))

    def programs(
        self,
        compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        devices: Sequence[Any] | None = None,
    ) -> Programs:
        """Return the programs of the run, see `Trainer.programs`."""
        return Programs(self, compiling, devices)

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return the mesh of the devices that share the environments, see `Trainer.mesh`.

        Raises:
          ValueError: if too few devices are available, or they do not divide the environments of
            a task.
        """
        config = self.config
        return make_mesh(
            config.devices,
            config.env.num_envs,
            num_tasks=config.env.num_tasks,
            parameter_shards=config.parameter_shards,
            devices=devices,
        )

    def measure_statistics(self) -> dict[str, Array]:
        """Return {}, since normalizers learn from rollouts, see `Trainer`."""
        return {}

    def init(
        self,
        seed: Int[Array, ""] | int,
        hyperparameters: dict[str, Float[Array, ""]] | None = None,
        *,
        given: Mapping[str, Any] | None = None,
    ) -> TrainState:
        """Return the state of a new run, see `Trainer.init`.

        Args:
          seed: the seed.
          hyperparameters: override the config's.
          given: see `Trainer.init`.
        """
        key, key_network, key_stream, key_sweep = jax.random.split(jax.random.key(seed), 4)
        sampled = sample_hyperparameters(self.config, key_sweep) | (hyperparameters or {})
        memory = self.agent.initial_memory(1)
        example = zero_timestep(self.observation_space, self.action_space, 1, 1)
        params = replace_arrays(
            self.agent.init(key_network, memory, example)["params"], given or {}
        )
        actor = self.init_actor(key_stream)

        def act() -> Experience:
            _, experience = self.act(params, actor, key)
            return self._compute_bonus(params, experience, sampled)[0]

        experience = jax.eval_shape(act)
        return TrainState(
            learner=self.algorithm.init(params, sampled, experience),
            actor=actor,
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    def init_actor(self, key: Key[Array, ""]) -> ActorState:
        """Start every environment, with the memory of its agent."""
        stream, timestep = self.stream.reset(key)
        if self.config.env.stagger:
            stream = self.stream.stagger(stream, jax.random.fold_in(key, len(self.tasks)))
        memory = self.agent.initial_memory(self.config.env.num_envs)
        return ActorState(memory, stream, timestep)

    def sampled_hyperparameters(self, state: TrainState) -> dict[str, Any]:
        """Return the hyperparameters in `sweep`, see `Trainer.sampled_hyperparameters`."""
        return {name: state.learner.hyperparameters[name] for name in self.config.sweep}

    def value_statistics(self, state: TrainState) -> PopArtStatistics | None:
        """Return the statistics of values, see `Algorithm.value_statistics`."""
        return self.algorithm.value_statistics(state.learner)

    def to_checkpoint(self, state: TrainState) -> TrainState:
        """Return what checkpoints keep, see `Algorithm.to_checkpoint`."""
        return dataclasses.replace(state, learner=self.algorithm.to_checkpoint(state.learner))

    def from_checkpoint(self, saved: TrainState, fresh: TrainState) -> TrainState:
        """Return the state of a resumed run, see `Algorithm.from_checkpoint`."""
        learner = self.algorithm.from_checkpoint(saved.learner, fresh.learner)
        return dataclasses.replace(saved, learner=learner)

    def act(
        self, params: Any, actor: ActorState, key: Key[Array, ""]
    ) -> tuple[ActorState, Experience]:
        """Act for K segments of T steps with fixed parameters.

        Returns the new actor; and the segments, K consecutive rows for each environment.
        """
        if self.config.segments == 1:
            return self._act_segment(params, actor, key)

        keys = jax.random.split(key, self.config.segments)
        segment = functools.partial(self._act_segment, params)
        actor, segments = jax.lax.scan(segment, actor, keys)
        experience = jax.tree.map(
            lambda x_KB: x_KB.swapaxes(0, 1).reshape(-1, *x_KB.shape[2:]), segments
        )
        return actor, experience

    def _act_segment(
        self, params: Any, actor: ActorState, key: Key[Array, ""]
    ) -> tuple[ActorState, Experience]:
        params = gather_parameters(params)
        policy, steps = self.algorithm.behavior, self.config.unroll
        acting = ActingState(
            policy.start(params, actor.memory, steps), actor.stream, actor.timestep
        )
        acting, played = rollout(policy, params, self.stream, acting, key, steps)
        *_, bootstrap = policy.act(params, acting.policy, acting.timestep, key)
        experience = Experience(
            memory=actor.memory,
            timesteps=played.timesteps,
            actions=played.actions,
            extras=played.extras,
            bootstrap=bootstrap,
            episodes=played.episodes,
            task=self.stream.task_B,
        )
        memory = policy.finish(params, acting.policy)
        return ActorState(memory, acting.stream, acting.timestep), experience

    def _compute_bonus(
        self, params: Any, experience: Experience, hyperparameters: dict[str, Float[Array, ""]]
    ) -> tuple[Experience, Metrics]:
        fixed: float = getattr(self.config.algorithm, "gamma", 1.0)
        return compute_bonus(self.agent, params, experience, hyperparameters.get("gamma", fixed))

    def learn(
        self, learner: Any, experience: Experience, key: Key[Array, ""]
    ) -> tuple[Any, tuple[Metrics, dict[str, Float[Array, " N"]]]]:
        """Update the learner; return it, and the metrics and `episode_sums`."""
        params = gather_parameters(learner.params)
        experience, bonus = self._compute_bonus(params, experience, learner.hyperparameters)
        learner, metrics = self.algorithm.update(learner, experience, key)
        metrics |= bonus
        steps = experience.timesteps
        outside = first_outside(self.observation_space, steps.observation)
        metrics |= {"finite/observation": outside[0] == BELONGS, "outside": outside}
        if steps.legal is not None:
            sizes = action_spec(self.action_space).discrete
            metrics["finite/legal actions"] = jnp.all(has_choice(steps.legal, sizes))
        return learner, (
            metrics,
            episode_sums(experience.episodes, experience.task, self.stream.num_tasks),
        )

    def update(
        self, state: TrainState, data: Any = None, stage: Hashable = None
    ) -> tuple[TrainState, tuple[Metrics, dict[str, Float[Array, " N"]]]]:
        """Act and learn. Returns the new state, and the metrics and `episode_sums`."""
        key = jax.random.fold_in(state.key, state.update)
        params = self.algorithm.acting_params(state.learner)
        with jax.named_scope("act"):
            actor, experience = self.act(params, state.actor, key)
        return self.learn_from(state, actor, experience)

    def learn_from(self, state: TrainState, actor: Any, experience: Experience) -> Any:
        """Learn from an update's experience, after which the actor is `actor`; see `update`."""
        key = jax.random.fold_in(state.key, state.update)
        # Acting has drawn its own keys from 0 to its number of steps, exclusively.
        key = jax.random.fold_in(key, self.config.segments * self.config.unroll)
        with jax.named_scope("learn"):
            learner, metrics = self.learn(state.learner, experience, key)
        return TrainState(learner, actor, state.key, state.update + 1), metrics

    def feed(self, first: int, mesh: Mesh) -> Generator[tuple[None, None], None, None]:
        """Yield (None, None) for each iteration: there is a single stage, and no dataset."""
        yield from itertools.repeat((None, None), self.num_iterations + 1 - first)

    def summarize(
        self,
        metrics: tuple[dict[str, Real[Array, " U"]], dict[str, Float[Array, "U N"]]],
        state: Any = None,
        data: Any = None,
    ) -> Metrics:
        """Compute means over an iteration's updates, and over the episodes finished in it."""
        learning, sums = dict(metrics[0]), metrics[1]
        outside = learning.pop("outside")
        checks = pop_checks(learning)
        means = {name: jnp.mean(x_U) for name, x_U in learning.items()}
        return means | episode_means(sums) | reduce_checks(checks, outside)

    @property
    def on_host(self) -> bool:
        """Whether the environments are on the host, see `Trainer`."""
        return isinstance(self.stream, HostStream)

    def score_shapes(self) -> dict[str, Shaped[Array, " _"]]:
        """Return scores of zeros, see `Trainer.score_shapes`."""
        return self.scores(zero_episodes(self.stream.tasks))

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " _"]]:
        """Return the scores of fresh episodes, see `EpisodeStats.scores`, also by task if several.

        With references, also the normalized scores, of all episodes together.
        """
        return self.scores(self._play(params, key))

    def scores(self, episodes: EpisodeStats) -> dict[str, Shaped[Array, " _"]]:
        """Return the scores of the episodes `[N, E]` of an evaluation."""
        scores = summarize(episodes)
        if self._references is not None:
            scores |= normalized_scores(episodes.episode_return, *self._references)
        return scores


def episode_sums(
    episodes: EpisodeStats, task_B: Int[Array, " B"], num_tasks: int
) -> dict[str, Float[Array, " N"]]:
    """Sum statistics `[B, T]` over the finished episodes of each of N tasks, and count these."""
    task_BN = jax.nn.one_hot(task_B, num_tasks, dtype=bool)
    numbers = episodes.scores | {"ended": jnp.ones_like(episodes.done)}

    def sum_by_task(x_BT: Array) -> Array:
        sum_B = jnp.sum(jnp.where(episodes.done, x_BT.astype(jnp.float32), 0), axis=1)
        return jnp.sum(jnp.where(task_BN, sum_B[:, None], 0), axis=0)

    return {name: sum_by_task(x_BT) for name, x_BT in numbers.items()}


def episode_means(sums: dict[str, Float[Array, "U N"]]) -> Metrics:
    """Compute means over the episodes finished in U updates: `episode/return`, also for each task.

    Means are NaN if no episode finished. `episode/ended` is the number of finished episodes.
    """
    sums = {name: jnp.sum(sum_UN, axis=0) for name, sum_UN in sums.items()}
    ended_N = sums.pop("ended")
    means: Metrics = {}
    for name, sum_N in sums.items():
        means |= by_task(f"episode/{name}", sum_N / ended_N)
        means[f"episode/{name}"] = jnp.sum(sum_N) / jnp.sum(ended_N)
    return means | {"episode/ended": jnp.sum(ended_N)}


def require_consistent_update(trainer: OnlineTrainer) -> None:
    """Check an update of a custom algorithm, whose errors in a program would not name it.

    Compiles nothing.

    Raises:
      ValueError: naming the class of the algorithm, its file and line, and what an update returns
        with another shape or dtype than it should; or an error in its methods.
    """
    algorithm = trainer.algorithm

    def update(state: TrainState) -> Any:
        params = algorithm.acting_params(state.learner)
        _, experience = trainer.act(params, trainer.init_actor(state.key), state.key)
        hyperparameters = state.learner.hyperparameters
        experience, _ = trainer._compute_bonus(state.params, experience, hyperparameters)
        returned = algorithm.update(state.learner, experience, state.key)
        require_returned("algorithm", algorithm, "update", returned, ("learner", "metrics"))
        return returned

    with wrap_errors("algorithm", algorithm):
        state = jax.eval_shape(trainer.init, 0)
        learner, metrics = jax.eval_shape(update, state)
    require_same_state(algorithm, state.learner, learner)
    where = describe_part("algorithm", algorithm, "update")
    require_scalars(where, {f"the metric {name}": x for name, x in metrics.items()})
