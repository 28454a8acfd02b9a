"""IQL: implicit Q-learning (Kostrikov et al. 2022), for actions of every kind.

An update takes an optimizer step on each network in turn:

  - V: the expectile of the target critics' smaller value of the data's actions;
  - the actor: imitation of the data's actions with weights exp(beta A / rms(A)), at most 100, of
    A = Q - V;
  - the critics: r + gamma V of the next step.

The actor's Gaussian, where actions are continuous, is that of the sequence models: its scale is
half the range, not learned, so that the actor learns the weighted mean of actions. The authors'
scale is learned and does not depend on the state; evaluations play the mean in both. Instead of
scaling the rewards of some benchmarks by the range of their returns, as the authors do, rewards are
scaled in all tasks, see `ActorCritic.prepare`, and advantages too.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gtrxl_jax.nn.heads import USUAL, ValueHead
from gtrxl_jax.offline.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticLearner,
    Loss,
    Window,
    current_steps,
    in_reward_units,
    mean_scores,
    next_steps,
)
from gtrxl_jax.offline.algorithm import Metrics, Setup
from gtrxl_jax.ops import iql
from gtrxl_jax.ops.losses import masked_mean
from gtrxl_jax.ops.td import td_targets
from gtrxl_jax.parallel.placement import gather_parameters
from gtrxl_jax.segments import Segments
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class IQLConfig(ActorCriticConfig):
    """Settings of IQL."""

    name: str = "iql"
    expectile: float = number(0.7, below=1)
    """tau: the expectile of Q over the data's actions that V is. 0.5: the mean; 0.9 where good
    actions are rare, as in the paper's mazes."""
    inverse_temperature: float = number(3.0, at_least=0)
    """beta: how much more the actor imitates better actions; 0: all alike. Advantages are divided
    by their root mean square, so that it does not depend on the size of rewards."""

    def make(self, setup: Setup) -> "IQL":
        return IQL(self, setup)


class IQL(ActorCritic):
    """Implicit Q-learning."""

    config: IQLConfig

    def __init__(self, config: IQLConfig, setup: Setup):
        super().__init__(config, setup)
        dtype = jnp.result_type(float)
        self._state_value = ValueHead(
            hidden=config.head_width, kernel_init=USUAL, dtype=dtype, param_dtype=dtype
        )

    def make_networks(self, params: Any, key: Key[Array, ""]) -> dict[str, Any]:
        key_critics, key_value = jax.random.split(key)
        value = self.make_critic(params, key_value, self._state_value)
        return {"critics": self.make_critics(params, key_critics), "value": value}

    def critic_loss(self, learner: ActorCriticLearner, window: Window, key: Key[Array, ""]) -> Loss:
        value_BW = self._values(gather_parameters(learner.networks["value"]), window)
        return self._loss_of_critics(window, value_BW)

    def update(
        self, learner: ActorCriticLearner, batch: Segments, key: Key[Array, ""]
    ) -> tuple[ActorCriticLearner, Metrics]:
        config, (learner, window) = self.config, self.prepare(learner, batch)
        key_value, key_actor, key_critics = jax.random.split(key, 3)
        targets = gather_parameters(learner.targets["critics"])
        h_CBSD = self.critic_features(targets, window)[:, :, :-1]
        q_BS = jnp.min(self.action_values(targets, h_CBSD, window.actions), axis=0)

        def loss_of_value(value: Any) -> Any:
            value_BS = current_steps(self._values(value, window, key_value))
            loss_BS = iql.expectile_loss(value_BS, q_BS, config.expectile)
            return masked_mean(loss_BS, window.mask), None

        learner, _, metrics = self.step(learner, "value", loss_of_value)
        value_BW = self._values(gather_parameters(learner.networks["value"]), window)
        value_BS = current_steps(value_BW)
        weight_BS = iql.advantage_weights(q_BS, value_BS, window.mask, config.inverse_temperature)

        def loss_of_actor(params: Any) -> Any:
            policy = current_steps(self.read(params, window, key_actor))
            loss_BS = -weight_BS * policy.log_prob(window.actions)
            return masked_mean(loss_BS, window.mask), mean_scores(policy, window)

        learner, scores, of_actor = self.step(learner, "actor", loss_of_actor)
        loss_of_critics = self._loss_of_critics(window, value_BW)
        learner, of_critics = self.step_critic(learner, loss_of_critics, key_critics)
        metrics |= of_actor | of_critics | scores
        metrics |= in_reward_units({"value": masked_mean(value_BS, window.mask)}, window)
        metrics["advantage_weight"] = masked_mean(weight_BS, window.mask)
        return self.finish(self.move_targets(learner), metrics)

    def _loss_of_critics(self, window: Window, value_BW: Float[Array, "B W"]) -> Loss:
        gamma = self.config.gamma
        target_BS = td_targets(window.rewards, window.terminated, next_steps(value_BW), gamma)
        return self.td_loss(window, target_BS)

    def _values(
        self, value: Any, window: Window, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B W"]:
        """Return V at the W = S + 1 steps of windows."""
        h_BWD = self.read(value["history"], window, key, "features")
        values: Any = self._state_value.apply({"params": value["head"]}, h_BWD)
        return values
