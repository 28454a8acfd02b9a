"""The policy loss of TD3+BC (Fujimoto and Gu 2021).

"A minimalist approach to offline reinforcement learning".
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gtrxl_jax.ops.losses import masked_mean


def behavior_regularized_loss(
    q_BS: Float[Array, "B S"],
    error_BS: Float[Array, "B S"],
    mask_BS: Bool[Array, "B S"],
    alpha: float,
) -> Float[Array, ""]:
    """Return mean(error) - lambda mean(Q), with lambda = alpha / mean |Q| (equations 3 and 5).

    No gradient flows into lambda, which makes the loss independent of the scale of rewards.

    Args:
      q_BS: Q(s, pi(s)).
      error_BS: the squared difference of pi(s) from the action of the data.
      mask_BS: which steps are real.
      alpha: 2.5 in the paper; 0 yields imitation.
    """
    chex.assert_equal_shape([q_BS, error_BS, mask_BS])
    size = jax.lax.stop_gradient(masked_mean(jnp.abs(q_BS), mask_BS))
    # Values of exactly 0 have no preference.
    weight = alpha / jnp.where(size > 0, size, 1)
    return masked_mean(error_BS, mask_BS) - weight * masked_mean(q_BS, mask_BS)
