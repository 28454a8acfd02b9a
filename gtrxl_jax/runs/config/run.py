"""Settings of every run, online and offline."""

import dataclasses

from gtrxl_jax.ops.distributions import POLICIES
from gtrxl_jax.validation import MOST_STEPS, choice, number


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on fresh episodes. For the unit of steps, see `RunConfig`."""

    episodes: int = 256
    """Number of episodes of each evaluation, played in parallel."""
    interval: int = number(200_000, at_least=0, at_most=MOST_STEPS)
    """Steps between evaluations. 0: evaluate only at the end."""
    policy: str = choice("mode", POLICIES)
    """mode: the most likely action. sample: a sample, as in training."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, written in the background. For the unit of steps, see `RunConfig`."""

    interval: int = number(100_000, at_least=0, at_most=MOST_STEPS)
    """Steps between checkpoints. 0: save only at the end and on interruption."""
    keep: int = 3
    """Number of most recent checkpoints to keep."""
    best: str = ""
    """A score, such as evaluation/success; the checkpoint with its best value is also kept."""
    best_is: str = choice("max", ("max", "min"))
    """max: higher scores are better. min: lower scores are better."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Iterations, seeds and devices of a run.

    Steps are environment steps in online runs, and updates in offline runs.
    """

    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    updates_per_iteration: int = 10
    """Updates per iteration, a single program; metrics are written after each iteration."""
    seed: int = number(0, at_least=0)
    """The first seed. A run is deterministic given its config, including the seed."""
    num_seeds: int = 1
    """Seeds trained in one program: seed, seed + 1, ..."""
    devices: int = number(0, at_least=0)
    """Number of devices that share the batch, whose size it must divide. 0: all."""
    parameter_shards: int = 1
    """Number of neighboring devices over which one copy of the parameters and the optimizer's
    state is split. 1: every device has a copy."""
    on_divergence: str = choice("stop", ("stop", "continue"))
    """When a seed diverges. stop: end the run. continue: report it, and train the other seeds."""
    init_from: str = ""
    """Folder of a trained run whose parameters the run starts from. Everything else, such as the
    optimizer's state, starts fresh. Once it has a checkpoint, a run continues from that."""
    init_only: tuple[str, ...] = ()
    """Patterns of the paths of the parameters that init_from provides, such as 'core/*'; all by
    default. The others are initialized as usual."""

    def check(self) -> None:
        """Raise ValueError if a seed exceeds 31 bits, or fields are inconsistent."""
        if self.seed + self.num_seeds > 2**31:
            raise ValueError(f"seed must leave all seeds below 2**31, not {self.seed}")
        if self.init_only and not self.init_from:
            raise ValueError(
                f"init_only {' '.join(self.init_only)} selects parameters of another run: set "
                "init_from to its folder"
            )
