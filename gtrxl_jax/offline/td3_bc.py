"""TD3+BC: TD3 with imitation (Fujimoto and Gu 2021), for continuous actions.

An update takes an optimizer step on the critics, towards

    r + gamma min_i Q'_i(h', clip(pi'(h') + noise))

with target networks and clipped noise (Fujimoto et al. 2018, "Addressing function approximation
error in actor-critic methods"), and, every `policy_delay` updates, one on the actor, whose loss is
`ops.td3_bc.behavior_regularized_loss`; only then do the target networks move. The actor's action is
the mean of the sequence model's Gaussian, which a tanh keeps within the range, if there is one.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gtrxl_jax.offline.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticLearner,
    Loss,
    Window,
    current_steps,
    mean_scores,
    next_steps,
)
from gtrxl_jax.offline.algorithm import Metrics, Setup
from gtrxl_jax.ops.losses import learn_if
from gtrxl_jax.ops.td import td_targets
from gtrxl_jax.ops.td3_bc import behavior_regularized_loss
from gtrxl_jax.parallel.placement import gather_parameters
from gtrxl_jax.segments import Segments
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class TD3BCConfig(ActorCriticConfig):
    """Settings of TD3+BC."""

    name: str = "td3-bc"
    alpha: float = number(2.5, at_least=0)
    """Weight of the values, relative to their mean size, against imitation; 0: imitation."""
    policy_delay: int = 2
    """Updates of the critics for each of the actor and the target networks."""
    target_noise: float = number(0.2, at_least=0)
    """Standard deviation of the noise of target actions, in half-widths of their range."""
    target_noise_clip: float = number(0.5, at_least=0)
    """The largest noise of a target action, in half-widths of its range."""

    def make(self, setup: Setup) -> "TD3BC":
        return TD3BC(self, setup)


class TD3BC(ActorCritic):
    """TD3 with imitation."""

    with_targets: ClassVar[tuple[str, ...]] = ("actor", "critics")
    config: TD3BCConfig

    def __init__(self, config: TD3BCConfig, setup: Setup):
        super().__init__(config, setup)
        if self.action.discrete or not self.action.continuous:
            raise ValueError(
                f"algorithm.name td3-bc needs continuous actions, not {setup.action_space}: use "
                "cql for one discrete action, or iql for any"
            )

    def critic_loss(self, learner: ActorCriticLearner, window: Window, key: Key[Array, ""]) -> Loss:
        key_noise, _, _ = jax.random.split(key, 3)
        targets = gather_parameters(learner.targets)
        next_action = next_steps(self.read(targets["actor"], window, None)).mode()
        h_CBWD = self.critic_features(targets["critics"], window)
        q_CBS = self.action_values(
            targets["critics"], h_CBWD[:, :, 1:], self._smooth(next_action, key_noise)
        )
        target_BS = td_targets(
            window.rewards, window.terminated, jnp.min(q_CBS, axis=0), self.config.gamma
        )
        return self.td_loss(window, target_BS)

    def update(
        self, learner: ActorCriticLearner, batch: Segments, key: Key[Array, ""]
    ) -> tuple[ActorCriticLearner, Metrics]:
        config, (learner, window) = self.config, self.prepare(learner, batch)
        _, key_critics, key_actor = jax.random.split(key, 3)
        loss_of_critics = self.critic_loss(learner, window, key)
        learner, of_critics = self.step_critic(learner, loss_of_critics, key_critics)

        def learn_actor(learner: ActorCriticLearner) -> tuple[ActorCriticLearner, Metrics]:
            # The first critic alone, as in TD3.
            first = gather_parameters(jax.tree.map(lambda x: x[:1], learner.networks["critics"]))
            h_CBSD = self.critic_features(first, window)[:, :, :-1]

            def loss_of_actor(params: Any) -> Any:
                policy = current_steps(self.read(params, window, key_actor))
                action = policy.mode()
                q_CBS = self.action_values(first, h_CBSD, action)
                total = behavior_regularized_loss(
                    q_CBS[0], self._error(action, window.actions), window.mask, config.alpha
                )
                return total, mean_scores(policy, window) | {"loss/actor": total}

            learner, scores, metrics = self.step(learner, "actor", loss_of_actor)
            return self.move_targets(learner), metrics | scores

        # When no actor step is due, `learn_if` returns NaN metrics, which `summarize` skips.
        is_due = learner.updates % config.policy_delay == 0
        learner, of_actor = learn_if(is_due, learn_actor, learner)
        return self.finish(learner, of_critics | of_actor)

    def _smooth(self, action: Float[Array, "B S F"], key: Key[Array, ""]) -> Float[Array, "B S F"]:
        """Add clipped noise to target actions, within their range."""
        config = self.config
        noise = config.target_noise * jax.random.normal(key, action.shape, action.dtype)
        limit = config.target_noise_clip
        _, half = self.action.range_of(action)
        return self.action.clip(action + half * jnp.clip(noise, -limit, limit))

    def _error(
        self, action: Float[Array, "B S F"], data: Float[Array, "B S F"]
    ) -> Float[Array, "B S"]:
        """Return the mean squared difference of actions in half-widths of their range."""
        _, half = self.action.range_of(action)
        return jnp.mean(jnp.square((action - data.astype(action.dtype)) / half), axis=-1)
