"""Configs of offline runs: nested dataclasses, presets and validation."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import tyro

from gtrxl_jax.data.windows import STARTS, WEIGHTS
from gtrxl_jax.nn.sequence.model import ModelConfig
from gtrxl_jax.nn.sequence.rate import RATEConfig
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.algorithm import OfflineAlgorithmConfig, register_offline_algorithm
from gtrxl_jax.offline.cql import CQLConfig
from gtrxl_jax.offline.imitation import ImitationConfig
from gtrxl_jax.offline.iql import IQLConfig
from gtrxl_jax.offline.optimizer import AdamWConfig
from gtrxl_jax.offline.td3_bc import TD3BCConfig
from gtrxl_jax.runs import config as run_config
from gtrxl_jax.runs.config import CheckpointConfig, EvaluationConfig, RunConfig
from gtrxl_jax.validation import MOST_STEPS, choice, number, require_choice

register_offline_algorithm("imitation", ImitationConfig)
register_offline_algorithm("cql", CQLConfig)
register_offline_algorithm("iql", IQLConfig)
register_offline_algorithm("td3-bc", TD3BCConfig)


@dataclasses.dataclass(frozen=True)
class OfflineEnvConfig:
    """The environment of the data, in which the model is also evaluated, if there is one."""

    name: str = "TMazePassive-v0"
    """Name of an environment, as in `gtrxl train`, or "" for training without one, on the dataset
    data.path alone: the model is then not evaluated."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Environment parameters as name value pairs. For T-Maze and AssociativeRetrieval they override
    RATE's parameters for the respective length, see evaluation.lengths."""
    wrappers: dict[str, bool | int | str] = dataclasses.field(default_factory=dict)
    """Wrappers of an environment on the host, as in `gtrxl train`."""
    spaces: Annotated[dict[str, Any], tyro.conf.Suppress] = dataclasses.field(default_factory=dict)
    """Without an environment, the spaces of the data; the trainer records them."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The trajectories to train on."""

    path: str = ""
    """A dataset: Minari's, as written by `gtrxl collect`, D4RL's, DQN-replay's or Memory Maze's. If
    empty, the environment's oracle generates the episodes."""
    episodes: int = 2000
    """Number of oracle episodes of each length."""
    stream: bool = False
    """Read windows from data.path as they are sampled, for data that exceed memory. The batches of
    an iteration are read during the previous one and held in memory together, see
    updates_per_iteration."""
    skip_bad: bool = False
    """Leave out the episodes of data.path that are damaged or have invalid numbers, and name them.
    By default, the first such episode ends the run before it starts."""
    keys: tuple[str, ...] = ()
    """The keys to keep of observations of data.path that are dicts; by default all."""
    drop: tuple[str, ...] = ()
    """The keys to leave out of observations of data.path that are dicts."""
    clip_actions: float = number(0.0, at_least=0)
    """How far actions of data.path may exceed their bounds, to which they are then clipped. They
    always may by rounding."""
    start: str = choice("", STARTS)
    """Where windows begin: episode (at its first step), uniform (at any step), or covering (at any
    step, and more often at the first, so that it is seen as often as others). The default depends
    on the environment: episode where a cue is shown at the start, otherwise covering."""
    weight: str = choice("", WEIGHTS)
    """How episodes are sampled: uniform, or in proportion to their length. The default depends on
    the environment."""
    validation: float = number(0.0, at_least=0, below=1)
    """Fraction of the episodes, of all lengths alike, that is held out from training, on a batch of
    which the loss is computed after each iteration: loss/validation. 0: none."""
    normalize: bool = True
    """Scale integers, pixels, flags and choices of observations by their means and deviations in
    the data, and floats as far as these are not ordinary. Otherwise only large integers and pixels,
    by the range that their space declares."""
    seed: int = number(0, at_least=0)
    """Seed of the oracle's episodes and of those held out, which are the same for all seeds of a
    run."""
    fingerprint: Annotated[str, tyro.conf.Suppress] = ""
    """Hash of the data's contents; the trainer records it."""
    return_scale: Annotated[float | None, tyro.conf.Suppress] = number(None)
    """Scale of the returns-to-go that was chosen from the data; the trainer records it."""


@dataclasses.dataclass(frozen=True)
class OfflineEvaluationConfig(EvaluationConfig):
    """Evaluation on episodes played in the environment."""

    episodes: int = 128
    """Number of episodes of each length, all in parallel."""
    interval: int = number(0, at_least=0, at_most=MOST_STEPS)
    """Updates between evaluations; 0: only the final one."""
    lengths: tuple[int, ...] = ()
    """Lengths of the episodes in steps, as counted by RATE, for T-Maze and AssociativeRetrieval. By
    default the training length, unroll * segments."""
    target_return: float | None = number(None, at_least=-math.inf)
    """Return on which the model is conditioned by imitation; by default the mean return of the best
    tenth of the data, without episodes that were cut: truncated before the time limit of the data.
    """
    restart_return: bool = False
    """Reset the return-to-go to the target return in each segment, as RATE does in MuJoCo."""
    memory_noise: bool = False
    """Replace memory tokens by noise, as a control for what they carry."""


@dataclasses.dataclass(frozen=True)
class OfflineConfig(RunConfig):
    """An offline run: learn from trajectories, by default to predict their actions, then act."""

    env: OfflineEnvConfig = dataclasses.field(default_factory=OfflineEnvConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=RATEConfig)
    algorithm: OfflineAlgorithmConfig = dataclasses.field(default_factory=ImitationConfig)
    optimizer: AdamWConfig = dataclasses.field(default_factory=AdamWConfig)
    evaluation: OfflineEvaluationConfig = dataclasses.field(default_factory=OfflineEvaluationConfig)
    checkpoint: CheckpointConfig = dataclasses.field(
        default_factory=lambda: CheckpointConfig(interval=100)
    )
    unroll: int = 30
    """Number of steps of a segment, T."""
    segments: int = 3
    """Number of segments of a trajectory, K. Models without memory see all K * T steps at once."""
    bptt: int | None = number(None, at_least=0)
    """Number of previous segments that the gradient reaches through the memory; all by default.
    Imitation takes an optimizer step for every bptt + 1 segments, so 0 is the scheme of RATE's
    authors; other algorithms take one for each batch."""
    curriculum: bool = False
    """Train on trajectories of one segment first, then of two, and so on (RATE, appendix C)."""
    batch_size: int = 64
    """Number of trajectories of an update, B."""
    total_updates: int = number(300, at_most=MOST_STEPS)
    """Number of batches for each seed."""
    updates_per_iteration: int = 20
    """Number of batches of an iteration, after which metrics are written."""
    remat: bool = True
    """Recompute a segment's activations in the backward pass instead of storing them."""

    def check(self) -> None:
        super().check()
        for field, value in {
            "env.params": self.env.params,
            "env.wrappers": self.env.wrappers,
            "evaluation.lengths": self.evaluation.lengths,
            "evaluation.interval": self.evaluation.interval,
            "checkpoint.best": self.checkpoint.best,
        }.items():
            if value and not self.env.name:
                raise ValueError(f"{field} requires an environment: set env.name, or omit {field}")
        for field in ("stream", "skip_bad", "keys", "drop", "clip_actions"):
            if getattr(self.data, field) and not self.data.path:
                raise ValueError(
                    f"data.{field} requires a dataset on disk: set data.path (`gtrxl collect` "
                    f"writes datasets), or omit data.{field}"
                )
        if self.evaluation.memory_noise and not getattr(self.model, "memory_tokens", 0):
            raise ValueError(
                "evaluation.memory_noise replaces memory tokens, and model.name "
                f"{self.model.name} has none: omit it"
            )
        if self.data.stream and self.num_seeds > 1:
            raise ValueError(
                f"data.stream supports a single seed, but num_seeds is {self.num_seeds}: "
                "run the seeds one by one, or disable data.stream"
            )
        chunk = (self.segments if self.bptt is None else self.bptt) + 1
        if chunk < self.segments and (self.segments % chunk or self.curriculum and self.bptt):
            raise ValueError(
                f"bptt {self.bptt} groups segments by {chunk}, which must divide segments "
                f"{self.segments} (and the segments of every stage of a curriculum): use 0, or at "
                f"least {self.segments - 1}"
            )
        batches = self.num_iterations * self.updates_per_iteration
        gradients = batches * max(self.segments // chunk, 1)
        if self.optimizer.accumulate > gradients:
            raise ValueError(
                f"optimizer.accumulate {self.optimizer.accumulate} exceeds the number of gradients "
                f"of the run, {gradients}, so that no step would be taken: decrease it, or "
                "increase total_updates"
            )

    @property
    def reads_returns(self) -> bool:
        """Whether the returns that are asked for have an effect."""
        return self.algorithm.reads_returns and self.model.reads_returns

    @property
    def subject(self) -> str:
        """The environment or else the dataset, for titles."""
        return self.env.name or Path(self.data.path).name or "trajectories"

    @property
    def length(self) -> int:
        """The number of steps of the longest training trajectories, K * T."""
        return self.unroll * self.segments

    @property
    def shape(self) -> tuple[int, int]:
        """The number of segments that the model sees, and of steps of each; see `segments`."""
        return self.windows(-1)

    @property
    def num_iterations(self) -> int:
        """The number of iterations, enough for `total_updates`."""
        return math.ceil(self.total_updates / self.updates_per_iteration)

    @property
    def stages(self) -> tuple[int, ...]:
        """The number of segments in each stage of the curriculum; a single stage without one."""
        return tuple(range(1, self.segments + 1)) if self.curriculum else (self.segments,)

    def stage(self, iteration: int) -> int:
        """Return the stage of an iteration, counted from 1; each stage has an equal share.

        Of fewer iterations than stages, each has one of the last stages.
        """
        iterations, stages = self.num_iterations, len(self.stages)
        return max((iteration - 1) * stages // iterations, iteration - 1 + stages - iterations)

    def windows(self, stage: int) -> tuple[int, int]:
        """Return the number of segments in a stage's windows, and of steps of each, see `shape`."""
        segments, unroll = self.stages[stage], self.unroll
        return (segments, unroll) if self.model.is_recurrent else (1, segments * unroll)


def _default() -> OfflineConfig:
    return OfflineConfig(
        # Few episodes, since dt recomputes its sliding window at every step.
        evaluation=OfflineEvaluationConfig(episodes=64, lengths=(30, 90, 150, 360, 900)),
        curriculum=True,
        # Activations of this size fit into memory.
        remat=False,
    )


def _debug() -> OfflineConfig:
    return OfflineConfig(
        data=DataConfig(episodes=32),
        model=model_config("rate", "debug"),
        evaluation=OfflineEvaluationConfig(episodes=16, lengths=(8, 16)),
        unroll=4,
        segments=2,
        batch_size=8,
        total_updates=20,
        updates_per_iteration=10,
    )


def _tmaze() -> OfflineConfig:
    """Return the config of RATE's table 5, with 5 segments of 30 steps.

    Where it differs from its authors' code, this follows the code, as the other presets of RATE's
    tasks do: a weight decay of 0.1 instead of 1e-4 here and for MiniGrid, 5 memory tokens instead
    of 15 for ViZDoom, and batches of 64 instead of 128.
    """
    return OfflineConfig(
        model=model_config("rate", "tmaze"),
        optimizer=AdamWConfig(learning_rate=3e-4),
        evaluation=OfflineEvaluationConfig(lengths=(30, 90, 150, 360, 600, 900)),
        segments=5,
        curriculum=True,
        total_updates=25_000,
        updates_per_iteration=100,
    )


def _images(env: OfflineEnvConfig, model: str, learning_rate: float) -> OfflineConfig:
    """Return the config of one of RATE's tasks with images, of which a dataset exceeds memory."""
    return OfflineConfig(
        env=env,
        data=DataConfig(stream=True),
        model=model_config("rate", model),
        optimizer=AdamWConfig(learning_rate=learning_rate),
        evaluation=OfflineEvaluationConfig(episodes=32),
        total_updates=25_000,
        # The images of an iteration are in memory together.
        updates_per_iteration=5,
    )


def _minigrid() -> OfflineConfig:
    """Return the config of Minigrid.Memory, whose episodes end within the 3 segments of 30 steps.

    Table 5 has 3 segments of 10, which the decision at the end would rarely be a part of.
    """
    params: dict[str, bool | int | float | str] = {
        "size": 41,
        "view_size": 3,
        "num_actions": 3,
        "observation": "rgb",
        "max_steps_in_episode": 95,
    }
    return _images(OfflineEnvConfig("MiniGrid-Memory", params), "minigrid", 6e-4)


PRESETS = {
    "default": _default,
    "debug": _debug,
    "tmaze": _tmaze,
    "vizdoom": lambda: _images(OfflineEnvConfig("TwoColors-v0"), "vizdoom", 3e-4),
    "minigrid": _minigrid,
    "memory-maze": lambda: _images(OfflineEnvConfig("MemoryMaze-9x9-v0"), "memory-maze", 3e-4),
}
"""default: minutes on two CPU cores; debug: seconds; the others: RATE's sizes for its tasks. The
last three have images and require a dataset, data.path."""


def preset(name: str = "default") -> OfflineConfig:
    """Return the offline config with the given name.

    Raises:
      ValueError: if the name is unknown.
    """
    return PRESETS[require_choice("preset", name, PRESETS)]()


run_config.CONFIGS["offline"] = OfflineConfig


def to_json(config: OfflineConfig) -> str:
    """Return the config as JSON, to be stored with the results."""
    return run_config.to_json("offline", config)


def from_json(text: str) -> OfflineConfig:
    """Parse a config written by `to_json`; raises as `run_config.from_json` does."""
    return run_config.from_json("offline", OfflineConfig, text)
