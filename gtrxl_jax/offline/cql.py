"""CQL: conservative Q-learning (Kumar et al. 2020), for one discrete or for continuous actions.

Both minimize the errors of Q-learning plus alpha times the penalty of `ops.cql`, CQL(H).

Discrete: double Q-learning. The network is the sequence model itself, whose logits are the values
Q(h, a) of all actions: evaluations play the best one.

Continuous: soft actor-critic (Haarnoja et al. 2018) with two critics. The actor's Gaussian has a
learned scale, and a tanh maps it into the range of the actions, which must be bounded: only then
are there densities for the importance weights of the penalty. These are of actions drawn uniformly,
from the policy at the step, and from the policy at the next step, `samples` of each. As in the
authors' code, targets contain no entropy. The temperature holds the policy's entropy at -1 for each
dimension in ranges of [-1, 1], and as far below that of a uniform policy in others.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gtrxl_jax.nn.sequence.values import SquashedHead
from gtrxl_jax.offline.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticLearner,
    Loss,
    Window,
    current_steps,
    mean_scores,
    next_steps,
    twin_loss,
)
from gtrxl_jax.offline.algorithm import Metrics, Setup
from gtrxl_jax.ops.cql import conservative_penalty, sampled_conservative_penalty
from gtrxl_jax.ops.losses import masked_mean, value_loss
from gtrxl_jax.ops.r2d2 import double_q_values
from gtrxl_jax.ops.td import td_targets
from gtrxl_jax.parallel.placement import gather_parameters
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class CQLConfig(ActorCriticConfig):
    """Settings of CQL."""

    name: str = "cql"
    alpha: float = number(1.0, at_least=0)
    """Weight of the penalty against the errors of Q-learning; 5 in the paper's continuous tasks."""
    samples: int = 10
    """Continuous actions: the number drawn from each of the three proposals."""

    def make(self, setup: Setup) -> ActorCritic:
        spec = action_spec(setup.action_space)
        if len(spec.discrete) == 1 and not spec.continuous:
            return DiscreteCQL(self, setup)
        is_bounded = all(math.isfinite(x) for bounds in spec.continuous for x in bounds)
        if spec.discrete or not is_bounded:
            raise ValueError(
                f"algorithm.name cql needs one discrete action or bounded continuous ones, not "
                f"{setup.action_space}: use iql, which takes all"
            )
        return ContinuousCQL(self, setup)


class DiscreteCQL(ActorCritic):
    """Double Q-learning with the penalty."""

    critic: ClassVar[str] = "actor"
    with_targets: ClassVar[tuple[str, ...]] = ("actor",)
    scales_rewards: ClassVar[bool] = False
    config: CQLConfig

    def make_networks(self, params: Any, key: Key[Array, ""]) -> dict[str, Any]:
        return {}

    def critic_loss(self, learner: ActorCriticLearner, window: Window, key: Key[Array, ""]) -> Loss:
        config = self.config
        target_q_BWA = self.read(gather_parameters(learner.targets["actor"]), window, None).logits

        def loss(params: Any, key: Key[Array, ""] | None) -> Any:
            policy = self.read(params, window, key)
            q_BWA = policy.logits
            next_BS = double_q_values(
                next_steps(jax.lax.stop_gradient(q_BWA)), next_steps(target_q_BWA)
            )
            target_BS = td_targets(window.rewards, window.terminated, next_BS, config.gamma)
            q_BSA = current_steps(q_BWA)
            q_BS = jnp.take_along_axis(q_BSA, window.actions[..., None], axis=-1)[..., 0]
            penalty = masked_mean(conservative_penalty(q_BSA, window.actions), window.mask)
            total = value_loss(q_BS, target_BS, window.mask) + config.alpha * penalty
            return total, mean_scores(current_steps(policy), window) | {
                "loss": total,
                "penalty": penalty,
                "q": masked_mean(q_BS, window.mask),
                "td_error": masked_mean(jnp.abs(q_BS - target_BS), window.mask),
            }

        return loss

    def update(
        self, learner: ActorCriticLearner, batch: Segments, key: Key[Array, ""]
    ) -> tuple[ActorCriticLearner, Metrics]:
        learner, window = self.prepare(learner, batch)
        loss = self.critic_loss(learner, window, key)
        learner, metrics = self.step_critic(learner, loss, key)
        return self.finish(self.move_targets(learner), metrics)


class ContinuousCQL(ActorCritic):
    """Soft actor-critic with the penalty."""

    scales_rewards: ClassVar[bool] = False
    config: CQLConfig

    def __init__(self, config: CQLConfig, setup: Setup):
        super().__init__(config, setup)
        self.model = self.model.clone(head=SquashedHead(self.action, jnp.result_type(float)))
        _, half = self.action.center_and_half_width()
        self._log_volume = float(sum(math.log(2 * x) for x in half))
        self._target_entropy = self._log_volume - len(half) * (1 + math.log(2))

    def make_networks(self, params: Any, key: Key[Array, ""]) -> dict[str, Any]:
        log_temperature = jnp.zeros((), jnp.result_type(float))
        return super().make_networks(params, key) | {
            "temperature": {"log_temperature": log_temperature}
        }

    def critic_loss(self, learner: ActorCriticLearner, window: Window, key: Key[Array, ""]) -> Loss:
        config = self.config
        key_next, key_proposals, *_ = jax.random.split(key, 5)
        actor, targets = gather_parameters((learner.networks["actor"], learner.targets["critics"]))
        policy = self.read(actor, window, None)
        h_CBWD = self.critic_features(targets, window)
        q_CBS = self.action_values(targets, h_CBWD[:, :, 1:], next_steps(policy).sample(key_next))
        target_BS = td_targets(
            window.rewards, window.terminated, jnp.min(q_CBS, axis=0), config.gamma
        )
        features_BSNF, log_density_BSN = self._propose(policy, key_proposals)

        def loss(critics: Any, key: Key[Array, ""] | None) -> Any:
            h_CBSD = self.critic_features(critics, window, key)[:, :, :-1]
            q_CBS = self.action_values(critics, h_CBSD, window.actions)
            q_CBSN = self.values_of_features(critics, h_CBSD, features_BSNF)

            def penalize(q_BSN: Array, q_BS: Array) -> Array:
                penalty_BS = sampled_conservative_penalty(q_BSN, log_density_BSN, q_BS)
                return masked_mean(penalty_BS, window.mask)

            penalty_C = jax.vmap(penalize)(q_CBSN, q_CBS)
            errors, metrics = twin_loss(q_CBS, target_BS, window.mask)
            total = errors + config.alpha * jnp.sum(penalty_C)
            return total, metrics | {"loss": total, "penalty": jnp.mean(penalty_C)}

        return loss

    def update(
        self, learner: ActorCriticLearner, batch: Segments, key: Key[Array, ""]
    ) -> tuple[ActorCriticLearner, Metrics]:
        """Take an optimizer step on the critics, then on the actor, then on the temperature."""
        learner, window = self.prepare(learner, batch)
        _, _, key_critics, key_actor, key_sample = jax.random.split(key, 5)
        loss_of_critics = self.critic_loss(learner, window, key)
        learner, of_critics = self.step_critic(learner, loss_of_critics, key_critics)
        critics = gather_parameters(learner.networks["critics"])
        h_CBSD = self.critic_features(critics, window)[:, :, :-1]
        temperature = jnp.exp(learner.networks["temperature"]["log_temperature"])

        def loss_of_actor(params: Any) -> Any:
            policy = current_steps(self.read(params, window, key_actor))
            action, log_prob_BS = policy.sample_and_log_prob(key_sample)
            q_BS = jnp.min(self.action_values(critics, h_CBSD, action), axis=0)
            total = masked_mean(temperature * log_prob_BS - q_BS, window.mask)
            entropy = -masked_mean(log_prob_BS, window.mask)
            return total, mean_scores(policy, window) | {"loss/actor": total, "entropy": entropy}

        learner, scores, of_actor = self.step(learner, "actor", loss_of_actor)
        excess = jax.lax.stop_gradient(scores["entropy"] - self._target_entropy)
        learner, _, of_temperature = self.step(
            learner, "temperature", lambda params: (params["log_temperature"] * excess, None)
        )
        metrics = of_critics | of_actor | of_temperature | scores
        metrics["temperature"] = temperature
        return self.finish(self.move_targets(learner), metrics)

    def _propose(
        self, policy: Any, key: Key[Array, ""]
    ) -> tuple[Float[Array, "B S N F"], Float[Array, "B S N"]]:
        """Draw actions at each of the S steps; return their features and log densities.

        Args:
          policy: the actor's distributions at the S + 1 steps.
          key: a PRNG key.
        """
        count = self.config.samples
        key_uniform, key_policy = jax.random.split(key)
        sample = jax.vmap(lambda key: policy.sample_and_log_prob(key), out_axes=2)
        action_BWNC, log_density_BWN = sample(jax.random.split(key_policy, count))
        lead = (*action_BWNC[:, :-1].shape[:2], count)
        uniform = self.action.sample(key_uniform, *lead).astype(action_BWNC.dtype)
        actions = jnp.concatenate(
            [uniform, current_steps(action_BWNC), next_steps(action_BWNC)], axis=2
        )
        constant = jnp.full(lead, -self._log_volume, log_density_BWN.dtype)
        log_densities = jnp.concatenate(
            [constant, current_steps(log_density_BWN), next_steps(log_density_BWN)], axis=2
        )
        return self.action.features(actions, actions.dtype), log_densities
