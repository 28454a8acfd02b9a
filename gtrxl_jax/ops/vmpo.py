"""V-MPO: on-policy maximum a posteriori policy optimization (Song et al. 2019, arXiv:1909.12238).

Data come from the target policy pi_old, a copy of the online policy pi taken every few learner
steps. With advantages A = G - V, the E-step weights the better half of the samples, and the M-step
moves pi towards those weights while a multiplier keeps each part of KL(pi_old || pi) near its
bound:

    D~            = the half of all valid samples with the largest A
    psi_t         = exp(A_t / eta) / sum over D~ of exp(A / eta);  0 outside D~
    L_policy      = - sum_t psi_t log pi(a_t | s_t)
    L_temperature = eta epsilon_eta + eta log( mean over D~ of exp(A / eta) )
    L_alpha       = mean over valid of [ alpha (epsilon_alpha - sg(KL)) + sg(alpha) KL ]
    L_value       = 1/2 mean over valid of (V - G)^2

with one L_alpha per part of the KL. The total loss is their sum, with an optional weight on the
value loss and an optional entropy bonus.

Arrays hold the global batch: under `jax.jit` the batch axis may be sharded, and the half and the
means are still global. Every numeric setting is an array, so the whole loss can be vmapped over
settings. Samples whose mask is False are ignored.

The multipliers eta and alpha are trained on L_temperature and L_alpha in one of two ways. Either
the network's optimizer updates their raw values, as in the paper, and `project_multipliers` must
follow each update: clipping inside the loss would leave a multiplier below its bound without a
gradient, so it would never recover. Or `scale_multipliers` updates their logarithms by the relative
violation of each bound, which reaches the bounds within tens of updates instead of thousands.
"""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.distributions import ActionDistribution
from gtrxl_jax.ops.losses import explained_variance, masked_mean, masked_variance, value_loss

MINIMUM_MULTIPLIER = 1e-8


@struct.dataclass
class Multipliers:
    """The Lagrange multipliers, all positive scalars.

    Attributes:
      temperature: eta, the multiplier of the E-step's bound.
      alphas: one alpha per part of the KL, with the keys of `ActionDistribution.kl_parts`.
    """

    temperature: Float[Array, ""]
    alphas: dict[str, Float[Array, ""]]


@struct.dataclass
class VMPOHyperparameters:
    """The bounds that the multipliers enforce, in nats, and the weights of two loss terms.

    Attributes:
      epsilon_eta: bound of the E-step: KL of psi from the uniform weights on the selected half.
      epsilon_alphas: bound of the mean KL(pi_old || pi), for each part of the KL.
      value_cost: weight of L_value; 1 in V-MPO.
      entropy_cost: weight of the policy's mean entropy; 0 in V-MPO.
    """

    epsilon_eta: Float[Array, ""]
    epsilon_alphas: dict[str, Float[Array, ""]]
    value_cost: Float[Array, ""]
    entropy_cost: Float[Array, ""]


def project_multipliers(
    multipliers: Multipliers, alpha_bounds: tuple[float, float] = (MINIMUM_MULTIPLIER, math.inf)
) -> Multipliers:
    """Return the multipliers clipped to their bounds; call it after every update of them.

    Args:
      multipliers: eta, clipped to at least `MINIMUM_MULTIPLIER`, and the alphas.
      alpha_bounds: the smallest and the largest alpha.
    """
    return Multipliers(
        temperature=jnp.maximum(multipliers.temperature, MINIMUM_MULTIPLIER),
        alphas={part: jnp.clip(alpha, *alpha_bounds) for part, alpha in multipliers.alphas.items()},
    )


def scale_multipliers(
    multipliers: Multipliers,
    psi_kl: Float[Array, ""],
    kls: dict[str, Float[Array, ""]],
    hyperparameters: VMPOHyperparameters,
    rate: float | Float[Array, ""],
) -> Multipliers:
    """Return the multipliers after one step of mirror descent on L_temperature and L_alpha.

        m' = m exp( rate clip(KL / epsilon - 1, -1, 10) )

    where KL is KL(psi || uniform) for eta, and the respective part for each alpha.
    The gradient of either loss is epsilon - KL, so this is a step in log m whose size is the
    violation relative to the bound. A multiplier decreases by at most a factor of e^-rate, however
    slack its bound is, and increases by up to e^(10 rate) when its bound is violated: a policy
    about to leave its trust region is held within a few updates, and a rare success in a batch
    raises the temperature for many.

    Args:
      multipliers: eta and the alphas.
      psi_kl: KL(psi || uniform over D~).
      kls: the mean of each part of KL(pi_old || pi).
      hyperparameters: the bounds.
      rate: the step size.
    """

    def scale(multiplier: Array, kl: Array, epsilon: Array) -> Array:
        step = rate * jnp.clip(kl / epsilon - 1, -1, 10)
        return multiplier * jnp.exp(step)

    return Multipliers(
        temperature=scale(multipliers.temperature, psi_kl, hyperparameters.epsilon_eta),
        alphas={
            part: scale(alpha, kls[part], hyperparameters.epsilon_alphas[part])
            for part, alpha in multipliers.alphas.items()
        },
    )


def select_top_half(
    advantages_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]
) -> Bool[Array, "B T"]:
    """Return which samples make up D~: the floor(n / 2) largest advantages of the n valid ones.

    The count is exact: ties at the threshold go to the earlier samples in row-major order. With
    fewer than two valid samples nothing is selected.
    """
    chex.assert_rank([advantages_BT, mask_BT], 2)
    chex.assert_equal_shape([advantages_BT, mask_BT])
    chex.assert_type(mask_BT, bool)
    descending = jnp.argsort(jnp.where(mask_BT, -advantages_BT, jnp.inf).ravel())
    size = descending.shape[0]
    rank = jnp.zeros(size, jnp.int32).at[descending].set(jnp.arange(size, dtype=jnp.int32))
    half = jnp.sum(mask_BT, dtype=jnp.int32) // 2
    return mask_BT & (rank < half).reshape(mask_BT.shape)


def e_step(
    advantages_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    temperature: Float[Array, ""],
    epsilon_eta: Float[Array, ""],
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
    """Compute the weights psi and the temperature loss of V-MPO's E-step.

    Args:
      advantages_BT: A; gets no gradient.
      mask_BT: which samples are valid.
      temperature: eta > 0, trained by the loss.
      epsilon_eta: bound of KL(psi || uniform over D~).

    Returns:
      psi, which sums to 1, is 0 outside the selected half and carries no gradient; and
      L_temperature. Both are 0 if nothing is selected.
    """
    selected_BT = select_top_half(advantages_BT, mask_BT)
    advantages_BT = jax.lax.stop_gradient(advantages_BT)
    count = jnp.sum(selected_BT, dtype=advantages_BT.dtype)
    # Centered before the division: at a small eta, A / eta and the maximum that a log-sum-exp
    # subtracts would each have rounding errors far larger than the whole gradient.
    top = jnp.max(advantages_BT, where=selected_BT, initial=-jnp.inf)
    centered_BT = jnp.where(selected_BT, advantages_BT - top, 0)
    weights_BT = jnp.where(selected_BT, jnp.exp(centered_BT / temperature), 0)
    total = jnp.where(count > 0, jnp.sum(weights_BT), 1)
    log_mean = jnp.log(total / jnp.maximum(count, 1))
    temperature_loss = temperature * epsilon_eta + top + temperature * log_mean
    psi_BT = jax.lax.stop_gradient(weights_BT / total)
    return psi_BT, jnp.where(count > 0, temperature_loss, 0)


def policy_loss(log_prob_BT: Float[Array, "B T"], psi_BT: Float[Array, "B T"]) -> Float[Array, ""]:
    """Return L_policy, a sum since psi sums to 1; samples with zero weight get no gradient."""
    chex.assert_equal_shape([log_prob_BT, psi_BT])
    # The action of an ignored sample may be forbidden: 0 * -inf must not enter the sum.
    return -jnp.sum(psi_BT * jnp.where(psi_BT > 0, log_prob_BT, 0))


def kl_loss(
    kl_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    alpha: Float[Array, ""],
    epsilon: Float[Array, ""],
) -> Float[Array, ""]:
    """Return L_alpha of one part of the KL over all valid samples; 0 if none is valid."""
    chex.assert_equal_shape([kl_BT, mask_BT])
    kl = masked_mean(kl_BT, mask_BT)
    loss = alpha * (epsilon - jax.lax.stop_gradient(kl)) + jax.lax.stop_gradient(alpha) * kl
    return jnp.where(jnp.any(mask_BT), loss, 0)


def vmpo_losses(
    *,
    distribution: ActionDistribution,
    target_distribution: ActionDistribution,
    actions: Any,
    values_BT: Float[Array, "B T"],
    returns_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    multipliers: Multipliers,
    hyperparameters: VMPOHyperparameters,
    advantages_BT: Float[Array, "B T"] | None = None,
    psi_BT: Float[Array, "B T"] | None = None,
) -> tuple[dict[str, Float[Array, ""]], dict[str, Float[Array, ""]], Float[Array, "B T"]]:
    """Compute the terms of V-MPO's loss, metrics and psi.

    The sum of the terms is minimized over both the online network and the multipliers.

    Args:
      distribution: the online pi(. | s_t), leading axes `[B, T]`; gets the gradients of the policy
        loss, the KL and the entropy.
      target_distribution: pi_old(. | s_t), of the same type; gets no gradient.
      actions: the actions a_t taken, in the distribution's layout.
      values_BT: the online V(s_t), in the units of `returns_BT`; gets the gradient of the value
        loss only.
      returns_BT: G_t, for example from `lambda_returns`; gets no gradient.
      mask_BT: the valid samples, for example from `transition_mask`.
      multipliers: eta and the alphas.
      hyperparameters: the bounds of the multipliers and the weights of the terms.
      advantages_BT: A_t, if it is not `returns_BT - values_BT`; gets no gradient.
      psi_BT: weights of an earlier E-step; the E-step is then skipped and its term is 0.

    Returns:
      The loss terms by name: `policy`, `value`, `temperature`, `entropy` (minus the bonus), and
      `alpha_P` for each part P of the KL. The metrics, scalars by name: `kl/P`, `alpha/P` and
      `bound/P` for each part (the KL, its multiplier and its epsilon); `psi/kl` and `bound/psi`,
      its epsilon; `psi/effective_samples` (1 / sum psi^2); `temperature`, `entropy`,
      `advantage/mean`, `advantage/std`, `value/explained_variance` (1 - Var(G - V) / Var(G), 0 if
      all G are equal), `samples/valid` and `samples/selected`. And psi.

    Raises:
      ValueError: if the KL, the alphas and their bounds do not have the same parts.
    """
    chex.assert_rank([values_BT, returns_BT, mask_BT], 2)
    chex.assert_equal_shape([values_BT, returns_BT, mask_BT])
    target_distribution = jax.lax.stop_gradient(target_distribution)
    kls = target_distribution.kl_parts(distribution)
    _require_same_parts("multipliers.alphas", multipliers.alphas, kls)
    _require_same_parts("hyperparameters.epsilon_alphas", hyperparameters.epsilon_alphas, kls)
    if advantages_BT is None:
        advantages_BT = returns_BT - values_BT

    # E-step
    temperature_loss = jnp.zeros_like(multipliers.temperature)
    if psi_BT is None:
        psi_BT, temperature_loss = e_step(
            advantages_BT, mask_BT, multipliers.temperature, hyperparameters.epsilon_eta
        )

    # M-step
    entropy = masked_mean(distribution.entropy(), mask_BT)
    losses = {
        "policy": policy_loss(distribution.log_prob(actions), psi_BT),
        "temperature": temperature_loss,
        "value": hyperparameters.value_cost * value_loss(values_BT, returns_BT, mask_BT),
        "entropy": -hyperparameters.entropy_cost * entropy,
    }
    for part, kl_BT in kls.items():
        losses[f"alpha_{part}"] = kl_loss(
            kl_BT, mask_BT, multipliers.alphas[part], hyperparameters.epsilon_alphas[part]
        )
    metrics = {f"kl/{part}": masked_mean(kl_BT, mask_BT) for part, kl_BT in kls.items()}
    metrics |= {f"alpha/{part}": alpha for part, alpha in multipliers.alphas.items()}
    metrics |= {f"bound/{part}": e for part, e in hyperparameters.epsilon_alphas.items()}
    metrics |= _diagnostics(psi_BT, advantages_BT, values_BT, returns_BT, mask_BT)
    metrics |= {"bound/psi": hyperparameters.epsilon_eta}
    metrics |= {"temperature": multipliers.temperature, "entropy": entropy}
    return losses, jax.lax.stop_gradient(metrics), psi_BT


def _diagnostics(
    psi_BT: Array, advantages_BT: Array, values_BT: Array, returns_BT: Array, mask_BT: Array
) -> dict[str, Array]:
    valid = jnp.sum(mask_BT, dtype=psi_BT.dtype)
    selected = valid // 2
    sum_of_squares = jnp.sum(jnp.square(psi_BT))
    negentropy = jnp.sum(psi_BT * jnp.log(jnp.where(psi_BT > 0, psi_BT, 1)))
    return {
        "advantage/mean": masked_mean(advantages_BT, mask_BT),
        "advantage/std": jnp.sqrt(masked_variance(advantages_BT, mask_BT)),
        "value/explained_variance": explained_variance(values_BT, returns_BT, mask_BT),
        "psi/effective_samples": jnp.where(
            selected > 0, 1 / jnp.where(selected > 0, sum_of_squares, 1), 0
        ),
        "psi/kl": negentropy + jnp.log(jnp.maximum(selected, 1)),
        "samples/valid": valid,
        "samples/selected": selected,
    }


def _require_same_parts(field: str, given: dict[str, Any], kls: dict[str, Any]) -> None:
    if given.keys() != kls.keys():
        raise ValueError(
            f"{field} has the parts {sorted(given)}, but the policy's KL has {sorted(kls)}: "
            "provide exactly one entry for each part of the KL"
        )
