"""PPO: proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347).

Data come from pi_old, the policy that acted. Several optimizer steps on the same data increase the
ratio rho_t = pi(a_t | s_t) / pi_old(a_t | s_t) of actions with a positive advantage A_t, and
decrease the ratio of the others, until the ratio is clipped (equation 7):

    L_policy = - mean over valid of min( rho_t A_t, clip(rho_t, 1 - epsilon, 1 + epsilon) A_t )
    L_value  = 1/2 mean over valid of (V - G)^2
    L        = L_policy + c_v L_value - c_e (mean entropy)

The minimum is a lower bound of the unclipped objective: a ratio outside the clipping range gets no
gradient if it is there in its advantage's favor, and the full gradient back otherwise. L_value can
be clipped in the same way, as in the authors' implementation, see `clipped_value_loss`.

Arrays hold the global batch: under `jax.jit` the batch axis may be sharded, and the means are still
global. Samples whose mask is False are ignored.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.ops.losses import explained_variance, masked_mean, masked_variance, value_loss


@struct.dataclass
class PPOHyperparameters:
    """The clipping range and the weights of two loss terms.

    Attributes:
      clip_epsilon: epsilon, the largest change of the ratio from 1 that gets a gradient.
      value_cost: c_v, the weight of L_value.
      entropy_cost: c_e, the weight of the policy's mean entropy.
    """

    clip_epsilon: Float[Array, ""]
    value_cost: Float[Array, ""]
    entropy_cost: Float[Array, ""]


def normalize_advantages(
    advantages_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"], min_std: float = 0.0
) -> Float[Array, "B T"]:
    """Return the advantages shifted and scaled to mean 0 and variance 1 over the valid samples.

    They are divided by at least `min_std`, so that a smaller standard deviation stays below 1.
    Equal advantages become 0.
    """
    chex.assert_equal_shape([advantages_BT, mask_BT])
    centered_BT = advantages_BT - masked_mean(advantages_BT, mask_BT)
    std = jnp.sqrt(masked_variance(advantages_BT, mask_BT))
    normalized_BT = centered_BT / jnp.maximum(std, max(min_std, 1e-8))
    # Equal advantages differ from their mean by its rounding, which would be scaled to 1.
    least = jnp.min(advantages_BT, where=mask_BT, initial=jnp.inf)
    greatest = jnp.max(advantages_BT, where=mask_BT, initial=-jnp.inf)
    return jnp.where(least == greatest, 0, normalized_BT)


def clipped_surrogate_loss(
    log_ratio_BT: Float[Array, "B T"],
    advantages_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    clip_epsilon: Float[Array, ""],
) -> Float[Array, ""]:
    """Return L_policy of log rho; the advantages get no gradient."""
    chex.assert_equal_shape([log_ratio_BT, advantages_BT, mask_BT])
    advantages_BT = jax.lax.stop_gradient(jnp.where(mask_BT, advantages_BT, 0))
    ratio_BT = jnp.exp(jnp.where(mask_BT, log_ratio_BT, 0))
    clipped_BT = jnp.clip(ratio_BT, 1 - clip_epsilon, 1 + clip_epsilon)
    objective_BT = jnp.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    return -masked_mean(objective_BT, mask_BT)


def clipped_value_loss(
    values_BT: Float[Array, "B T"],
    old_values_BT: Float[Array, "B T"],
    returns_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    clip: float,
) -> Float[Array, ""]:
    """Return L_value with the larger error of V and of V clipped to a distance from V_old.

        1/2 mean over valid of max( (V - G)^2, (V_old + clip(V - V_old, -c, c) - G)^2 )

    A value that has moved by more than c towards its return gets no gradient. Neither the old
    values nor the returns get one.

    Args:
      values_BT: V(s_t).
      old_values_BT: V_old(s_t), the values at the time of acting.
      returns_BT: G_t.
      mask_BT: the valid samples.
      clip: c, in the units of the values.
    """
    chex.assert_equal_shape([values_BT, old_values_BT, returns_BT, mask_BT])
    old_values_BT, returns_BT = jax.lax.stop_gradient((old_values_BT, returns_BT))
    moved_BT = old_values_BT + jnp.clip(values_BT - old_values_BT, -clip, clip)
    squares_BT = [
        jnp.square(jnp.where(mask_BT, v_BT - returns_BT, 0)) for v_BT in (values_BT, moved_BT)
    ]
    return 0.5 * masked_mean(jnp.maximum(*squares_BT), mask_BT)


def ppo_losses(
    *,
    distribution: ActionDistribution,
    old_distribution: ActionDistribution,
    actions: Any,
    values_BT: Float[Array, "B T"],
    old_values_BT: Float[Array, "B T"],
    returns_BT: Float[Array, "B T"],
    advantages_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    hyperparameters: PPOHyperparameters,
    value_clip: float | None = None,
) -> tuple[dict[str, Float[Array, ""]], dict[str, Float[Array, ""]]]:
    """Compute the terms of PPO's loss, and metrics.

    Args:
      distribution: pi(. | s_t), leading axes `[B, T]`; gets the gradients of the policy loss and
        the entropy.
      old_distribution: pi_old(. | s_t), of the same type; gets no gradient.
      actions: the actions a_t taken, in the distribution's layout.
      values_BT: V(s_t); gets the gradient of the value loss.
      old_values_BT: V_old(s_t), in the same units; gets no gradient.
      returns_BT: G_t in the same units, for example from `lambda_returns`; gets no gradient.
      advantages_BT: A_t, for example `normalize_advantages(G - V_old)`; gets no gradient.
      mask_BT: the valid samples, for example from `transition_mask`.
      hyperparameters: the clipping range of the ratio and the weights of the terms.
      value_clip: the clipping range of the values, see `clipped_value_loss`; None: unclipped.

    Returns:
      The loss terms by name: `policy`, `value` and `entropy` (minus the bonus). The metrics,
      scalars by name: `clip_fraction`, the share of ratios outside the clipping range;
      `approximate_kl`, an estimate of KL(pi_old || pi) from the actions, mean(rho - 1 - log rho);
      `kl/P`, for each part of the KL (see `ActionDistribution.kl_parts`); `entropy`;
      `advantage/mean` and `advantage/std`, of G - V_old; `value/explained_variance` (1 - Var(G - V)
      / Var(G), 0 if all G are equal); and `samples/valid`.
    """
    chex.assert_rank([values_BT, old_values_BT, returns_BT, advantages_BT, mask_BT], 2)
    old_distribution = jax.lax.stop_gradient(old_distribution)
    # A masked sample's action may be forbidden: the difference of infinities must not get in.
    log_ratio_BT = jnp.where(
        mask_BT, distribution.log_prob(actions) - old_distribution.log_prob(actions), 0
    )
    entropy = masked_mean(distribution.entropy(), mask_BT)
    if value_clip is None:
        error = value_loss(values_BT, returns_BT, mask_BT)
    else:
        error = clipped_value_loss(values_BT, old_values_BT, returns_BT, mask_BT, value_clip)
    epsilon = hyperparameters.clip_epsilon
    losses = {
        "policy": clipped_surrogate_loss(log_ratio_BT, advantages_BT, mask_BT, epsilon),
        "value": hyperparameters.value_cost * error,
        "entropy": -hyperparameters.entropy_cost * entropy,
    }
    is_outside_BT = jnp.abs(jnp.expm1(log_ratio_BT)) > epsilon
    raw_BT = returns_BT - old_values_BT
    metrics = {
        "clip_fraction": masked_mean(is_outside_BT.astype(log_ratio_BT.dtype), mask_BT),
        "approximate_kl": masked_mean(jnp.expm1(log_ratio_BT) - log_ratio_BT, mask_BT),
        "entropy": entropy,
        "advantage/mean": masked_mean(raw_BT, mask_BT),
        "advantage/std": jnp.sqrt(masked_variance(raw_BT, mask_BT)),
        "value/explained_variance": explained_variance(values_BT, returns_BT, mask_BT),
        "samples/valid": jnp.sum(mask_BT, dtype=values_BT.dtype),
    }
    kls = old_distribution.kl_parts(distribution)
    metrics |= {f"kl/{part}": masked_mean(kl_BT, mask_BT) for part, kl_BT in kls.items()}
    return losses, jax.lax.stop_gradient(metrics)
