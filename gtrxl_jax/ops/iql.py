"""The losses of implicit Q-learning (Kostrikov et al. 2022).

"Offline reinforcement learning with implicit Q-learning". No function evaluates an action that the
data do not contain.
"""

import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
    inverse_temperature: float,
    largest: float = 100.0,
) -> Float[Array, "B S"]:
    """Return min(exp(beta (Q - V)), largest), without a gradient (equation 7).

    The policy's loss is the mean of -weight log pi(a | s): imitation, above all of good actions.

    Args:
      q_BS: Q(s, a) of the actions of the data.
      value_BS: V(s).
      inverse_temperature: beta; 0 yields imitation.
      largest: the limit, 100 in the authors' code.
    """
    chex.assert_equal_shape([q_BS, value_BS])
    # Limited before the exponential, which would overflow.
    exponent_BS = jnp.minimum(inverse_temperature * (q_BS - value_BS), math.log(largest))
    return jax.lax.stop_gradient(jnp.exp(exponent_BS))
