"""V-MPO as an `Algorithm`: the loss of `ops.vmpo`, a target network that acts, and multipliers.

The online network is applied once to the T + 1 steps. Its values determine the lambda-returns, and
these the new PopArt statistics. The loss is computed in units of the new statistics, and the value
head is rescaled to them with the optimizer's step, so values V change only by that step.

Adam changes a parameter by about the learning rate per update, regardless of its gradient, so the
multipliers would take a thousand updates from 1 to their final values. By default they are updated
separately, by `vmpo.scale_multipliers`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.agent import Agent
from gtrxl_jax.nn.heads import rescale_value_head
from gtrxl_jax.nn.normalizer import with_normalizers
from gtrxl_jax.online.algorithm import Algorithm, Experience, LearnerState
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.episodes import Summary, gradient_shares
from gtrxl_jax.ops import popart, vmpo
from gtrxl_jax.runs.divergence import in_range
from gtrxl_jax.timestep import TimeStep

_EPSILONS = {
    "categorical": "epsilon_alpha",
    "mean": "epsilon_mean",
    "covariance": "epsilon_covariance",
}
"""The name of the bound on each part of the KL."""

_INITIAL = {
    "categorical": "initial_alpha",
    "mean": "initial_alpha_mean",
    "covariance": "initial_alpha_covariance",
}
"""The name of the initial multiplier of each part of the KL."""


class VMPO(Algorithm):
    """V-MPO (Song et al. 2019). Its own state is the target network's parameters."""

    def __init__(self, config: OnlineConfig, agent: Agent):
        super().__init__(config, agent)
        action = agent.policy_head.action
        self._parts = ["categorical"] * bool(action.discrete)
        self._parts += ["mean", "covariance"] * bool(action.num_continuous)

    def extra_trainable(self, hyperparameters: dict[str, Float[Array, ""]]) -> dict[str, Any]:
        """Return the multipliers."""
        alphas = {part: hyperparameters[_INITIAL[part]] for part in self._parts}
        return {"multipliers": vmpo.Multipliers(hyperparameters["initial_eta"], alphas)}

    def initial_state(self, params: Any) -> Any:
        """Return the target network's parameters."""
        # Copied, since a donated state must not contain the same buffer twice.
        return jax.tree.map(jnp.copy, params)

    def acting_params(self, state: LearnerState) -> Any:
        """Return the target network's parameters."""
        return state.algorithm

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, experience: Experience
    ) -> tuple[Float[Array, ""], tuple[Summary, popart.PopArtStatistics]]:
        """Compute the V-MPO loss. The gradient of the value head is that before rescaling."""
        params = trainable["params"]
        y_BSD, reports = self.features(params, experience)
        output = self.heads(params, y_BSD, experience.timesteps)
        targets = self.targets(state, experience, output.value, self.config.epochs)

        def losses(y_BSD: Array, psi_BT: Array | None = None) -> Any:
            """Compute losses and advantages in each task's normalized units, comparable by task."""
            output = self.heads(params, y_BSD, experience.timesteps)
            return vmpo.vmpo_losses(
                policy=jax.tree.map(lambda x: x[:, :-1], output.policy),
                target_policy=experience.output.policy,
                actions=experience.actions,
                values_BT=targets.values(output.value),
                returns_BT=targets.returns_BT,
                mask_BT=targets.mask_BT,
                multipliers=trainable["multipliers"],
                hyperparameters=self._bounds(state),
                psi_BT=psi_BT,
            )

        terms, metrics, psi_BT = losses(y_BSD)
        # Reuses psi, since sorting the advantages again would also gather them again.
        metrics |= gradient_shares(
            lambda y_BSD: losses(y_BSD, psi_BT)[0],
            jax.lax.stop_gradient(y_BSD),
            {"policy": ("policy", "entropy"), "value": ("value",), "kl": ("alpha_",)},
        )
        total, named = self.total(terms, reports)
        return total, (metrics | named, targets.statistics)

    def rescaled(self, state: LearnerState, statistics: popart.PopArtStatistics) -> LearnerState:
        """Rescale the value heads of both networks."""
        target = rescale_value_head(state.algorithm, state.popart, statistics)
        return dataclasses.replace(super().rescaled(state, statistics), algorithm=target)

    def observed(self, state: LearnerState, timesteps: TimeStep) -> LearnerState:
        """Update the normalizers of both networks, so that they see the same inputs."""
        state = super().observed(state, timesteps)
        target = with_normalizers(state.algorithm, state.params)
        return dataclasses.replace(state, algorithm=target)

    def after_step(
        self, before: LearnerState, after: LearnerState, metrics: Summary
    ) -> LearnerState:
        """Update the multipliers, and the target network when it is due."""
        multipliers = after.trainable["multipliers"]
        if self.config.multipliers == "scale":
            multipliers = vmpo.scale_multipliers(
                before.trainable["multipliers"],
                metrics["psi/kl"],
                {part: metrics[f"kl/{part}"] for part in self._parts},
                self._bounds(before),
                self.config.multiplier_rate,
            )
        multipliers = vmpo.project_multipliers(multipliers, self.config.alpha_bounds)
        is_due = after.step % self.config.target_period == 0
        target = jax.tree.map(
            lambda new, old: jnp.where(is_due, new, old), after.params, after.algorithm
        )
        trainable = {**after.trainable, "multipliers": multipliers}
        return dataclasses.replace(after, trainable=trainable, algorithm=target)

    def sound(self, state: LearnerState) -> dict[str, Bool[Array, ""]]:
        """Return whether the multipliers are in range."""
        multipliers = state.trainable["multipliers"]
        return {
            "temperature": in_range(multipliers.temperature),
            "multiplier of the KL": in_range(multipliers.alphas),
        }

    def _bounds(self, state: LearnerState) -> vmpo.VMPOHyperparameters:
        values = state.hyperparameters
        return vmpo.VMPOHyperparameters(
            epsilon_eta=values["epsilon_eta"],
            epsilon_alphas={part: values[_EPSILONS[part]] for part in self._parts},
            value_cost=values["value_cost"],
            entropy_cost=self.entropy_cost(state),
        )
