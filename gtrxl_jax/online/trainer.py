"""Online training: V-MPO on a batch of jitted environments, rollout and learner in one program.

    trainer = OnlineTrainer(config)
    state = trainer.init(seed)              # a pytree, the complete state of the run
    state, numbers = trainer.update(state)  # one update
    iteration = make_iteration(trainer)     # several updates in one program, see `programs`
    state, metrics = iteration(state)

All of these functions are pure: they can be jitted, vmapped over seeds and hyperparameters, and
applied to sharded states. An update consists of T steps of acting with the target network, whose
memory is projected only once; one forward and backward pass of the online network over the T + 1
steps; and one optimiser step.

Acting computes the same outputs as the target network does on the segment, so the target
distributions are taken from the rollout instead of being recomputed.

A single-task agent is a multi-task agent with N = 1: each task has its own value output and, with
PopArt, its own return statistics. If jax_enable_x64 is set, the whole run uses float64.
"""

import dataclasses
import itertools
from collections.abc import Generator, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, Shaped

from gtrxl_jax.acting.evaluation import make_evaluate, summarise
from gtrxl_jax.acting.policy import AgentPolicy
from gtrxl_jax.acting.rollout import ActingState, Rollout, rollout
from gtrxl_jax.envs.multitask import MultiTaskStream
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.agent import Agent, make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.online.episodes import Summary, episode_means, episode_sums
from gtrxl_jax.online.hyperparameters import (
    Hyperparameters,
    draw_hyperparameters,
    drawn_hyperparameters,
)
from gtrxl_jax.online.state import TrainState
from gtrxl_jax.online.vmpo import VMPOLearner
from gtrxl_jax.ops import popart
from gtrxl_jax.parallel.placement import gather_parameters, make_mesh
from gtrxl_jax.runs.divergence import over_updates
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import zero_timestep
from gtrxl_jax.validation import validate


def make_stream(config: OnlineConfig) -> MultiTaskStream:
    """Create the environments of a run, divided equally among its tasks."""
    env = config.env
    share = env.num_envs // env.num_tasks
    return MultiTaskStream(
        tuple(
            Stream(*make_env(env.name, **{**env.params, **task}), num_envs=share)
            for task in env.tasks or ({},)
        )
    )


def make_run_agent(config: OnlineConfig, stream: MultiTaskStream) -> Agent:
    """Create the agent of a run."""
    settings = dataclasses.asdict(config.agent)
    del settings["popart"], settings["popart_rate"]
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
      policy, title, environment, observation_space, action_space, config_json,
        num_iterations, steps_per_iteration: see `Trainer`.

    Raises:
      ValueError: if the config is invalid; nothing is compiled before this check.
    """

    shown: tuple[str, ...] = ("episode/return", "episode/success")

    def __init__(self, config: OnlineConfig):
        validate(config)
        self.config, self.config_json = config, to_json(config)
        self.stream = make_stream(config)
        self.agent = make_run_agent(config, self.stream)
        self.num_iterations, self.steps_per_iteration = (
            config.num_iterations,
            config.steps_per_iteration,
        )
        evaluation = config.evaluation
        self.policy = AgentPolicy(self.agent, evaluation.policy)
        self._behaviour = AgentPolicy(self.agent)
        self.title = f"{config.core.name}, trained by V-MPO in {config.env.name}"
        self.environment = (config.env.name, dict(config.env.params))
        self.observation_space = self.stream.observation_space
        self.action_space = self.stream.action_space
        self._play = make_evaluate(self.policy, self.stream.tasks, evaluation.episodes)
        self.learner = VMPOLearner(config, self.agent, self.stream.task_B)

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

    def hyperparameters(self, key: Key[Array, ""]) -> Hyperparameters:
        """Return the config's hyperparameters, with those in `sweep` sampled."""
        return draw_hyperparameters(self.config, action_spec(self.stream.action_space), key)

    def init(
        self, seed: Int[Array, ""] | int, hyperparameters: Hyperparameters | None = None
    ) -> TrainState:
        """Return the state of a new run. `hyperparameters` override those of the config."""
        key, key_network, key_stream, key_sweep = jax.random.split(jax.random.key(seed), 4)
        hyperparameters = hyperparameters or self.hyperparameters(key_sweep)
        batch = self.config.env.num_envs
        memory = self.agent.initial_memory(1)
        example = zero_timestep(self.observation_space, self.action_space, 1, 1)
        params = self.agent.init(key_network, memory, example)["params"]
        trainable, optimiser = self.learner.init(params, hyperparameters)
        stream, timestep = self.stream.reset(key_stream)
        return TrainState(
            trainable=trainable,
            # Copied, since a donated state must not contain the same buffer twice.
            target=jax.tree.map(jnp.copy, params),
            optimiser=optimiser,
            popart=popart.init(self.stream.num_tasks),
            stream=stream,
            timestep=timestep,
            memory=self.agent.initial_memory(batch),
            key=key,
            update=jnp.zeros((), jnp.int32),
            hyperparameters=hyperparameters,
        )

    def drawn(self, state: TrainState) -> dict[str, Float[Array, "*S"]]:
        """Return the hyperparameters in `sweep`, see `Trainer.drawn`."""
        return drawn_hyperparameters(self.config, state.hyperparameters)

    def rollout(self, state: TrainState, key: Key[Array, ""]) -> tuple[Any, ActingState, Rollout]:
        """Act for T steps; return the final memory and acting state, and the rollout."""
        config, params = self.config, gather_parameters(state.target)
        cache = self._behaviour.start(params, state.memory, config.unroll)
        acting = ActingState(cache, state.stream, state.timestep)
        acting, played = rollout(self._behaviour, params, self.stream, acting, key, config.unroll)
        return self._behaviour.finish(params, acting.policy), acting, played

    def update(
        self, state: TrainState, data: Any = None, stage: Hashable = None
    ) -> tuple[TrainState, tuple[Summary, Summary]]:
        """Roll out and learn. Returns the new state, and the metrics and `episode_sums`."""
        del data, stage
        key = jax.random.fold_in(state.key, state.update)
        memory, acting, played = self.rollout(state, key)
        state, metrics = self.learner.learn(state, played)
        state = dataclasses.replace(
            state, memory=memory, stream=acting.stream, timestep=acting.timestep
        )
        sums = episode_sums(played.episodes, self.stream.task_B, self.stream.num_tasks)
        return state, (metrics, sums)

    def feed(self, first: int, mesh: Mesh) -> Generator[tuple[None, None], None, None]:
        """Yield (None, None) for each iteration: there is a single stage, and no dataset."""
        yield from itertools.repeat((None, None), self.num_iterations + 1 - first)

    def summarise(self, metrics: tuple[Summary, Summary]) -> Summary:
        """Compute means over an iteration's updates, and over the episodes finished in it."""
        learning, sums = metrics
        diverged = over_updates(learning["nonfinite"])
        means = {k: jnp.mean(x_U) for k, x_U in learning.items() if k != "nonfinite"}
        return means | episode_means(sums) | diverged

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " E"]]:
        """Return the returns, lengths and successes of fresh episodes, also by task if several."""
        return summarise(self._play(params, key))
