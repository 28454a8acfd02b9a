"""Mask and returns of the transitions of an unroll.

An unroll of T transitions has S = T + 1 time steps: the T at which an action was chosen, and the
one that the last action led to, whose value is the bootstrap. Both functions take the fields of
these S steps as they are in `TimeStep` and do the shifting themselves: column t of a result belongs
to the action chosen at step t, whose reward and discount arrive with step t + 1.
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def transition_mask(last_BS: Bool[Array, "B S"]) -> Bool[Array, "B T"]:
    """Return True where the step from t to t + 1 is in an episode, False where it is a reset.

    Args:
      last_BS: `TimeStep.last` of all S = T + 1 steps of the unroll.
    """
    chex.assert_rank(last_BS, 2)
    chex.assert_type(last_BS, bool)
    return ~last_BS[:, :-1]


def lambda_returns(
    *,
    reward_BS: Float[Array, "B S"],
    discount_BS: Float[Array, "B S"],
    last_BS: Bool[Array, "B S"],
    value_BS: Float[Array, "B S"],
    gamma: float | Float[Array, ""],
    lambda_: float | Float[Array, ""] = 1.0,
) -> Float[Array, "B T"]:
    """Compute the lambda-return of each action, within its episode and the unroll.

        G_t = r_{t+1} + gamma d_{t+1} * (V(o_{t+1}) if last_{t+1} or t + 1 = T,
                                         else (1 - lambda) V(o_{t+1}) + lambda G_{t+1})

    With lambda = 1 this is the n-step return to the end of the unroll, the target of V-MPO (Song et
    al. 2019); below 1 it mixes all shorter ones (Sutton and Barto 2018, equation 12.18), and
    G_t - V(o_t) is the generalized advantage estimate (Schulman et al. 2016). The bootstrap value
    is of the final observation of the transition's own episode: a truncated episode bootstraps
    from V of its `last` step, a terminated one does not bootstrap (its discount is 0), and no
    return crosses a reset. Where `transition_mask` is False, G_t is V(o_t), so that the advantage
    there is 0.

    Gradients are not stopped.

    Args:
      reward_BS: `TimeStep.reward` of all S = T + 1 steps; column 0 is not used.
      discount_BS: `TimeStep.discount`, without gamma; column 0 is not used.
      last_BS: `TimeStep.last`.
      value_BS: V(o_t) at all S steps, in the units of the reward.
      gamma: the agent's discount factor, a number or a scalar array (so that it can be vmapped).
      lambda_: weight of the next return against the next value; a number or array like `gamma`.

    Returns:
      G_t for t = 0 .. T - 1.

    Raises:
      ValueError: if there are fewer than two steps, so no transition.
    """
    chex.assert_rank([reward_BS, discount_BS, last_BS, value_BS], 2)
    chex.assert_equal_shape([reward_BS, discount_BS, last_BS, value_BS])
    chex.assert_type(last_BS, bool)
    if reward_BS.shape[1] < 2:
        raise ValueError(
            f"reward_BS has {reward_BS.shape[1]} time step(s), but must have at least 2: the T "
            "steps of the unroll and the bootstrap step"
        )

    def step_back(return_B: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        reward_B, discount_B, last_B, value_B = inputs
        mixed_B = lambda_ * return_B + (1 - lambda_) * value_B
        return_B = reward_B + gamma * discount_B * jnp.where(last_B, value_B, mixed_B)
        return return_B, return_B

    arrivals_TB = [x[:, 1:].T for x in (reward_BS, discount_BS, last_BS, value_BS)]
    _, returns_TB = jax.lax.scan(step_back, value_BS[:, -1], tuple(arrivals_TB), reverse=True)
    return jnp.where(transition_mask(last_BS), returns_TB.T, value_BS[:, :-1])
