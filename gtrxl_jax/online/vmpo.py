"""V-MPO: the loss of `ops.vmpo`, a target network that acts, and multipliers.

The online network is applied once to the T + 1 steps. Its values determine the lambda-returns, and
these the new PopArt statistics. The loss is computed in units of the new statistics, and the value
head is rescaled to them with the optimizer's step, so values V change only by that step.

Adam changes a parameter by about the learning rate per update, regardless of its gradient, so the
multipliers would take a thousand updates from 1 to their final values. By default they are updated
separately, by `vmpo.scale_multipliers`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gtrxl_jax.online.algorithm import (
    Experience,
    Metrics,
    Setup,
    copy_if,
    run_segment,
    sum_losses,
)
from gtrxl_jax.online.on_policy import LearnerState, OnPolicy, OnPolicyConfig, gradient_shares
from gtrxl_jax.ops import popart, vmpo
from gtrxl_jax.runs.divergence import is_in_range
from gtrxl_jax.validation import choice, interval


@dataclasses.dataclass(frozen=True)
class VMPOConfig(OnPolicyConfig):
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
        *OnPolicyConfig.hyperparameters,
        "epsilon_eta",
        "epsilon_alpha",
        "epsilon_mean",
        "epsilon_covariance",
        "initial_eta",
        "initial_alpha",
        "initial_alpha_mean",
        "initial_alpha_covariance",
    )

    def check(self) -> None:
        """Raise ValueError if an alpha begins outside of its range."""
        low, high = self.alpha_bounds
        for name in _INITIAL.values():
            if not low <= getattr(self, name) <= high:
                raise ValueError(
                    f"algorithm.{name} {getattr(self, name):g} is outside algorithm.alpha_bounds "
                    f"{low:g} to {high:g}: change one of them"
                )

    def make(self, setup: Setup) -> "VMPO":
        return VMPO(self, setup)


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


class VMPO(OnPolicy):
    """V-MPO (Song et al. 2019). Its own state is the target network's parameters."""

    def __init__(self, config: VMPOConfig, setup: Setup):
        super().__init__(config, setup)
        action = self.agent.policy_head.action
        self._parts = ["categorical"] * bool(action.discrete)
        self._parts += ["mean", "covariance"] * bool(action.num_continuous)

    def init(
        self,
        params: Any,
        hyperparameters: dict[str, Float[Array, ""]],
        experience: Experience,
        **_: Any,
    ) -> LearnerState:
        """Return the state at the start of a run: with multipliers, and the target network."""
        alphas = {part: hyperparameters[_INITIAL[part]] for part in self._parts}
        multipliers = vmpo.Multipliers(hyperparameters["initial_eta"], alphas)
        return super().init(
            params,
            hyperparameters,
            experience,
            extra={"multipliers": multipliers},
            # Copied, since a donated state must not contain the same buffer twice.
            own=jax.tree.map(jnp.copy, params),
        )

    def acting_params(self, state: LearnerState) -> Any:
        """Return the target network's parameters."""
        return state.algorithm

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, batch: Experience
    ) -> tuple[Float[Array, ""], tuple[Metrics, popart.PopArtStatistics]]:
        """Compute the V-MPO loss. The gradient of the value head is that before rescaling."""
        params = trainable["params"]
        y_BSD, reports = run_segment(self.agent, params, batch.memory, batch.timesteps, "features")
        output = self.heads(params, y_BSD, batch.timesteps)
        targets = self.targets(state, batch, output.value, self.config.epochs)

        def losses(y_BSD: Array, psi_BT: Array | None = None) -> Any:
            """Compute losses and advantages in each task's normalized units, comparable by task."""
            output = self.heads(params, y_BSD, batch.timesteps)
            return vmpo.vmpo_losses(
                distribution=jax.tree.map(lambda x: x[:, :-1], output.policy),
                target_distribution=batch.extras.policy,
                actions=batch.actions,
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
        total, named = sum_losses(terms, reports)
        return total, (metrics | named, targets.statistics)

    def map_networks(self, state: LearnerState, function: Callable[[Any], Any]) -> LearnerState:
        """Apply a function to the parameters of both networks."""
        state = super().map_networks(state, function)
        return dataclasses.replace(state, algorithm=function(state.algorithm))

    def step(self, state: LearnerState, batch: Experience) -> tuple[LearnerState, Metrics]:
        """Take an optimizer step, update the multipliers, and the target network when it is due."""
        after, metrics = super().step(state, batch)
        multipliers = after.trainable["multipliers"]
        if self.config.multipliers == "scale":
            multipliers = vmpo.scale_multipliers(
                state.trainable["multipliers"],
                metrics["psi/kl"],
                {part: metrics[f"kl/{part}"] for part in self._parts},
                self._bounds(state),
                self.config.multiplier_rate,
            )
        multipliers = vmpo.project_multipliers(multipliers, self.config.alpha_bounds)
        is_due = after.step % self.config.target_period == 0
        target = copy_if(is_due, after.params, after.algorithm)
        metrics |= {
            "finite/temperature": is_in_range(multipliers.temperature),
            "finite/multiplier of the KL": is_in_range(multipliers.alphas),
        }
        trainable = after.trainable | {"multipliers": multipliers}
        return dataclasses.replace(after, trainable=trainable, algorithm=target), metrics

    def _bounds(self, state: LearnerState) -> vmpo.VMPOHyperparameters:
        values = state.hyperparameters
        return vmpo.VMPOHyperparameters(
            epsilon_eta=values["epsilon_eta"],
            epsilon_alphas={part: values[_EPSILONS[part]] for part in self._parts},
            value_cost=values["value_cost"],
            entropy_cost=self.entropy_cost(state),
        )
