"""One-step targets of temporal-difference learning."""

import chex
import jax
from jaxtyping import Array, Bool, Float


def td_targets(
    reward_BS: Float[Array, "B S"],
    terminated_BS: Bool[Array, "B S"],
    next_value_BS: Float[Array, "B S"],
    gamma: float,
) -> Float[Array, "B S"]:
    """Return r_t + gamma V(o_{t+1}), without a gradient, and r_t where the episode terminated.

    A truncated episode bootstraps from the observation that followed its last action.

    Args:
      reward_BS: the reward of the action of each step.
      terminated_BS: whether the episode terminated with it.
      next_value_BS: V(o_{t+1}), the value of what the action led to.
      gamma: the discount factor.
    """
    chex.assert_equal_shape([reward_BS, terminated_BS, next_value_BS])
    discount_BS = gamma * (1 - terminated_BS.astype(next_value_BS.dtype))
    return jax.lax.stop_gradient(
        reward_BS.astype(next_value_BS.dtype) + discount_BS * next_value_BS
    )
