"""PPO: the loss of `ops.ppo`, on minibatches of whole segments.

Three lengths matter. A segment has T steps (`unroll`), the gradient window: a gradient reaches at
most the T - 1 steps before its own, and none enters the memory. A transformer's memory of M steps
is what a step can attend to, in its segment and before it. A rollout has K segments of each
environment (`segments`), over which returns and advantages extend: with K > 1 it is longer than the
gradient window. Only within T steps do gradients reach what was written; M steps suffice to learn
to read what is stored anyway, such as an encoded cue.

Minibatches are random subsets of the segments, so segments stay whole, with the memory before their
first step. This memory is the one that acted: the stored states of the acting network. Acting and
learning therefore agree on the first minibatch, whose ratios are 1. After each optimizer step, the
stored memory was written by slightly older parameters, like the stored states of R2D2 (Kapturowski
et al. 2019). Recomputing it would require the steps before the segment; it is at most one rollout
old, in which the clipping of the ratio limits how far the policy moves.

Values at the time of acting determine the lambda-returns, advantages and new PopArt statistics once
per rollout. The value head is rescaled to these before the first optimizer step, so values V change
only by optimizer steps.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from gtrxl_jax.online.algorithm import Experience, Metrics, Setup, run_segment, sum_losses
from gtrxl_jax.online.on_policy import (
    LearnerState,
    OnPolicy,
    OnPolicyConfig,
    gradient_shares,
    select_task,
)
from gtrxl_jax.ops import popart, ppo
from gtrxl_jax.ops.returns import transition_mask
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    name: str = "ppo"
    entropy_final: float = number(0.1, at_least=0, at_most=1)
    """Fraction of the entropy bonus that remains at the end of a linear decay, which takes as long
    as the learning rate's; 1: no decay. Advantages are normalized, so that the bonus would
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
    min_advantage_std: float = number(0.1, at_least=0)
    """Normalized advantages are divided by at least this, in units of the standard deviation of
    returns (with PopArt; without, there is no such bound). Where a task is solved, the advantages
    that remain are errors of the values; scaled to variance 1, they lead the policy astray."""

    learning_rate: ClassVar[float] = 5e-4
    hyperparameters: ClassVar[tuple[str, ...]] = (*OnPolicyConfig.hyperparameters, "clip_epsilon")

    def make(self, setup: Setup) -> "PPO":
        if setup.agent.pixel_control and setup.unroll == 1:
            raise ValueError(
                "agent.pixel_control learns from what changes within a segment, which has a single "
                "step with unroll 1: raise unroll, or omit agent.pixel_control"
            )
        return PPO(self, setup)


@struct.dataclass
class Batch(Experience):
    """A rollout, with what stays fixed in all passes, in the units of its PopArt statistics.

    Attributes:
      values_BT: V at the time of acting.
      returns_BT: lambda-returns.
      advantages_BT: returns minus values, normalized if the config says so.
    """

    values_BT: Float[Array, "B T"]
    returns_BT: Float[Array, "B T"]
    advantages_BT: Float[Array, "B T"]


class PPO(OnPolicy):
    """Proximal policy optimization (Schulman et al. 2017)."""

    def update(
        self, learner: LearnerState, experience: Experience, key: Key[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Compute the advantages of a rollout, then take the optimizer steps."""
        learner, batch = self.prepare(learner, experience)
        return super().update(learner, batch, key)

    def prepare(self, state: LearnerState, experience: Experience) -> tuple[LearnerState, Batch]:
        """Compute returns and advantages, and update the PopArt statistics."""
        bootstrap_B1N = experience.bootstrap.value[:, None]
        value_BSN = jnp.concatenate([experience.extras.value, bootstrap_B1N], axis=1)
        targets = self.targets(state, experience, value_BSN)
        values_BT = targets.values(value_BSN)
        advantages_BT = targets.returns_BT - values_BT
        if self.config.normalize_advantages:
            min_std = self.config.min_advantage_std if self.config.popart else 0.0
            advantages_BT = ppo.normalize_advantages(advantages_BT, targets.mask_BT, min_std)
        if self.config.popart:
            state = self.rescale(state, targets.statistics)
        return state, Batch(
            **vars(experience),
            values_BT=values_BT,
            returns_BT=targets.returns_BT,
            advantages_BT=advantages_BT,
        )

    def returns(
        self, state: LearnerState, timesteps: TimeStep, value_BS: Float[Array, "B S"]
    ) -> Float[Array, "B T"]:
        """Return the lambda-returns of whole rollouts, across their segments."""

        def joined(x_BS: Array) -> Array:
            # A segment's last step is the first of the next. The reward of the former has the bonus
            # of arriving there.
            x_EKS = x_BS.reshape(-1, self.segments, *x_BS.shape[1:])
            arrivals = x_EKS[:, :, 1:].reshape(len(x_EKS), -1, *x_BS.shape[2:])
            return jnp.concatenate([x_EKS[:, 0, :1], arrivals], axis=1)

        rollouts, values = jax.tree.map(joined, (timesteps, value_BS))
        return super().returns(state, rollouts, values).reshape(len(value_BS), -1)

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, batch: Batch
    ) -> tuple[Float[Array, ""], tuple[Metrics, popart.PopArtStatistics]]:
        params, mask_BT = trainable["params"], transition_mask(batch.timesteps.last)
        # The bootstrap step's value is needed before the first optimizer step only.
        acted = jax.tree.map(lambda x_BS: x_BS[:, :-1], batch.timesteps)
        y_BTD, reports = run_segment(self.agent, params, batch.memory, acted, "features")

        def losses(y_BTD: Array) -> tuple[Metrics, Metrics]:
            output = self.heads(params, y_BTD, acted)
            return ppo.ppo_losses(
                distribution=output.policy,
                old_distribution=batch.extras.policy,
                actions=batch.actions,
                values_BT=select_task(output.value, batch.task),
                old_values_BT=batch.values_BT,
                returns_BT=batch.returns_BT,
                advantages_BT=batch.advantages_BT,
                mask_BT=mask_BT,
                hyperparameters=self._hyperparameters(state),
                value_clip=self.config.value_clip,
            )

        terms, metrics = losses(y_BTD)
        metrics |= gradient_shares(
            lambda y_BTD: losses(y_BTD)[0],
            jax.lax.stop_gradient(y_BTD),
            {"policy": ("policy", "entropy"), "value": ("value",)},
        )
        total, named = sum_losses(terms, reports)
        return total, (metrics | named, state.popart)

    def _hyperparameters(self, state: LearnerState) -> ppo.PPOHyperparameters:
        values = state.hyperparameters
        return ppo.PPOHyperparameters(
            clip_epsilon=values["clip_epsilon"],
            value_cost=values["value_cost"],
            entropy_cost=self.entropy_cost(state),
        )
