"""Terms of losses and statistics that algorithms share, over the valid samples of a batch."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(x_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Return the mean of x where the mask is True, or 0 if it is True nowhere."""
    count = jnp.sum(mask_BT, dtype=x_BT.dtype)
    return jnp.sum(jnp.where(mask_BT, x_BT, 0)) / jnp.maximum(count, 1)


def masked_variance(x_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Return the variance of x where the mask is True, or 0 if it is True nowhere."""
    return masked_mean(jnp.square(x_BT - masked_mean(x_BT, mask_BT)), mask_BT)


def value_loss(
    values_BT: Float[Array, "B T"], returns_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, ""]:
    """Return 1/2 mean (V - G)^2; no gradient flows to the returns or their bootstrap values."""
    chex.assert_equal_shape([values_BT, returns_BT, mask_BT])
    error_BT = jnp.where(mask_BT, values_BT - jax.lax.stop_gradient(returns_BT), 0)
    return 0.5 * masked_mean(jnp.square(error_BT), mask_BT)


def explained_variance(
    values_BT: Float[Array, "B T"], returns_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, ""]:
    """Return 1 - Var(G - V) / Var(G), or 0 if all returns are equal, up to rounding.

    Rounding is relative to 1, about which normalized returns are, and to the returns themselves.
    """
    total = masked_variance(returns_BT, mask_BT)
    unexplained = masked_variance(returns_BT - values_BT, mask_BT)
    rounding = 16 * jnp.finfo(returns_BT.dtype).eps
    varies = total > rounding**2 * (1 + masked_mean(jnp.square(returns_BT), mask_BT))
    return jnp.where(varies, 1 - unexplained / jnp.where(varies, total, 1), 0)


def learn_if(
    is_due: Bool[Array, ""], learn: Callable[[Any], tuple[Any, dict[str, Array]]], learner: Any
) -> tuple[Any, dict[str, Array]]:
    """Return `learn(learner)`, a new learner and metrics, if it is due.

    Otherwise the learner is returned, metrics are NaN, and booleans among them, which are checks,
    are True.
    """

    def wait(learner: Any) -> tuple[Any, dict[str, Array]]:
        shapes = jax.eval_shape(learn, learner)[1]
        return learner, {
            name: jnp.full((), x.dtype == jnp.bool_ or jnp.nan, x.dtype)
            for name, x in shapes.items()
        }

    return jax.lax.cond(is_due, learn, wait, learner)
