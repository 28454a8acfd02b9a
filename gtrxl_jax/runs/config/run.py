"""What every run has, whatever it trains."""

import dataclasses

from gtrxl_jax.ops.distributions import POLICIES
from gtrxl_jax.validation import choice, number


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on fresh episodes. Steps are those of the run: see `RunConfig`."""

    episodes: int = 256
    """Episodes of each evaluation, all at once."""
    interval: int = number(200_000, at_least=0)
    """Steps between evaluations; 0: only the final one."""
    policy: str = choice("mode", POLICIES)
    """mode: the most likely action; sample: as in training."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, written in the background. Steps are those of the run: see `RunConfig`."""

    interval: int = number(100_000, at_least=0)
    """Steps between checkpoints; 0: only at the end, and when interrupted."""
    keep: int = 3
    """How many of the newest are kept."""
    best: str = ""
    """A score such as evaluation/success, by which the best checkpoint is kept as well."""
    best_is: str = choice("max", ("max", "min"))
    """max: the largest is the best; min: the smallest."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Iterations, seeds and devices of a run. Its steps are environment steps online, and updates
    offline.
    """

    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    updates_per_iteration: int = 10
    """Updates of an iteration, one program, after which metrics are written."""
    seed: int = number(0, at_least=0)
    """The first seed. A run is a function of its config, including the seed."""
    num_seeds: int = 1
    """Seeds trained in one program: seed, seed + 1, ..."""
    devices: int = number(0, at_least=0)
    """Devices that share the batch, which they must divide; 0: all."""
    parameter_shards: int = 1
    """Neighbouring devices that split one copy of the parameters and of the optimiser's state
    between them; 1: a copy on each."""
    on_divergence: str = choice("stop", ("stop", "continue"))
    """When a seed diverges. stop: end the run; continue: report it, and train the others."""

    def check(self) -> None:
        """Raise ValueError where seeds exceed 31 bits."""
        if self.seed + self.num_seeds > 2**31:
            raise ValueError(f"seed must leave all seeds below 2**31, not {self.seed}")
