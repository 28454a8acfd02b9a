"""The configs of the algorithms by which agents learn online, and their registry."""

import abc
import dataclasses
from typing import Any, ClassVar

from gtrxl_jax.plugins import Registry
from gtrxl_jax.validation import choice, interval, number


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig(abc.ABC):
    """Settings of every algorithm. The config of an algorithm adds its own, and creates it."""

    name: str = ""
    """A registered name, or package.module:Name, the config of a custom algorithm."""
    gamma: float = number(0.99, at_most=1)
    """Discount factor."""
    gae_lambda: float = number(0.95, at_least=0, at_most=1)
    """Lambda of returns and advantages (GAE). 1: n-step returns, as in the V-MPO paper."""
    value_cost: float = 0.25
    """Weight of the value loss; 1 in the V-MPO paper."""
    entropy_cost: float = number(0.05, at_least=0)
    """Weight of an entropy bonus, the policy's mean entropy in nats. It prevents the policy from
    drifting to one action when all are equally good, and from collapsing to a mediocre one. The
    V-MPO paper uses none."""
    entropy_final: float = number(1.0, at_least=0, at_most=1)
    """Fraction of the entropy bonus that remains at the end of a linear decay, which takes as long
    as that of the learning rate; 1: no decay."""
    popart: bool = True
    """Normalize values and advantages by moving statistics of each task's returns (PopArt), so that
    losses do not depend on the units of the rewards."""
    popart_rate: float = number(3e-5, below=1)
    """Weight of one sample in the PopArt statistics, which average over about 1 / rate samples; the
    paper's is 1e-4."""
    epochs: int = 1
    """Number of passes over a rollout."""
    minibatches: int = 1
    """Number of optimizer steps of a pass, each on an equal share of the segments."""

    learning_rate: ClassVar[float] = 2e-3
    """The learning rate of runs whose `optimizer.learning_rate` is None."""
    hyperparameters: ClassVar[tuple[str, ...]] = (
        "gamma",
        "gae_lambda",
        "value_cost",
        "entropy_cost",
    )
    """The fields that are arrays in the program and thus may differ between the seeds of a run."""

    @abc.abstractmethod
    def make(self, config: Any, agent: Any) -> Any:
        """Create the `online.algorithm.Algorithm`.

        Args:
          config: the `OnlineConfig` of the run.
          agent: its agent.
        """

    @staticmethod
    def named(name: str = "ppo") -> type["AlgorithmConfig"]:
        """Return the config class of an algorithm.

        Raises:
          ValueError: if the name is unknown, or its module has not been imported.
        """
        return ALGORITHMS.find(name)


@dataclasses.dataclass(frozen=True)
class VMPOConfig(AlgorithmConfig):
    """Settings of V-MPO; bounds are in nats."""

    name: str = "vmpo"
    target_period: int = 5
    """Optimizer steps between copies of the online network to the target network, which acts."""
    epsilon_eta: float = 0.1
    """Bound of the E-step."""
    epsilon_alpha: float = 0.03
    """Bound on the KL of discrete actions."""
    epsilon_mean: float = 0.05
    """Bound on the KL of the means of continuous actions."""
    epsilon_covariance: float = 1e-3
    """Bound on the KL of the covariances of continuous actions."""
    multipliers: str = choice("scale", ("scale", "adam"))
    """How temperature and alphas are trained. scale: multiply each by a factor that grows with the
    violation of its bound. adam: use the network's learning rate and project to positive values, as
    in the paper."""
    multiplier_rate: float = 0.05
    """For --algorithm.multipliers scale: logarithm of the factor at a relative violation of 1,
    where the KL is twice its bound."""
    alpha_bounds: tuple[float, float] = interval((0.01, 10.0))
    """Range of the alphas. While nothing is learned, constraints are slack and alphas decay; the
    lower bound still limits the policy's change at its first success. The upper bound prevents the
    KL from dominating a clipped gradient. The paper's bounds are practically unlimited."""
    initial_eta: float = 1.0
    """Initial temperature."""
    initial_alpha: float = 1.0
    """Initial multiplier of the KL of discrete actions."""
    initial_alpha_mean: float = 1.0
    """Initial multiplier of the KL of the means of continuous actions."""
    initial_alpha_covariance: float = 1.0
    """Initial multiplier of the KL of the covariances of continuous actions."""

    hyperparameters: ClassVar[tuple[str, ...]] = (
        *AlgorithmConfig.hyperparameters,
        "epsilon_eta",
        "epsilon_alpha",
        "epsilon_mean",
        "epsilon_covariance",
        "initial_eta",
        "initial_alpha",
        "initial_alpha_mean",
        "initial_alpha_covariance",
    )

    def make(self, config: Any, agent: Any) -> Any:
        # Imports environments, which configs do without.
        from gtrxl_jax.online.vmpo import VMPO

        return VMPO(config, agent)


@dataclasses.dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """Settings of PPO."""

    name: str = "ppo"
    entropy_final: float = number(0.1, at_least=0, at_most=1)
    """Fraction of the entropy bonus that remains at the end of a linear decay, which takes as long
    as that of the learning rate; 1: no decay. Advantages are normalized, so that the bonus would
    otherwise keep an agent exploring that has learned all but the last step."""
    epochs: int = 4
    """Number of passes over a rollout. The more optimizer steps are taken on a rollout, that is
    epochs * minibatches, the lower the learning rate has to be."""
    clip_epsilon: float = number(0.2, below=1)
    """Range in which the ratio of new to old probabilities is not clipped: 1 - epsilon to
    1 + epsilon."""
    value_clip: float | None = None
    """Clip the change of the values since acting to this distance, in the value loss. With PopArt,
    the unit is the standard deviation of returns. None: unclipped."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of each rollout to mean 0 and variance 1. Without it, they are
    relative to the standard deviation of returns (with PopArt), and decrease as values become
    accurate, so the entropy bonus gains in weight."""

    learning_rate: ClassVar[float] = 5e-4
    hyperparameters: ClassVar[tuple[str, ...]] = (*AlgorithmConfig.hyperparameters, "clip_epsilon")

    def make(self, config: Any, agent: Any) -> Any:
        # Imports environments, which configs do without.
        from gtrxl_jax.online.ppo import PPO

        return PPO(config, agent)


ALGORITHMS = Registry("algorithm.name", AlgorithmConfig)
"""The config of each registered algorithm."""


def register_algorithm(name: str, config: type[AlgorithmConfig]) -> None:
    """Register an algorithm by its config; see `Registry.register`."""
    ALGORITHMS.register(name, config)


register_algorithm("vmpo", VMPOConfig)
register_algorithm("ppo", PPOConfig)
