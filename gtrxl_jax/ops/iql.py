"""The losses of implicit Q-learning (Kostrikov et al. 2022).

"Offline reinforcement learning with implicit Q-learning". No function evaluates an action that the
data do not contain.
"""

import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.losses import masked_mean


def expectile_loss(
    value_BS: Float[Array, "B S"], q_BS: Float[Array, "B S"], expectile: float
) -> Float[Array, "B S"]:
    """Return |tau - 1(u < 0)| u^2 with u = Q(s, a) - V(s) for each step (equations 3 and 5).

    Its minimum over V is the expectile tau of Q over the actions of the data: their mean for 0.5,
    towards their maximum for 1. No gradient flows into Q.

    Args:
      value_BS: V(s).
      q_BS: Q(s, a) of the actions of the data, by the target networks.
      expectile: tau.
    """
    chex.assert_equal_shape([value_BS, q_BS])
    difference_BS = jax.lax.stop_gradient(q_BS) - value_BS
    weight_BS = jnp.where(difference_BS < 0, 1 - expectile, expectile)
    return weight_BS * jnp.square(difference_BS)


def advantage_weights(
    q_BS: Float[Array, "B S"],
    value_BS: Float[Array, "B S"],
    mask_BS: Bool[Array, "B S"],
    inverse_temperature: float,
    largest: float = 100.0,
) -> Float[Array, "B S"]:
    """Return min(exp(beta A / rms(A)), largest) with A = Q - V, without a gradient.

    The policy's loss is the mean of -weight log pi(a | s): imitation, above all of good actions.
    In equation 7, beta has the inverse unit of rewards; here advantages are divided by their root
    mean square, as in MARWIL (Wang et al. 2018, "Exponentially weighted imitation learning for
    batched historical data"), so that rewards of every size have the same weights.

    Args:
      q_BS: Q(s, a) of the actions of the data.
      value_BS: V(s).
      mask_BS: which steps are real.
      inverse_temperature: beta; 0 yields imitation.
      largest: the limit, 100 in the authors' code.
    """
    chex.assert_equal_shape([q_BS, value_BS, mask_BS])
    advantage_BS = q_BS - value_BS
    size = jnp.sqrt(masked_mean(jnp.square(advantage_BS), mask_BS))
    # Advantages of exactly 0 prefer no action.
    exponent_BS = inverse_temperature * advantage_BS / jnp.where(size > 0, size, 1)
    # Limited before the exponential, which would overflow.
    return jax.lax.stop_gradient(jnp.exp(jnp.minimum(exponent_BS, math.log(largest))))
