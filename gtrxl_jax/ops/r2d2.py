"""Targets, losses and priorities of R2D2 (Kapturowski et al. 2019), for one discrete action.

"Recurrent experience replay in distributed reinforcement learning". A segment has T actions and
S = T + 1 time steps, as in `ops.returns`.
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops.losses import masked_mean
from gtrxl_jax.ops.returns import transition_mask

EPSILON = 1e-3
"""The slope of the rescaling for large values (Pohlen et al. 2018; 1e-3 in R2D2)."""


def rescale(x: Float[Array, "..."], epsilon: float = EPSILON) -> Float[Array, "..."]:
    """Compress values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (R2D2, section 2.3)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + epsilon * x


def unrescale(x: Float[Array, "..."], epsilon: float = EPSILON) -> Float[Array, "..."]:
    """Invert `rescale`."""
    a = jnp.abs(x) + 1 + epsilon
    # (sqrt(1 + 4 epsilon a) - 1) / (2 epsilon), without the difference of nearly equal numbers.
    root = 2 * a / (1 + jnp.sqrt(1 + 4 * epsilon * a))
    return jnp.sign(x) * (jnp.square(root) - 1)


def n_step_returns(
    *,
    reward_BS: Float[Array, "B S"],
    discount_BS: Float[Array, "B S"],
    last_BS: Bool[Array, "B S"],
    value_BS: Float[Array, "B S"],
    gamma: float | Float[Array, ""],
    num_steps: int,
) -> Float[Array, "B T"]:
    """Compute the n-step return of each action, within its episode and the segment.

        G_t = r_{t+1} + gamma d_{t+1} r_{t+2} + ... + gamma^m d_{t+1} ... d_{t+m} V(o_{t+m})

    with m the least of n, the number of steps to the episode's `last` step, and T - t. A truncated
    episode bootstraps from the value of its last step, a terminated one does not.

    Args:
      reward_BS: `TimeStep.reward` of all S = T + 1 steps; column 0 is not used.
      discount_BS: `TimeStep.discount`, without gamma; column 0 is not used.
      last_BS: `TimeStep.last`.
      value_BS: V(o_t), in the units of the reward.
      gamma: the discount factor.
      num_steps: n.

    Returns:
      G_t for t = 0 .. T - 1; where `ops.returns.transition_mask` is False, it has no meaning.
    """
    chex.assert_rank([reward_BS, discount_BS, last_BS, value_BS], 2)
    chex.assert_equal_shape([reward_BS, discount_BS, last_BS, value_BS])
    reward_BT, discount_BT, value_BT = (x[:, 1:] for x in (reward_BS, discount_BS, value_BS))
    # A terminal state may have no legal action, and then the value -inf, which times 0 is NaN.
    value_BT = jnp.where(discount_BT > 0, value_BT, 0)
    # The value, not a longer return, follows at the end of an episode and of the segment.
    ends_BT = last_BS[:, 1:].at[:, -1].set(True)
    return_BT = reward_BT + gamma * discount_BT * value_BT
    for _ in range(num_steps - 1):
        following_BT = jnp.roll(return_BT, -1, axis=1)
        next_BT = jnp.where(ends_BT, value_BT, following_BT)
        return_BT = reward_BT + gamma * discount_BT * next_BT
    return return_BT


def double_q_values(
    q_BSA: Float[Array, "B S A"], target_q_BSA: Float[Array, "B S A"]
) -> Float[Array, "B S"]:
    """Return the target network's value of the online network's best action (double Q-learning).

    Args:
      q_BSA: values of the online network; forbidden actions have the lowest.
      target_q_BSA: values of the target network.
    """
    best_BS = jnp.argmax(q_BSA, axis=-1)
    return jnp.take_along_axis(target_q_BSA, best_BS[..., None], axis=-1)[..., 0]


def td_errors(
    *,
    q_BSA: Float[Array, "B S A"],
    target_q_BSA: Float[Array, "B S A"],
    actions_BT: Int[Array, "B T"],
    reward_BS: Float[Array, "B S"],
    discount_BS: Float[Array, "B S"],
    last_BS: Bool[Array, "B S"],
    gamma: float | Float[Array, ""],
    num_steps: int,
) -> Float[Array, "B T"]:
    """Return h(G_t) - Q(o_t, a_t), with G_t from h^-1 of the target's values; 0 at resets.

    Q is in rescaled units (R2D2, equation 1 and section 2.3). No gradient flows into G.
    """
    chex.assert_equal_shape([q_BSA, target_q_BSA])
    value_BS = unrescale(double_q_values(q_BSA, target_q_BSA))
    return_BT = n_step_returns(
        reward_BS=reward_BS,
        discount_BS=discount_BS,
        last_BS=last_BS,
        value_BS=value_BS,
        gamma=gamma,
        num_steps=num_steps,
    )
    chosen_BT = jnp.take_along_axis(q_BSA[:, :-1], actions_BT[..., None], axis=-1)[..., 0]
    error_BT = jax.lax.stop_gradient(rescale(return_BT)) - chosen_BT
    return jnp.where(transition_mask(last_BS), error_BT, 0)


def sequence_loss(
    error_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"], weight_B: Float[Array, " B"]
) -> Float[Array, ""]:
    """Return the mean over transitions of half the squared errors, with weights of sequences."""
    return masked_mean(0.5 * weight_B[:, None] * jnp.square(error_BT), mask_BT)


def sequence_priorities(
    error_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"], largest: float = 0.9
) -> Float[Array, " B"]:
    """Return the priority of each sequence, eta max |error| + (1 - eta) mean |error|.

    R2D2, section 2.3; eta is `largest`.
    """
    size_BT = jnp.where(mask_BT, jnp.abs(error_BT), 0)
    count_B = jnp.maximum(jnp.sum(mask_BT, axis=1, dtype=size_BT.dtype), 1)
    mean_B = jnp.sum(size_BT, axis=1) / count_B
    return largest * jnp.max(size_BT, axis=1) + (1 - largest) * mean_B


def importance_weights(
    probability_B: Float[Array, " B"], count: Int[Array, ""], exponent: float
) -> Float[Array, " B"]:
    """Return (count * probability)^-exponent, relative to the largest (Schaul et al. 2016, 3.4)."""
    weight_B = (count.astype(probability_B.dtype) * probability_B) ** -exponent
    return weight_B / jnp.max(weight_B)


def actor_epsilons(
    num_actors: int, epsilon: float = 0.4, exponent: float = 7.0
) -> tuple[float, ...]:
    """Return epsilon^(1 + exponent * i / (N - 1)) of actor i of N (Horgan et al. 2018, Ape-X)."""
    last = max(num_actors - 1, 1)
    return tuple(epsilon ** (1 + exponent * i / last) for i in range(num_actors))
