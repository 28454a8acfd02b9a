"""Losses for predicting the actions of trajectories (Chen et al. 2021; RATE, arXiv 2306.09459)."""

from typing import Any

import chex
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from gtrxl_jax.ops.distributions import (
    ActionDistribution,
    Categorical,
    Gaussian,
    Hybrid,
    SquashedGaussian,
)


def action_loss(distribution: ActionDistribution, actions: Any) -> Float[Array, "..."]:
    """Compute the loss of each prediction, with the leading axes of the distribution.

    It is the cross-entropy in nats for a discrete action, the squared error of the mean in units of
    the scale, averaged over the dimensions, for a continuous one, and the sum for an action with
    several parts. The scale of `ActionHead` is half of the action's range, so that no dimension
    counts more than others for its units; it gets no gradient.
    """
    if isinstance(distribution, Categorical):
        return -distribution.log_prob(actions)
    if isinstance(distribution, Gaussian):
        chex.assert_equal_shape([distribution.mean, actions])
        mean = distribution.mode()
        scale = lax.stop_gradient(distribution.scale.astype(mean.dtype))
        return jnp.mean(jnp.square((mean - actions.astype(mean.dtype)) / scale), axis=-1)
    if not isinstance(distribution, Hybrid):
        raise TypeError(f"{type(distribution).__name__} is not an action distribution")
    terms = [
        -choice.log_prob(actions["discrete"][..., k])
        for k, choice in enumerate(distribution.categoricals)
    ]
    if distribution.gaussian is not None:
        terms.append(action_loss(distribution.gaussian, actions["continuous"]))
    return jnp.sum(jnp.stack(terms), axis=0)


def action_scores(
    distribution: ActionDistribution, actions: Any
) -> dict[str, Shaped[Array, "..."]]:
    """Compare the most likely action of each prediction with the action in the data.

    Returns:
      "accuracy", for actions with discrete dimensions: whether all of these are equal. "error", for
      those with continuous dimensions: the mean absolute difference over these, in their units.
    """
    if isinstance(distribution, Categorical):
        return {"accuracy": distribution.mode() == actions}
    if isinstance(distribution, Gaussian | SquashedGaussian):
        mean = distribution.mode()
        return {"error": jnp.mean(jnp.abs(mean - actions.astype(mean.dtype)), axis=-1)}
    if not isinstance(distribution, Hybrid):
        raise TypeError(f"{type(distribution).__name__} is not an action distribution")
    scores: dict[str, Array] = {}
    if distribution.categoricals:
        modes = jnp.stack([choice.mode() for choice in distribution.categoricals], axis=-1)
        scores["accuracy"] = jnp.all(modes == actions["discrete"], axis=-1)
    if distribution.gaussian is not None:
        scores |= action_scores(distribution.gaussian, actions["continuous"])
    return scores
