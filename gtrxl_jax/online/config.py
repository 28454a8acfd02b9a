"""What an online run is: nested dataclasses, presets, and the checks made before anything else."""

import dataclasses
import math

import tyro

from gtrxl_jax.nn.cores.registry import CoreConfig, core_config
from gtrxl_jax.runs.config import serialization
from gtrxl_jax.runs.config.run import CheckpointConfig, EvaluationConfig, RunConfig
from gtrxl_jax.validation import check_choice, choice, interval, number


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The environment and how many of it run side by side."""

    name: str = "TMazePassive-v0"
    """A name known to gymnax or to this package."""
    params: dict[str, int | float | str] = dataclasses.field(default_factory=dict)
    """Its parameters, as name value pairs: --env.params corridor_length 30 penalty behind"""
    tasks: tyro.conf.UseAppendAction[tuple[dict[str, int | float | str], ...]] = ()
    """A task of a multi-task agent, as name value pairs that change `params` for it:
    --env.tasks corridor_length 10 --env.tasks corridor_length 30. All share the environments
    equally."""
    num_envs: int = 32
    """Environments side by side, B: the batch of the learner."""

    @property
    def num_tasks(self) -> int:
        """One if no tasks are told apart."""
        return len(self.tasks) or 1


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """All of the agent but its memory core."""

    encoder: str = "auto"
    """Of observations: auto, mlp, conv or resnet (the paper's)."""
    encoder_width: int = 64
    """Features of an observation."""
    head_width: int = 256
    """Hidden units of the policy's and the value's head (256 in the paper)."""
    reward_clip: float | None = None
    """Clip the previous reward, as an input, to this size."""
    initial_scale: float = 0.5
    """Standard deviation of a new Gaussian policy, in halves of the action's range."""
    popart: bool = True
    """Normalise values and advantages by moving statistics of each task's returns (PopArt), so that
    losses do not depend on the units of the rewards."""
    popart_rate: float = number(3e-5, below=1)
    """Weight of one sample in these statistics: they reach back about 1 / rate samples. The paper's
    1e-4 was for billions of steps."""
    memoryless: bool = False
    """Show the core each step as the first of an episode: the control for what memory does."""


@dataclasses.dataclass(frozen=True)
class VMPOConfig:
    """V-MPO's settings; bounds in nats."""

    gamma: float = number(0.99, at_most=1)
    """Discount factor."""
    gae_lambda: float = number(0.95, at_least=0, at_most=1)
    """Lambda of returns and advantages (GAE). 1: n-step returns, the paper's."""
    target_period: int = 5
    """Learner steps between copies of the online network to the target, which acts."""
    epsilon_eta: float = 0.1
    """Bound of the E-step."""
    epsilon_alpha: float = 0.03
    """Bound of the KL of discrete actions."""
    epsilon_mean: float = 0.05
    """Bound of the KL of the means of continuous actions."""
    epsilon_covariance: float = 1e-3
    """Bound of the KL of the covariances of continuous actions."""
    entropy_cost: float = number(0.02, at_least=0)
    """Weight of the policy's mean entropy, in nats, in the loss: where no action is better than
    another it keeps the policy from drifting to one. The paper has none."""
    multipliers: str = choice("scale", ("scale", "adam"))
    """How temperature and alphas are trained. scale: each by a factor that grows with how much its
    bound is broken. adam: with the network's learning rate, projected to be positive, as in the
    paper."""
    multiplier_rate: float = 0.05
    """Of scale: the logarithm of the factor where a bound is slack or broken by once itself."""
    alpha_bounds: tuple[float, float] = interval((0.01, 10.0))
    """What alphas stay within. Without the lower one nothing would hold a policy at its first
    success, after a time in which nothing was learned and every bound was slack; without the upper
    one the KL would take all of a clipped gradient. The paper has none to speak of."""
    value_cost: float = 0.25
    """Weight of the value's loss; 1 in the paper."""
    initial_eta: float = 1.0
    """Initial temperature."""
    initial_alpha: float = 1.0
    """Initial multiplier of the KL of discrete actions."""
    initial_alpha_mean: float = 1.0
    """Initial multiplier of the KL of means."""
    initial_alpha_covariance: float = 1.0
    """Initial multiplier of the KL of covariances."""


@dataclasses.dataclass(frozen=True)
class OptimiserConfig:
    """Adam (Kingma and Ba 2015) on the network and the multipliers."""

    learning_rate: float = 2e-3
    """Peak learning rate."""
    warmup: float = number(0.0, at_least=0, at_most=1)
    """Share of the updates over which the rate rises linearly from 0."""
    final: float = number(0.1, at_least=0, at_most=1)
    """Share of the rate that is left at the end of a linear decay; 1: no decay, as in the paper.
    At the full rate an agent that has solved its task, and has nothing left to learn from, may
    forget it."""
    clip_norm: float | None = 1.0
    """Largest global norm of the network's gradient."""


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Settings drawn log-uniformly from (low, high) for each seed of a run, as in the paper."""

    learning_rate: tuple[float, float] | None = interval(None)
    epsilon_eta: tuple[float, float] | None = interval(None)
    epsilon_alpha: tuple[float, float] | None = interval(None)
    epsilon_mean: tuple[float, float] | None = interval(None)
    epsilon_covariance: tuple[float, float] | None = interval(None)


@dataclasses.dataclass(frozen=True)
class OnlineConfig(RunConfig):
    """A whole online run: V-MPO on a batch of jitted environments."""

    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    core: CoreConfig = dataclasses.field(default_factory=CoreConfig)
    agent: AgentConfig = dataclasses.field(default_factory=AgentConfig)
    vmpo: VMPOConfig = dataclasses.field(default_factory=VMPOConfig)
    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    sweep: SweepConfig = dataclasses.field(default_factory=SweepConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    total_steps: int = 400_000
    """Environment steps of each seed."""
    unroll: int = 32
    """Steps of each environment between learner steps, T."""

    def check(self) -> None:
        """Raise ValueError where fields contradict one another."""
        super().check()
        if self.env.num_envs % self.env.num_tasks:
            raise ValueError(
                f"env.num_envs {self.env.num_envs} does not divide into {self.env.num_tasks} "
                "env.tasks: make it a multiple"
            )
        drawn = [name for name, bounds in dataclasses.asdict(self.sweep).items() if bounds]
        if self.checkpoint.best and self.num_seeds > 1 and drawn:
            raise ValueError(
                f"checkpoint.best {self.checkpoint.best} would be a mean over seeds that differ in "
                f"sweep.{drawn[0]}: leave one of the two out, or train one seed a run"
            )

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one learner step consumes."""
        return self.env.num_envs * self.unroll

    @property
    def num_updates(self) -> int:
        """Learner steps of the run: at least `total_steps`, in whole iterations."""
        return self.num_iterations * self.updates_per_iteration

    @property
    def num_iterations(self) -> int:
        """Iterations of the run."""
        return math.ceil(self.total_steps / self.steps_per_iteration)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of an iteration."""
        return self.steps_per_update * self.updates_per_iteration


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
        agent=AgentConfig(encoder_width=256, popart=False),
        vmpo=VMPOConfig(
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
        optimiser=OptimiserConfig(learning_rate=1e-4, final=1.0, clip_norm=None),
        sweep=SweepConfig(epsilon_alpha=(0.001, 0.1)),
        checkpoint=CheckpointConfig(interval=10_000_000),
        total_steps=1_000_000_000,
        unroll=95,
    )


PRESETS = {"default": _default, "debug": _debug, "paper": _paper}
"""default: minutes on two cores; debug: seconds; paper: the sizes of Parisotto et al. 2019."""


def preset(name: str = "default") -> OnlineConfig:
    """The online config of that name.

    Raises:
      ValueError: an unknown name.
    """
    return PRESETS[check_choice("preset", name, PRESETS)]()


def to_json(config: OnlineConfig) -> str:
    """The config as JSON, to be kept beside the results."""
    return serialization.to_json("online", config)


def from_json(text: str) -> OnlineConfig:
    """Return the config that `to_json` wrote; errors are those of `serialization.from_json`."""
    return serialization.from_json("online", OnlineConfig, text)
