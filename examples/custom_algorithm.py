"""A custom algorithm: REINFORCE with a baseline, and entropy annealed to zero.

    cd examples
    gtrxl train --algorithm.name custom_algorithm:ReinforceConfig --algorithm.anneal 500

A custom algorithm subclasses `Algorithm` and implements `loss`. Its config defines its settings,
which become the command-line options --algorithm.SETTING. `Algorithm` provides returns, PopArt,
gradient clipping, Adam, epochs and minibatches.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gtrxl_jax.online.algorithm import Algorithm, Experience, LearnerState
from gtrxl_jax.online.algorithm_config import AlgorithmConfig
from gtrxl_jax.ops.losses import masked_mean, value_loss


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(AlgorithmConfig):
    """Settings of `Reinforce`."""

    name: str = "custom_algorithm:ReinforceConfig"
    anneal: int = 1000
    """Number of optimizer steps over which the entropy bonus decreases to zero."""

    hyperparameters: ClassVar[tuple[str, ...]] = (*AlgorithmConfig.hyperparameters, "anneal")

    def make(self, config: Any, agent: Any) -> "Reinforce":
        """Create the algorithm."""
        return Reinforce(config, agent)


class Reinforce(Algorithm):
    """Policy gradients (Williams 1992) with lambda-returns and the values as a baseline.

    L = - mean_t A_t log pi(a_t | s_t) + c_v L_value - c_e H,    A_t = G_t - V(s_t)
    """

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, experience: Experience
    ) -> tuple[jax.Array, Any]:
        """Compute the loss; see `Algorithm.loss`."""
        params, settings = trainable["params"], state.hyperparameters
        y_BSD, reports = self.features(params, experience)
        output = self.heads(params, y_BSD, experience.timesteps)
        targets = self.targets(state, experience, output.value, self.config.epochs)
        values_BT = targets.values(output.value)
        advantages_BT = jax.lax.stop_gradient(targets.returns_BT - values_BT)

        policy = jax.tree.map(lambda x_BS: x_BS[:, :-1], output.policy)
        log_prob_BT = policy.log_prob(experience.actions)
        entropy = masked_mean(policy.entropy(), targets.mask_BT)
        remaining = jnp.maximum(1 - state.step.astype(float) / settings["anneal"], 0)
        terms = {
            "policy": -masked_mean(advantages_BT * log_prob_BT, targets.mask_BT),
            "value": settings["value_cost"]
            * value_loss(values_BT, targets.returns_BT, targets.mask_BT),
            "entropy": -remaining * settings["entropy_cost"] * entropy,
        }
        total, metrics = self.total(terms, reports)
        return total, (metrics | {"entropy": entropy}, targets.statistics)
