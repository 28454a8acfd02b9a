"""The penalty of conservative Q-learning (Kumar et al. 2020), CQL(H).

"Conservative Q-learning for offline reinforcement learning", equation 4: beside the errors of
Q-learning, minimize

    log sum_a exp Q(s, a) - Q(s, a_data)

which lowers the values of actions that the data do not contain.
"""

import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def conservative_penalty(
    q_BSA: Float[Array, "B S A"], action_BS: Int[Array, "B S"]
) -> Float[Array, "B S"]:
    """Return the penalty of each step for discrete actions.

    Args:
      q_BSA: Q(s, a) of all actions.
      action_BS: the actions of the data.
    """
    chex.assert_shape(action_BS, q_BSA.shape[:2])
    chosen_BS = jnp.take_along_axis(q_BSA, action_BS[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(q_BSA, axis=-1) - chosen_BS


def sampled_conservative_penalty(
    q_BSN: Float[Array, "B S N"],
    log_density_BSN: Float[Array, "B S N"],
    q_data_BS: Float[Array, "B S"],
) -> Float[Array, "B S"]:
    """Return the penalty of each step for continuous actions.

    The integral of exp Q over all actions is estimated by importance sampling (appendix F), from N
    actions drawn from one or several proposals alike:

        log( 1/N sum_n exp Q(s, a_n) / p_n(a_n) )

    Args:
      q_BSN: Q(s, a_n).
      log_density_BSN: log p_n(a_n), the density of each action under its proposal; no gradient
        flows into it.
      q_data_BS: Q(s, a) of the actions of the data.
    """
    chex.assert_equal_shape([q_BSN, log_density_BSN])
    exponent_BSN = q_BSN - jax.lax.stop_gradient(log_density_BSN)
    return jax.nn.logsumexp(exponent_BSN, axis=-1) - math.log(q_BSN.shape[-1]) - q_data_BS
