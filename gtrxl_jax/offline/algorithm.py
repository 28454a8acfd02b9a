"""The contract of offline algorithms: what is learned from segments of trajectories.

    learner = algorithm.init(params, key)                       parameters, optimizer, targets, ...
    learner, metrics = algorithm.update(learner, batch, key)    once per batch [B, K, T]
    policy = algorithm.policy(target_return)                    acts with learner.params

The trainer initializes the model, samples batches, and plays the policy in evaluations. All
functions but `policy` are pure, and apply to sharded arrays.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Key, Shaped

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.custom import (
    describe_part,
    is_custom,
    require_returned,
    require_same_shapes,
    require_scalars,
    wrap_errors,
)
from gtrxl_jax.offline.optimizer import AdamWConfig
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.plugins import Registry
from gtrxl_jax.segments import OPTIONAL, Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.validation import require_choice

Metrics = dict[str, Shaped[Array, ""]]
"""Scalars by name; checks are booleans."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings of a run that an algorithm needs.

    Attributes:
      model: the model that acts, see `nn.sequence.model`.
      observation_space, action_space: the spaces of the environment, or of the data.
      optimizer: settings of the optimizer.
      num_updates: number of updates of the run.
      unroll: T, the number of steps of a segment.
      is_recurrent: whether the model reads a window segment by segment, see `ModelConfig`.
      bptt: number of previous segments that the gradient reaches; None: all.
      remat: whether to recompute a segment's activations in the backward pass.
      actions: "sample" or "mode", see `SequencePolicy`.
      restart_every: see `SequencePolicy`.
      memory_noise: see `SequencePolicy`.
    """

    model: nn.Module
    observation_space: Any
    action_space: Any
    optimizer: AdamWConfig
    num_updates: int
    unroll: int
    is_recurrent: bool
    bptt: int | None = None
    remat: bool = False
    actions: str = "mode"
    restart_every: int = 0
    memory_noise: bool = False


class OfflineAlgorithm(abc.ABC):
    """Learns from batches of segments.

    Attributes:
      config: the algorithm's config, an `OfflineAlgorithmConfig`.
      setup: the settings of its run.
      model: the model that acts: the run's, maybe with another head.
    """

    def __init__(self, config: Any, setup: Setup):
        self.config = config
        self.setup = setup
        self.model: Any = setup.model

    @abc.abstractmethod
    def init(self, params: Any, key: Key[Array, ""]) -> Any:
        """Return the learner at the start of a run: everything that learning changes.

        Args:
          params: the model's initial parameters.
          key: a PRNG key, for example for further networks.

        Returns:
          A flax.struct dataclass of arrays. Its `params` are those with which the policy acts.
        """

    @abc.abstractmethod
    def update(self, learner: Any, batch: Segments, key: Key[Array, ""]) -> tuple[Any, Metrics]:
        """Learn from a batch of windows `[B, K, T]`.

        Returns:
          The new learner, and scalar metrics. Those named `finite/NAME` are checks: where one is
          False, the run has diverged, as when "loss", "gradient_norm" or a parameter is not finite.
        """

    def validate(self, learner: Any, batch: Segments) -> Metrics:
        """Return metrics, such as "loss", of windows `[B, K, T]` that are not trained on."""
        return {}

    def policy(self, target_return: float) -> Policy:
        """Return the policy that acts in evaluations, with the parameters `learner.params`."""
        setup = self.setup
        return SequencePolicy(
            self.model,
            action_spec(setup.action_space),
            target_return,
            setup.actions,
            setup.restart_every,
            setup.memory_noise,
        )


@dataclasses.dataclass(frozen=True)
class OfflineAlgorithmConfig(abc.ABC):
    """Settings of every algorithm. The config of an algorithm adds its own, and creates it."""

    name: str = ""
    """imitation, cql, iql, td3-bc, another registered name, or package.module:Name, the config of a
    custom algorithm."""

    needs: ClassVar[tuple[str, ...]] = ()
    """The optional fields of `Segments` that the algorithm reads, of `segments.OPTIONAL`."""
    reads_returns: ClassVar[bool] = True
    """Whether its policy may be conditioned on a return."""

    def check(self) -> None:
        """Raise ValueError if a field that the algorithm needs is unknown."""
        for name in self.needs:
            require_choice(f"field in needs of {type(self).__name__}", name, OPTIONAL)

    @abc.abstractmethod
    def make(self, setup: Setup) -> OfflineAlgorithm:
        """Create the algorithm."""

    @staticmethod
    def named(name: str = "imitation") -> type["OfflineAlgorithmConfig"]:
        """Return the config class of an algorithm; see `Registry.find`."""
        return ALGORITHMS.find(name)


ALGORITHMS = Registry("algorithm.name", OfflineAlgorithmConfig)
"""The config of each registered algorithm."""


def register_offline_algorithm(name: str, config: type[OfflineAlgorithmConfig]) -> None:
    """Register an algorithm by its config; see `Registry.register`."""
    ALGORITHMS.register(name, config)


def require_consistent_update(algorithm: OfflineAlgorithm, params: Any, batch: Segments) -> None:
    """Check that a custom algorithm keeps the shapes of its learner. Compiles nothing.

    Args:
      algorithm: the algorithm.
      params: the model's parameters, or their shapes.
      batch: a batch of windows `[B, K, T]`, or its shapes.

    Raises:
      ValueError: naming the class of the algorithm, its file and line, and what an update returns
        with another shape or dtype than it should; or an error in its methods.
    """
    if not is_custom(algorithm):
        return

    def update(params: Any, batch: Segments) -> Any:
        key = jax.random.key(0)
        learner = algorithm.init(params, key)
        if not hasattr(learner, "params"):
            raise ValueError(
                f"{describe_part('algorithm', algorithm, 'init')}: init returns a "
                f"{type(learner).__name__} without params: return a flax.struct dataclass whose "
                "params are those that act"
            )
        returned = algorithm.update(learner, batch, key)
        require_returned("algorithm", algorithm, "update", returned, ("learner", "metrics"))
        return learner, *returned

    with wrap_errors("algorithm", algorithm):
        before, after, metrics = jax.eval_shape(update, params, batch)
    where = describe_part("algorithm", algorithm, "update")
    require_same_shapes(where, "an update", "learner", before, after)
    require_scalars(where, {f"the metric {name}": x for name, x in metrics.items()})
