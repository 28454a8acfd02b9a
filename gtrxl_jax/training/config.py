"""What an online run is: nested dataclasses, presets, and the checks made before anything else."""

import dataclasses
import json
import math
from typing import Any, get_args, get_origin, get_type_hints

from gtrxl_jax.names import require_name
from gtrxl_jax.nn.cores import CoreConfig, core_config, validate_core_config


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The environment and how many of it run side by side."""

    name: str = "TMazePassive-v0"
    """A name known to gymnax or to this package."""
    params: dict[str, int | float] = dataclasses.field(default_factory=dict)
    """Its parameters, as name value pairs: --env.params corridor_length 30"""
    num_envs: int = 64
    """Environments side by side, B: the batch of the learner."""


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
    popart: bool = False
    """Normalise values and advantages by moving statistics of the returns."""
    memoryless: bool = False
    """Show the core each step as the first of an episode: the control for what memory does."""


@dataclasses.dataclass(frozen=True)
class VMPOConfig:
    """V-MPO's settings; bounds in nats."""

    gamma: float = 0.99
    """Discount factor."""
    target_period: int = 5
    """Learner steps between copies of the online network to the target, which acts."""
    epsilon_eta: float = 0.1
    """Bound of the E-step."""
    epsilon_alpha: float = 0.01
    """Bound of the KL of discrete actions."""
    epsilon_mean: float = 0.0075
    """Bound of the KL of the means of continuous actions."""
    epsilon_covariance: float = 1e-5
    """Bound of the KL of the covariances of continuous actions."""
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

    learning_rate: float = 1e-3
    """Peak learning rate."""
    warmup: float = 0.0
    """Share of the updates over which the rate rises linearly from 0."""
    final: float = 1.0
    """Share of the rate that is left at the end of a linear decay; 1: no decay."""
    clip_norm: float | None = 1.0
    """Largest global norm of the network's gradient."""


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Settings drawn log-uniformly from (low, high) for each seed of a run, as in the paper."""

    learning_rate: tuple[float, float] | None = None
    epsilon_eta: tuple[float, float] | None = None
    epsilon_alpha: tuple[float, float] | None = None
    epsilon_mean: tuple[float, float] | None = None
    epsilon_covariance: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on fresh episodes."""

    episodes: int = 256
    """Episodes of each evaluation, all at once."""
    interval: int = 200_000
    """Environment steps between evaluations; 0: only the final one."""
    policy: str = "mode"
    """mode: the likeliest action; sample: as in training."""


@dataclasses.dataclass(frozen=True)
class OnlineConfig:
    """A whole online run: V-MPO on a batch of jitted environments."""

    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    core: CoreConfig = dataclasses.field(default_factory=CoreConfig)
    agent: AgentConfig = dataclasses.field(default_factory=AgentConfig)
    vmpo: VMPOConfig = dataclasses.field(default_factory=VMPOConfig)
    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    sweep: SweepConfig = dataclasses.field(default_factory=SweepConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    total_steps: int = 1_000_000
    """Environment steps of each seed."""
    unroll: int = 32
    """Steps of each environment between learner steps, T."""
    updates_per_visit: int = 10
    """Learner steps between two visits of the host, which logs."""
    seed: int = 0
    """The first seed; a run is a function of its config, the seed among it."""
    num_seeds: int = 1
    """Seeds trained side by side in one program: seed, seed + 1, ..."""
    devices: int = 0
    """Devices that share the environments; 0: all there are, if they divide num_envs."""

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one learner step consumes."""
        return self.env.num_envs * self.unroll

    @property
    def num_updates(self) -> int:
        """Learner steps of the run: at least `total_steps`, in whole visits of the host."""
        visits = math.ceil(self.total_steps / (self.steps_per_update * self.updates_per_visit))
        return visits * self.updates_per_visit


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
        total_steps=2000,
        unroll=8,
        updates_per_visit=5,
    )


def _paper() -> OnlineConfig:
    return dataclasses.replace(
        _default(),
        env=EnvConfig(params={"corridor_length": 500}, num_envs=128),
        core=core_config("gtrxl", "paper"),
        agent=AgentConfig(encoder_width=256),
        vmpo=VMPOConfig(target_period=10, initial_alpha=5.0),
        optimiser=OptimiserConfig(learning_rate=1e-4, clip_norm=None),
        sweep=SweepConfig(epsilon_alpha=(0.001, 0.1)),
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
    return PRESETS[require_name("preset", name, PRESETS)]()


def validate(config: OnlineConfig) -> None:
    """Refuse a run that cannot be, before anything is built or compiled.

    What depends on the environment (its parameters, the encoder) is checked where it is made.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    validate_core_config(config.core)
    require_name("evaluation.policy", config.evaluation.policy, ("mode", "sample"))
    may_be_zero = {"seed", "devices", "evaluation.interval", "optimiser.warmup", "optimiser.final"}
    for field, value in _numbers(config):
        if field.startswith(("core.", "env.params")):
            continue
        lowest = "at least 0" if field in may_be_zero else "above 0"
        if not math.isfinite(value) or value < 0 or (value == 0 and field not in may_be_zero):
            raise ValueError(f"{field} must be {lowest} and finite, not {value!r}")
    for field in ("gamma",):
        if getattr(config.vmpo, field) > 1:
            raise ValueError(f"vmpo.{field} must be at most 1, not {getattr(config.vmpo, field)!r}")
    for field in ("warmup", "final"):
        if getattr(config.optimiser, field) > 1:
            value = getattr(config.optimiser, field)
            raise ValueError(f"optimiser.{field} is a share: it must be at most 1, not {value!r}")
    for field, bounds in dataclasses.asdict(config.sweep).items():
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"sweep.{field} must be (low, high) with low below high, not {bounds}")


def _numbers(config: Any, prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found += _numbers(value, f"{name}.")
        elif isinstance(value, tuple):
            found += [(name, entry) for entry in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((name, value))
    return found


def to_json(config: OnlineConfig) -> str:
    """The config as JSON, to be kept beside the results."""
    return json.dumps({"kind": "online", **dataclasses.asdict(config)}, indent=2) + "\n"


def from_json(text: str) -> OnlineConfig:
    """The config that `to_json` wrote.

    Raises:
      ValueError: the text is no config of an online run, or has fields that this version lacks.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.pop("kind", None) != "online":
        raise ValueError('the config is not of an online run: its "kind" is not "online"')
    config = _build(OnlineConfig, fields, "")
    validate(config)
    return config


def _build(kind: Any, fields: dict[str, Any], prefix: str) -> Any:
    hints = get_type_hints(kind)
    for name in fields:
        require_name("config field", prefix + name, [prefix + hint for hint in hints])
    values = {}
    for name, value in fields.items():
        if dataclasses.is_dataclass(hints[name]):
            value = _build(hints[name], value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(get_origin(a) is tuple for a in get_args(hints[name])):
            value = tuple(value)
        values[name] = value
    return kind(**values)
