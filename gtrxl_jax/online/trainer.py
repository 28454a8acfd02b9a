"""Online training: rollout and learner in one program, on a batch of jitted environments.

    trainer = OnlineTrainer(config)
    state = trainer.init(seed)              # a pytree, the complete state of the run
    state, numbers = trainer.update(state)  # one update
    iteration = make_iteration(trainer)     # several updates in one program, see `programs`
    state, metrics = iteration(state)

All of these functions are pure: they can be jitted, vmapped over seeds and hyperparameters, and
applied to sharded states. An update consists of acting with fixed parameters, for K segments of T
steps, and of what the algorithm learns from them. The memory is projected once for each segment.

Acting computes the same outputs as the segment form does, so algorithms take those of the acting
network from the rollout instead of recomputing them.

A single-task agent is a multi-task agent with N = 1: each task has its own value output and, with
PopArt, its own return statistics. If jax_enable_x64 is set, the whole run uses float64.
"""

import dataclasses
import itertools
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, Real, Shaped

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.acting.rollout import ActingState, rollout
from gtrxl_jax.envs.consistency import require_consistent
from gtrxl_jax.envs.multitask import MultiTaskStream
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import EpisodeStats, Stream
from gtrxl_jax.envs.united import unite
from gtrxl_jax.nn.agent import Agent, make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.encoders import describe_arrays
from gtrxl_jax.online.algorithm import Experience
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.online.consistency import require_consistent_update
from gtrxl_jax.online.episodes import Summary, episode_means, episode_sums
from gtrxl_jax.online.hyperparameters import draw_hyperparameters
from gtrxl_jax.online.normalized import normalized_scores, read_returns, returns_of_tasks
from gtrxl_jax.online.state import TrainState
from gtrxl_jax.parallel.placement import gather_parameters, make_mesh
from gtrxl_jax.runs.arrays import replace_arrays
from gtrxl_jax.runs.divergence import HEALTHY, first_nonfinite, over_updates
from gtrxl_jax.specs.values import BELONGS, first_outside
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import validate


def make_stream(config: OnlineConfig) -> MultiTaskStream:
    """Create the environments of a run, divided equally among its tasks, with common spaces."""
    env = config.env
    share = env.num_envs // env.num_tasks
    streams = [
        require_consistent(Stream(*make_env(name, **params), num_envs=share))
        for name, params in env.members
    ]
    return MultiTaskStream(unite(streams, [name for name, _ in env.members]))


def make_run_agent(config: OnlineConfig, stream: MultiTaskStream) -> Agent:
    """Create the agent of a run."""
    settings = dataclasses.asdict(config.agent)
    settings.pop("normalize")  # a setting of learning
    return make_agent(
        make_core(config.core).clone(param_dtype=jnp.result_type(float)),
        stream.observation_space,
        stream.action_space,
        num_tasks=stream.num_tasks,
        **settings,
    )


class OnlineTrainer:
    """The pure functions of an online run; implements `Trainer`.

    Attributes:
      config: config of the run.
      stream: environments of the run.
      agent: agent of the run.
      policy, title, notes, environment, observation_space, action_space, config_json,
        num_iterations, steps_per_iteration: see `Trainer`.

    Raises:
      ValueError: if the config is invalid; nothing is compiled before this check.
    """

    shown: tuple[str, ...] = ("episode/return", "episode/success")

    def __init__(self, config: OnlineConfig):
        validate(config)
        if config.env.references and not config.env.reference_returns:
            table = read_returns(config.env.references)
            env = dataclasses.replace(config.env, reference_returns=table)
            config = dataclasses.replace(config, env=env)
        self._references = returns_of_tasks(config.env)
        self.config, self.config_json = config, to_json(config)
        self.stream = make_stream(config)
        self.agent = make_run_agent(config, self.stream)
        self.num_iterations = config.num_iterations
        self.steps_per_iteration = config.steps_per_iteration
        evaluation = config.evaluation
        self.policy = AgentPolicy(self.agent, evaluation.policy)
        self._behavior = AgentPolicy(self.agent)
        names = ", ".join(dict.fromkeys(name for name, _ in config.env.members))
        self.title = f"{config.core.name}, trained by {config.algorithm.name} in {names}"
        self.notes: Sequence[str] = describe_arrays(self.agent)
        self.environment = (config.env.name, dict(config.env.params))
        self.tasks = self.stream.tasks
        self.observation_space = self.stream.observation_space
        self.action_space = self.stream.action_space
        self._play = make_evaluate(self.policy, self.stream.tasks, evaluation.episodes)
        self.algorithm = config.algorithm.make(config, self.agent)
        require_consistent_update(self)

    def mesh(self) -> Mesh:
        """Return the mesh of the devices that share the environments.

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
        )

    def measured(self) -> dict[str, Array]:
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
          hyperparameters: override those of the config.
          given: see `Trainer.init`.
        """
        key, key_network, key_stream, key_sweep = jax.random.split(jax.random.key(seed), 4)
        drawn = draw_hyperparameters(self.config, key_sweep)
        memory = self.agent.initial_memory(1)
        example = zero_timestep(self.observation_space, self.action_space, 1, 1)
        params = replace_arrays(
            self.agent.init(key_network, memory, example)["params"], given or {}
        )
        stream, timestep = self.stream.reset(key_stream)
        if self.config.env.stagger:
            stream = self.stream.stagger(stream, jax.random.fold_in(key_stream, len(self.tasks)))
        return TrainState(
            learner=self.algorithm.init(params, drawn | (hyperparameters or {})),
            stream=stream,
            timestep=timestep,
            memory=self.agent.initial_memory(self.config.env.num_envs),
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    def drawn(self, state: TrainState) -> dict[str, Any]:
        """Return the hyperparameters in `sweep`, see `Trainer.drawn`."""
        return {name: state.learner.hyperparameters[name] for name in self.config.sweep}

    def rollout(
        self, state: TrainState, key: Key[Array, ""]
    ) -> tuple[TrainState, Experience, EpisodeStats]:
        """Act for K segments of T steps with fixed parameters.

        Returns the new state; the segments, K consecutive rows for each environment; and their
        statistics `[B, T]`, B being the number of segments.
        """
        if self.config.segments == 1:
            return self._segment(state, key)

        def segment(state: TrainState, key: Key[Array, ""]) -> tuple[TrainState, Any]:
            state, *segment = self._segment(state, key)
            return state, segment

        keys = jax.random.split(key, self.config.segments)
        state, segments = jax.lax.scan(segment, state, keys)
        experience, episodes = jax.tree.map(
            lambda x_KB: x_KB.swapaxes(0, 1).reshape(-1, *x_KB.shape[2:]), segments
        )
        return state, experience, episodes

    def _segment(
        self, state: TrainState, key: Key[Array, ""]
    ) -> tuple[TrainState, Experience, EpisodeStats]:
        params = gather_parameters(self.algorithm.acting_params(state.learner))
        policy, steps = self._behavior, self.config.unroll
        acting = ActingState(
            policy.start(params, state.memory, steps), state.stream, state.timestep
        )
        acting, played = rollout(policy, params, self.stream, acting, key, steps)
        *_, bootstrap = policy.act(params, acting.policy, acting.timestep, key)
        experience = Experience(
            memory=state.memory,
            timesteps=played.timesteps,
            actions=played.actions,
            output=played.extras,
            bootstrap_BN=bootstrap.value,
            task=self.stream.task_B,
        )
        state = dataclasses.replace(
            state,
            memory=policy.finish(params, acting.policy),
            stream=acting.stream,
            timestep=acting.timestep,
        )
        return state, experience, played.episodes

    def update(
        self, state: TrainState, data: Any = None, stage: Hashable = None
    ) -> tuple[TrainState, tuple[Summary, dict[str, Float[Array, " N"]]]]:
        """Roll out and learn. Returns the new state, and the metrics and `episode_sums`."""
        key = jax.random.fold_in(state.key, state.update)
        state, experience, episodes = self.rollout(state, key)
        # The rollout has drawn its own keys from 0 to its number of steps, exclusively.
        key_learn = jax.random.fold_in(key, self.config.segments * self.config.unroll)
        learner, metrics = self.algorithm.update(state.learner, experience, key_learn)
        outside = first_outside(self.observation_space, experience.timesteps.observation)
        observed = first_nonfinite({"observation": outside[0] == BELONGS})
        metrics["nonfinite"] = jnp.where(observed == HEALTHY, metrics["nonfinite"], observed)
        metrics["outside"] = outside
        sums = episode_sums(episodes, experience.task, self.stream.num_tasks)
        state = dataclasses.replace(state, learner=learner, update=state.update + 1)
        return state, (metrics, sums)

    def feed(self, first: int, mesh: Mesh) -> Generator[tuple[None, None], None, None]:
        """Yield (None, None) for each iteration: there is a single stage, and no dataset."""
        yield from itertools.repeat((None, None), self.num_iterations + 1 - first)

    def summarize(
        self,
        metrics: tuple[dict[str, Real[Array, " U"]], dict[str, Float[Array, "U N"]]],
        state: Any = None,
        data: Any = None,
    ) -> Summary:
        """Compute means over an iteration's updates, and over the episodes finished in it."""
        learning, sums = metrics
        checks = over_updates(learning["nonfinite"], learning["outside"])
        means = {
            k: jnp.mean(x_U) for k, x_U in learning.items() if k not in ("nonfinite", "outside")
        }
        return means | episode_means(sums) | checks

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " _"]]:
        """Return the returns, lengths and successes of fresh episodes, also by task if several.

        With references, also the normalized scores, of all episodes together.
        """
        episodes = self._play(params, key)
        scores = summarize(episodes)
        if self._references is not None:
            scores |= normalized_scores(episodes.episode_return, *self._references)
        return scores
