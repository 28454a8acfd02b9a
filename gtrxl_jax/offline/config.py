"""What an offline run is: nested dataclasses, presets, and the checks made before anything else."""

import dataclasses
import math

from gtrxl_jax.data.segments import STARTS, WEIGHTS
from gtrxl_jax.nn.sequence.registry import ModelConfig, model_config
from gtrxl_jax.runs.config import serialization
from gtrxl_jax.runs.config.run import CheckpointConfig, EvaluationConfig, RunConfig
from gtrxl_jax.validation import check_choice, choice, number


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The environment that the data are of, and in which the model is evaluated."""

    name: str = "TMazePassive-v0"
    """A name known to gymnax or to this package."""
    params: dict[str, int | float | str] = dataclasses.field(default_factory=dict)
    """Its parameters, as name value pairs. T-Maze and AssociativeRetrieval take RATE's for the
    length at hand, see evaluation.lengths; these change them."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The trajectories."""

    path: str = ""
    """A Minari data set, as `gtrxl collect` writes it. Empty: the environment's oracle plays."""
    episodes: int = 2000
    """Episodes of the oracle, of each length."""
    stream: bool = False
    """Read windows from path as they are drawn, for data that outgrow memory. The batches of a
    iteration are read while the one before it runs, and held at once: see updates_per_iteration."""
    start: str = choice("", STARTS)
    """Where windows begin: episode (its first step) or uniform; by the environment if empty."""
    weight: str = choice("", WEIGHTS)
    """How episodes are drawn: uniform, or by length; by the environment if empty."""
    seed: int = number(0, at_least=0)
    """Of the oracle's episodes: all seeds of a run learn from the same."""


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW (Loshchilov and Hutter 2019); it decays matrices, not biases, norms or tokens."""

    learning_rate: float = 1e-3
    """Peak learning rate."""
    beta_1: float = number(0.9, at_least=0, at_most=1)
    """Decay of the mean of gradients."""
    beta_2: float = number(0.95, at_least=0, at_most=1)
    """Decay of the mean of their squares."""
    weight_decay: float = number(0.1, at_least=0)
    """Of the matrices, times the learning rate."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradient."""
    warmup: float = number(0.05, at_least=0, at_most=1)
    """Share of the steps over which the rate rises linearly from 0."""
    final: float = number(0.1, at_least=0, at_most=1)
    """Share of the rate that is left at the end of a linear decay."""
    accumulate: int = 1
    """Gradients averaged for one step of the optimiser."""


@dataclasses.dataclass(frozen=True)
class OfflineEvaluationConfig(EvaluationConfig):
    """Evaluation: episodes played in the environment."""

    episodes: int = 128
    """Episodes of each length, all at once."""
    interval: int = number(0, at_least=0)
    """Updates between evaluations; 0: only the final one."""
    lengths: tuple[int, ...] = ()
    """Of the episodes, in steps, for T-Maze and AssociativeRetrieval, as RATE counts them; the
    training length, context * segments, if not given."""
    target_return: float | None = number(None, at_least=-math.inf)
    """What the model is asked to reach; the mean of the data's best tenth if not given."""
    restart_return: bool = False
    """Ask for all of it again in each segment, as RATE does in MuJoCo."""
    memory_noise: bool = False
    """Put noise in the place of memory tokens: the control for what they carry."""


@dataclasses.dataclass(frozen=True)
class OfflineConfig(RunConfig):
    """A whole offline run: predict the actions of trajectories, then act."""

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimiser: AdamWConfig = dataclasses.field(default_factory=AdamWConfig)
    evaluation: OfflineEvaluationConfig = dataclasses.field(default_factory=OfflineEvaluationConfig)
    checkpoint: CheckpointConfig = dataclasses.field(
        default_factory=lambda: CheckpointConfig(interval=100)
    )
    context: int = 30
    """Steps of a segment, K."""
    segments: int = 3
    """Segments of a trajectory, N. A model without memory sees all N * K steps at once."""
    bptt: int | None = number(None, at_least=0)
    """Segments that the gradient goes back through the memory; as many as there are if not given.
    The optimiser takes a step for every bptt + 1 segments, so 0 is the scheme of RATE's authors."""
    curriculum: bool = False
    """Begin with trajectories of one segment, go on to two, and so on (RATE, appendix C)."""
    batch_size: int = 64
    """Trajectories of an update, B."""
    total_updates: int = 300
    """Batches of each seed."""
    updates_per_iteration: int = 20
    """Batches of an iteration, after which metrics are written."""
    remat: bool = True
    """Compute a segment's activations again in the backward pass instead of keeping them."""

    def check(self) -> None:
        """Raise ValueError where fields contradict one another."""
        super().check()
        if self.data.stream and not self.data.path:
            raise ValueError(
                "data.stream reads a data set from disk: give its data.path (`gtrxl collect` "
                "writes one), or leave data.stream out"
            )
        if self.data.stream and self.num_seeds > 1:
            raise ValueError(
                f"data.stream reads the batches of one seed, and num_seeds is {self.num_seeds}: "
                "run them one by one, with seed, or leave data.stream out"
            )
        chunk = (self.segments if self.bptt is None else self.bptt) + 1
        if chunk < self.segments and (self.segments % chunk or self.curriculum and self.bptt):
            raise ValueError(
                f"bptt {self.bptt} divides segments into groups of {chunk}, which must divide "
                f"segments {self.segments} (and leave no remainder at any stage of a curriculum): "
                f"use 0, or {self.segments - 1} or more"
            )

    @property
    def length(self) -> int:
        """Steps of the longest trajectories that are trained on."""
        return self.context * self.segments

    @property
    def shape(self) -> tuple[int, int]:
        """Segments, and steps of each, as the model sees them: see `segments`."""
        return (self.segments, self.context) if self.model.is_recurrent else (1, self.length)

    @property
    def num_iterations(self) -> int:
        """Iterations of the host: enough for `total_updates`."""
        return math.ceil(self.total_updates / self.updates_per_iteration)

    @property
    def stages(self) -> tuple[int, ...]:
        """Segments of the trajectories of each stage of the curriculum; one stage without it."""
        return tuple(range(1, self.segments + 1)) if self.curriculum else (self.segments,)

    def stage(self, iteration: int) -> int:
        """The stage of an iteration, counted from 1: each stage has its share of them."""
        return (iteration - 1) * len(self.stages) // self.num_iterations

    def windows(self, stage: int) -> tuple[int, int]:
        """Segments of a stage's windows, and steps of each, as the model sees them."""
        segments, context = self.stages[stage], self.context
        return (segments, context) if self.model.is_recurrent else (1, segments * context)

    def chunk(self, segments: int) -> int:
        """How many of the segments of a trajectory the gradient connects."""
        return segments if self.bptt is None else min(self.bptt + 1, segments)


def _default() -> OfflineConfig:
    return OfflineConfig(
        # A window that slides is looked at anew at each step: few episodes for dt's sake.
        evaluation=OfflineEvaluationConfig(episodes=64, lengths=(30, 90, 150, 360, 900)),
        curriculum=True,
        # So small that there is no need to compute anything twice.
        remat=False,
    )


def _debug() -> OfflineConfig:
    return OfflineConfig(
        data=DataConfig(episodes=32),
        model=model_config("rate", "debug"),
        evaluation=OfflineEvaluationConfig(episodes=16, lengths=(8, 16)),
        context=4,
        segments=2,
        batch_size=8,
        total_updates=20,
        updates_per_iteration=10,
    )


def _tmaze() -> OfflineConfig:
    """RATE's table 5 and its authors' configuration, with 5 segments of 30."""
    return OfflineConfig(
        model=model_config("rate", "tmaze"),
        optimiser=AdamWConfig(learning_rate=3e-4),
        evaluation=OfflineEvaluationConfig(lengths=(30, 90, 150, 360, 600, 900)),
        segments=5,
        curriculum=True,
        total_updates=25_000,
        updates_per_iteration=100,
    )


PRESETS = {"default": _default, "debug": _debug, "tmaze": _tmaze}
"""default: minutes on two cores; debug: seconds; tmaze: the sizes of RATE's paper."""


def preset(name: str = "default") -> OfflineConfig:
    """The offline config of that name.

    Raises:
      ValueError: an unknown name.
    """
    return PRESETS[check_choice("preset", name, PRESETS)]()


def to_json(config: OfflineConfig) -> str:
    """The config as JSON, to be kept beside the results."""
    return serialization.to_json("offline", config)


def from_json(text: str) -> OfflineConfig:
    """Return the config that `to_json` wrote; errors are those of `serialization.from_json`."""
    return serialization.from_json("offline", OfflineConfig, text)
