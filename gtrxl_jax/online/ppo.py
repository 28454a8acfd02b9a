"""PPO as an `Algorithm`: the loss of `ops.ppo`, on minibatches of whole segments.

Three lengths matter. A segment has T steps (`unroll`), the gradient window: a gradient reaches at
most the T - 1 steps before its own, and none enters the memory. A transformer's memory of M steps
is what a step can attend to, in its segment and before it. A rollout has K segments of each
environment (`segments`), over which returns and advantages extend: with K > 1 it is longer than the
gradient window. Only within T steps do gradients reach what was written; M steps suffice to learn
to read what is stored anyway, such as an encoded cue.

Minibatches are random subsets of the segments, so segments stay whole, with the memory before their
first step. This memory is the one that acted: the stored states of the acting network. Acting and
learning therefore agree on the first minibatch, whose ratios are 1. After each optimizer step, the
stored memory is that of slightly older parameters, like the stored states of R2D2 (Kapturowski et
al. 2019). Recomputing it would require the steps before the segment; it is at most one rollout old,
in which the clipping of the ratio limits how far the policy moves.

Values at the time of acting determine the lambda-returns, advantages and new PopArt statistics once
per rollout. The value head is rescaled to these before the first optimizer step, so values V change
only by optimizer steps.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from gtrxl_jax.nn.agent import Agent
from gtrxl_jax.online.algorithm import Algorithm, Experience, LearnerState, of_task
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.online.episodes import Summary, gradient_shares
from gtrxl_jax.ops import popart, ppo
from gtrxl_jax.ops.returns import transition_mask
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class Prepared:
    """What stays fixed while learning from a rollout, in the units of its PopArt statistics.

    Attributes:
      values_BT: V at the time of acting.
      returns_BT: lambda-returns.
      advantages_BT: returns minus values, normalized if the config says so.
    """

    values_BT: Float[Array, "B T"]
    returns_BT: Float[Array, "B T"]
    advantages_BT: Float[Array, "B T"]


class PPO(Algorithm):
    """Proximal policy optimization (Schulman et al. 2017)."""

    def __init__(self, config: OnlineConfig, agent: Agent):
        super().__init__(config, agent)
        self._num_segments = config.segments

    def prepare(
        self, state: LearnerState, experience: Experience
    ) -> tuple[LearnerState, Experience]:
        """Compute returns and advantages, and update the PopArt statistics."""
        bootstrap_B1N = experience.bootstrap_BN[:, None]
        value_BSN = jnp.concatenate([experience.output.value, bootstrap_B1N], axis=1)
        targets = self.targets(state, experience, value_BSN)
        values_BT = targets.values(value_BSN)
        advantages_BT = targets.returns_BT - values_BT
        if self.config.normalize_advantages:
            advantages_BT = ppo.normalize_advantages(advantages_BT, targets.mask_BT)
        if self.config.popart:
            state = self.rescaled(state, targets.statistics)
        prepared = Prepared(values_BT, targets.returns_BT, advantages_BT)
        return state, dataclasses.replace(experience, prepared=prepared)

    def returns(
        self, state: LearnerState, timesteps: TimeStep, value_BS: Float[Array, "B S"]
    ) -> Float[Array, "B T"]:
        """Return the lambda-returns of whole rollouts, across their segments."""

        def joined(x_BS: Array) -> Array:
            x_EKS = x_BS.reshape(-1, self._num_segments, *x_BS.shape[1:])
            steps = x_EKS[:, :, :-1].reshape(len(x_EKS), -1, *x_BS.shape[2:])
            return jnp.concatenate([steps, x_EKS[:, -1, -1:]], axis=1)

        rollouts, values = jax.tree.map(joined, (timesteps, value_BS))
        return super().returns(state, rollouts, values).reshape(len(value_BS), -1)

    def loss(
        self, trainable: dict[str, Any], state: LearnerState, experience: Experience
    ) -> tuple[Float[Array, ""], tuple[Summary, popart.PopArtStatistics]]:
        params, prepared = trainable["params"], experience.prepared
        mask_BT = transition_mask(experience.timesteps.last)
        # The bootstrap step's value is needed before the first optimizer step only.
        acted = jax.tree.map(lambda x_BS: x_BS[:, :-1], experience.timesteps)
        y_BTD, reports = self.features(params, dataclasses.replace(experience, timesteps=acted))

        def losses(y_BTD: Array) -> tuple[Summary, Summary]:
            output = self.heads(params, y_BTD, acted)
            return ppo.ppo_losses(
                policy=output.policy,
                old_policy=experience.output.policy,
                actions=experience.actions,
                values_BT=of_task(output.value, experience.task),
                old_values_BT=prepared.values_BT,
                returns_BT=prepared.returns_BT,
                advantages_BT=prepared.advantages_BT,
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
        total, named = self.total(terms, reports)
        return total, (metrics | named, state.popart)

    def _hyperparameters(self, state: LearnerState) -> ppo.PPOHyperparameters:
        values = state.hyperparameters
        return ppo.PPOHyperparameters(
            clip_epsilon=values["clip_epsilon"],
            value_cost=values["value_cost"],
            entropy_cost=self.entropy_cost(state),
        )
