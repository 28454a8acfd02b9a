"""Configs of online runs: nested dataclasses, presets and validation."""

import dataclasses
import math
from typing import Annotated, Any

import tyro

from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.algorithm import AgentConfig, AlgorithmConfig, register_algorithm
from gtrxl_jax.online.optimizer import OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.plugins import import_plugins, with_name
from gtrxl_jax.runs import config as run_config
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig, RunConfig
from gtrxl_jax.validation import (
    MOST_STEPS,
    number,
    require_choice,
    require_interval,
    validate,
)


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The environment and its number of parallel instances."""

    name: str = "TMazePassive-v0"
    """Name of an environment of gymnax or of this package; or of one on the host, as in
    gymnasium:CartPole-v1, envpool:Pong-v5, dmlab:rooms_watermaze, or package.module:make_env."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Environment parameters as name value pairs: --env.params corridor_length 30 penalty behind"""
    tasks: tyro.conf.UseAppendAction[tuple[dict[str, bool | int | float | str], ...]] = ()
    """A task of a multi-task agent, as name value pairs that override `params`:
    --env.tasks corridor_length 10 --env.tasks corridor_length 30. The pair `name NAME` names
    another environment, without `params`; `--env.name A B` is short for one task of each. The
    environments are divided equally among the tasks."""
    wrappers: dict[str, bool | int | str] = dataclasses.field(default_factory=dict)
    """Wrappers of an environment on the host, as name value pairs in their order: --env.wrappers
    repeat 4 grey true resize 84 stack 4, see `gtrxl_jax.envs.host.wrappers`."""
    trial: int = 1
    """Number of episodes in the same world that are joined into one, a trial: the memory is kept
    from one to the next, so that an agent can learn the world; see `gtrxl_jax.envs.trials`. 1: none
    are joined."""
    num_envs: int = 32
    """Number of parallel environments, B: the batch size of the learner."""
    stagger: bool = False
    """Truncate the first episode of each environment at a random step. Where all episodes have the
    same length, they otherwise end together, and every rollout is from the same part of all."""
    references: str = ""
    """A TOML or JSON file with the returns of a random and of a reference policy in each task, for
    normalized scores, or dmlab30; see `gtrxl_jax.online.normalized`."""
    reference_returns: Annotated[dict[str, Any], tyro.conf.Suppress] = dataclasses.field(
        default_factory=dict
    )
    """The contents of that file; the trainer records them."""

    @property
    def overrides(self) -> dict[str, Any]:
        """The arguments of `make_env` for the environment `name`."""
        return {**self.params, **self._trial}

    @property
    def _trial(self) -> dict[str, int]:
        return {"trial": self.trial} if self.trial > 1 else {}

    @property
    def members(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The name and the parameters of each task's environment."""
        members = []
        for task in self.tasks or ({},):
            own: dict[str, Any] = dict(task)
            name = str(own.pop("name", self.name))
            params = self.params if name == self.name else {}
            members.append((name, {**params, **self._trial, **own}))
        return tuple(members)

    @property
    def first(self) -> str:
        """The name of the first task's environment, whose kind is that of all."""
        return self.members[0][0]

    @property
    def num_tasks(self) -> int:
        """The number of tasks; 1 if `tasks` is empty."""
        return len(self.tasks) or 1


@dataclasses.dataclass(frozen=True)
class ActorsConfig:
    """How to act in environments on the host, see `gtrxl_jax.online.actors`."""

    count: int = 1
    """Number of actors, threads with equal shares of the environments."""
    lag: int = number(1, at_least=0)
    """How many updates the acting parameters are behind. 0: acting and learning take turns."""
    processes: bool = False
    """Give every environment a process of its own; otherwise, those of an actor step in its
    thread."""
    timeout: float = 60.0
    """The most seconds that a step of the environments may take, and the creation of each."""
    restarts: int = number(3, at_least=0)
    """How often the environments of an actor may be restarted after an error."""


@dataclasses.dataclass(frozen=True)
class OnlineConfig(RunConfig):
    """An online run: an agent and its algorithm in a batch of jitted environments."""

    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    core: CoreConfig = dataclasses.field(default_factory=core_config)
    agent: AgentConfig = dataclasses.field(default_factory=AgentConfig)
    algorithm: AlgorithmConfig = dataclasses.field(default_factory=PPOConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    sweep: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Hyperparameters sampled log-uniformly for each seed, as in the V-MPO paper, with their
    bounds: --sweep entropy_cost 0.01 0.1 learning_rate 1e-4 1e-3"""
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    actors: ActorsConfig = dataclasses.field(default_factory=ActorsConfig)
    total_steps: int = number(200_000, at_most=MOST_STEPS)
    """Number of environment steps for each seed, rounded up to a multiple of
    env.num_envs * segments * unroll * updates_per_iteration."""
    unroll: int = 32
    """Number of steps of a segment, T: the longest distance that a gradient crosses."""
    segments: int = 1
    """Number of consecutive segments of each environment in a rollout, each with the memory before
    it. Algorithms learn from a batch of env.num_envs * segments segments."""

    def check(self) -> None:
        super().check()
        if self.env.num_envs % self.env.num_tasks:
            raise ValueError(
                f"env.num_envs {self.env.num_envs} is not divisible by the number of env.tasks, "
                f"{self.env.num_tasks}: use a multiple of it"
            )
        self.algorithm.check_rollout(self.env.num_envs, self.segments, self.unroll)
        if self.agent.initial_scale >= self.agent.max_scale:
            raise ValueError(
                f"agent.initial_scale {self.agent.initial_scale} is not below agent.max_scale "
                f"{self.agent.max_scale}: lower it, or raise the maximum"
            )
        for name, bounds in self.sweep.items():
            require_choice("hyperparameter in sweep", name, self.hyperparameters)
            require_interval(f"sweep.{name}", bounds)
            owner: Any = self.optimizer if name == "learning_rate" else self.algorithm
            for bound in bounds:
                validate(dataclasses.replace(owner, **{name: bound}), "sweep.")
        if "learning_rate" in self.sweep and self.optimizer.learning_rate is not None:
            raise ValueError(
                "sweep.learning_rate and optimizer.learning_rate are both set: omit one of them"
            )
        if self.checkpoint.best and self.num_seeds > 1 and self.sweep:
            raise ValueError(
                f"checkpoint.best {self.checkpoint.best} would be a mean over seeds that differ in "
                f"sweep.{next(iter(self.sweep))}: omit one of the two, or train one seed per run"
            )

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The names of the hyperparameters that may differ between seeds, see `sweep`."""
        return ("learning_rate", *self.algorithm.hyperparameters)

    @property
    def learning_rate(self) -> float:
        """The peak learning rate: the given one, or the algorithm's."""
        given = self.optimizer.learning_rate
        return self.algorithm.learning_rate if given is None else given

    @property
    def steps_per_update(self) -> int:
        """The number of environment steps of an update: of a rollout, from which it learns."""
        return self.env.num_envs * self.segments * self.unroll

    @property
    def num_updates(self) -> int:
        """The number of updates: at least `total_steps`, in whole iterations."""
        return self.num_iterations * self.updates_per_iteration

    @property
    def decay_updates(self) -> int:
        """The number of updates over which the learning rate changes."""
        return math.ceil(self.optimizer.horizon / self.steps_per_update) or self.num_updates

    @property
    def num_iterations(self) -> int:
        """The number of iterations."""
        return math.ceil(self.total_steps / self.steps_per_iteration)

    @property
    def steps_per_iteration(self) -> int:
        """The number of environment steps of an iteration."""
        return self.steps_per_update * self.updates_per_iteration


register_algorithm("ppo", PPOConfig)
register_algorithm("vmpo", VMPOConfig)
register_algorithm("r2d2", R2D2Config)


def _default() -> OnlineConfig:
    return OnlineConfig(
        env=EnvConfig(params={"corridor_length": 30}),
        core=core_config("gtrxl", "small", memory_size=34),
    )


def _debug() -> OnlineConfig:
    return dataclasses.replace(
        _default(),
        env=EnvConfig(params={"corridor_length": 3}, num_envs=8),
        core=core_config("gtrxl", "debug"),
        agent=AgentConfig(encoder_width=16, head_width=16),
        evaluation=EvaluationConfig(episodes=32, interval=1000),
        checkpoint=CheckpointConfig(interval=1000),
        total_steps=2000,
        unroll=8,
        updates_per_iteration=5,
    )


def _paper() -> OnlineConfig:
    return dataclasses.replace(
        _default(),
        env=EnvConfig(params={"corridor_length": 500}, num_envs=128),
        core=core_config("gtrxl", "paper"),
        agent=AgentConfig(encoder_width=256),
        algorithm=VMPOConfig(
            popart=False,
            gae_lambda=1.0,
            target_period=10,
            epsilon_alpha=0.01,
            epsilon_mean=0.0075,
            epsilon_covariance=1e-5,
            multipliers="adam",
            alpha_bounds=(1e-8, 1e8),
            value_cost=1.0,
            entropy_cost=0.0,
            initial_alpha=5.0,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-4, final=1.0, clip_norm=None),
        sweep={"epsilon_alpha": (0.001, 0.1)},
        checkpoint=CheckpointConfig(interval=10_000_000),
        total_steps=1_000_000_000,
        unroll=95,
    )


def _dmlab() -> OnlineConfig:
    from gtrxl_jax.envs.host.dmlab30 import TRAIN_LEVELS  # imports all environments

    paper: Any = _paper()
    tasks: Any = tuple({"name": f"dmlab:{level}"} for level in TRAIN_LEVELS)
    return dataclasses.replace(
        paper,
        # A batch of 128, as in the paper, cannot be divided equally among 30 levels.
        env=EnvConfig(tasks[0]["name"], tasks=tasks, num_envs=120, references="dmlab30"),
        agent=AgentConfig(encoder_width=256, encoders={"instruction": "text"}),
        algorithm=dataclasses.replace(paper.algorithm, popart=True, popart_rate=1e-4),
        actors=ActorsConfig(count=4, processes=True, timeout=300.0),
        evaluation=EvaluationConfig(episodes=8, interval=100_000_000, actions="sample"),
        # The paper's 10 billion steps, if these are frames: an action lasts four.
        total_steps=2_500_000_000,
    )


def _popgym() -> OnlineConfig:
    return OnlineConfig(
        env=EnvConfig("CountRecallEasy-v0", num_envs=128, stagger=True),
        core=core_config("gtrxl", "small", memory_size=128),
        agent=AgentConfig(clock=True),
        # Many of these tasks reward each answer at once, with noise: hence less credit for earlier
        # actions, and larger rollouts.
        algorithm=PPOConfig(gae_lambda=0.8, entropy_cost=0.01, minibatches=8),
        total_steps=2_000_000,
        unroll=64,
    )


PRESETS = {
    "default": _default,
    "debug": _debug,
    "popgym": _popgym,
    "paper": _paper,
    "dmlab": _dmlab,
}
"""default: minutes on two CPU cores; debug: seconds; popgym: for all of POPGym; paper: the sizes of
Parisotto et al. 2019; dmlab: those in DMLab-30, which `gtrxl_jax.envs.host.dmlab` describes."""


def preset(name: str = "default") -> OnlineConfig:
    """Return the online config with the given name.

    Raises:
      ValueError: if the name is unknown.
    """
    return PRESETS[require_choice("preset", name, PRESETS)]()


def with_parts(
    config: OnlineConfig,
    core: str | None = None,
    core_preset: str | None = None,
    algorithm: str | None = None,
) -> OnlineConfig:
    """Switch to another core or algorithm, keeping the changed settings that both have.

    Modules of custom parts are imported.

    Args:
      config: the config to change.
      core: name of the core; by default the config's.
      core_preset: a size of the core, which replaces all of its settings.
      algorithm: name of the algorithm; by default the config's.

    Raises:
      ValueError: if a name is unknown.
    """
    import_plugins(filter(None, (core, algorithm)))
    if core_preset:
        config = dataclasses.replace(
            config, core=core_config(core or config.core.name, core_preset)
        )
    elif core:
        config = dataclasses.replace(config, core=with_name(config.core, core))
    if algorithm:
        config = dataclasses.replace(config, algorithm=with_name(config.algorithm, algorithm))
        # The sweep may be of settings that this algorithm lacks.
        sweep = {k: v for k, v in config.sweep.items() if k in config.hyperparameters}
        config = dataclasses.replace(config, sweep=sweep)
    return config


run_config.CONFIGS["online"] = OnlineConfig


def to_json(config: OnlineConfig) -> str:
    """Return the config as JSON, to be stored with the results."""
    return run_config.to_json("online", config)


def from_json(text: str) -> OnlineConfig:
    """Parse a config written by `to_json`; raises as `run_config.from_json` does."""
    return run_config.from_json("online", OnlineConfig, text)
