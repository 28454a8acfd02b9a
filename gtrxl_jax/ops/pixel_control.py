"""Pixel control, an auxiliary task: to change the pixels of each cell of an image.

From UNREAL (Jaderberg et al. 2017, arXiv 1611.05397, section 3.1): a grid of cells, each with its
own values of the actions, which are learned by n-step Q-learning.
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops.losses import masked_mean
from gtrxl_jax.ops.returns import lambda_returns, transition_mask

CELLS = 20
"""The least number of cells along the shorter side of an image with enough pixels."""


def cell_size(height: int, width: int) -> int:
    """Return the side of a cell in pixels: 4 for an image of 84 x 84, as in the paper."""
    return max(1, min(height, width) // CELLS)


def pixel_changes(image_BSHWC: Float[Array, "B S H W C"], cell: int) -> Float[Array, "B S h w"]:
    """Return the mean absolute change of the pixels of each cell since the step before.

    The image is cropped to whole cells around its center. At the first step the change is 0.

    Args:
      image_BSHWC: images.
      cell: the side of a cell in pixels.
    """
    chex.assert_rank(image_BSHWC, 5)
    *_, height, width, _ = image_BSHWC.shape
    rows, columns = height // cell, width // cell
    top, left = (height - rows * cell) // 2, (width - columns * cell) // 2
    cropped = image_BSHWC[:, :, top : top + rows * cell, left : left + columns * cell]
    change = jnp.mean(jnp.abs(cropped[:, 1:] - cropped[:, :-1]), axis=-1)
    blocks = change.reshape(*change.shape[:2], rows, cell, columns, cell)
    return jnp.pad(jnp.mean(blocks, axis=(3, 5)), ((0, 0), (1, 0), (0, 0), (0, 0)))


def pixel_control_loss(
    *,
    q_BSHWA: Float[Array, "B S H W A"],
    change_BSHW: Float[Array, "B S H W"],
    action_BS: Int[Array, "B S"],
    discount_BS: Float[Array, "B S"],
    last_BS: Bool[Array, "B S"],
    gamma: float = 0.9,
) -> Float[Array, ""]:
    """Return the mean over transitions and cells of (G_t - Q(s_t, a_t))^2 / 2.

        G_t = c_{t+1} + gamma d_{t+1} * (max_a Q(s_{t+1}, a) if last_{t+1} or t + 1 = T,
                                         else G_{t+1})

    The transitions from a last step to a reset do not count, and no return crosses one. No gradient
    flows to G.

    Args:
      q_BSHWA: the values of the actions in each cell at all S = T + 1 steps.
      change_BSHW: c, the pseudo-reward of each cell, see `pixel_changes`.
      action_BS: `TimeStep.action`, the previous action of each step.
      discount_BS: `TimeStep.discount`.
      last_BS: `TimeStep.last`.
      gamma: the discount factor of the task.
    """
    chex.assert_rank([q_BSHWA, change_BSHW, action_BS], [5, 4, 2])
    value_BSHW = jnp.max(q_BSHWA, axis=-1)
    cells = [x.reshape(*x.shape[:2], -1) for x in (change_BSHW, value_BSHW)]

    def returns(reward_BS: Array, value_BS: Array) -> Array:
        return lambda_returns(
            reward_BS=reward_BS,
            discount_BS=discount_BS,
            last_BS=last_BS,
            value_BS=value_BS,
            gamma=gamma,
        )

    return_BTN = jax.lax.stop_gradient(jax.vmap(returns, in_axes=2, out_axes=2)(*cells))
    taken_BT = action_BS[:, 1:, None, None, None]
    q_BTHW = jnp.take_along_axis(q_BSHWA[:, :-1], taken_BT, axis=-1)[..., 0]
    error_BT = jnp.mean(jnp.square(return_BTN - q_BTHW.reshape(return_BTN.shape)), axis=-1) / 2
    return masked_mean(error_BT, transition_mask(last_BS))
