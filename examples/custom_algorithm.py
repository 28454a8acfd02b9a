"""A custom algorithm: REINFORCE with a baseline, and entropy annealed to zero.

    cd examples
    gtrxl train --algorithm.name custom_algorithm:ReinforceConfig --algorithm.anneal 500

The algorithm extends `OnPolicy` by a loss. Its config defines its settings, which become the
command-line options --algorithm.SETTING. `OnPolicy` provides returns, PopArt, gradient clipping,
Adam, epochs and minibatches. An algorithm without these implements `Algorithm` itself.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gtrxl_jax.online.algorithm import Experience, Setup, run_segment, sum_losses
from gtrxl_jax.online.on_policy import LearnerState, OnPolicy, OnPolicyConfig
from gtrxl_jax.ops.losses import masked_mean, value_loss


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    """Settings of `Reinforce`."""

    name: str = "custom_algorithm:ReinforceConfig"
    anneal: int = 1000
    """Number of optimizer steps over which the entropy bonus decreases to zero."""

    hyperparameters: ClassVar[tuple[str, ...]] = (*OnPolicyConfig.hyperparameters, "anneal")

    def make(self, setup: Setup) -> "Reinforce":
        """Create the algorithm."""
        return Reinforce(self, setup)


class Reinforce(OnPolicy):
    """Policy gradients (Williams 1992) with lambda-returns and the values as a baseline.

    L = - mean_t A_t log pi(a_t | s_t) + c_v L_value - c_e H,    A_t = G_t - V(s_t)
    """

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, batch: Experience
    ) -> tuple[jax.Array, Any]:
        """Compute the loss; see `OnPolicy.loss`."""
        params, settings = trainable["params"], state.hyperparameters
        output, reports = run_segment(self.agent, params, batch.memory, batch.timesteps)
        targets = self.targets(state, batch, output.value, self.config.epochs)
        values_BT = targets.values(output.value)
        advantages_BT = jax.lax.stop_gradient(targets.returns_BT - values_BT)

        policy = jax.tree.map(lambda x_BS: x_BS[:, :-1], output.policy)
        log_prob_BT = policy.log_prob(batch.actions)
        entropy = masked_mean(policy.entropy(), targets.mask_BT)
        remaining = jnp.maximum(1 - state.step.astype(float) / settings["anneal"], 0)
        terms = {
            "policy": -masked_mean(advantages_BT * log_prob_BT, targets.mask_BT),
            "value": settings["value_cost"]
            * value_loss(values_BT, targets.returns_BT, targets.mask_BT),
            "entropy": -remaining * settings["entropy_cost"] * entropy,
        }
        total, metrics = sum_losses(terms, reports)
        return total, (metrics | {"entropy": entropy}, targets.statistics)
