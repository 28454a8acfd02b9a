"""Losses for predicting the actions of trajectories (Chen et al. 2021; RATE, arXiv 2306.09459)."""

from typing import Any

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from gtrxl_jax.ops.distributions import ActionDistribution, Categorical, Gaussian, Hybrid


def action_loss(policy: ActionDistribution, actions: Any) -> Float[Array, "..."]:
    """Compute the loss of each prediction, with the leading axes of the policy.

    It is the cross-entropy in nats for a discrete action, the squared error of the mean, averaged
    over the dimensions, for a continuous one, and the sum for an action with several parts.
    """
    if isinstance(policy, Categorical):
        return -policy.log_prob(actions)
    if isinstance(policy, Gaussian):
        chex.assert_equal_shape([policy.mean, actions])
        mean = policy.mode()
        return jnp.mean(jnp.square(mean - actions.astype(mean.dtype)), axis=-1)
    if not isinstance(policy, Hybrid):
        raise TypeError(f"policy must be an action distribution, not {type(policy).__name__}")
    terms = [
        -choice.log_prob(actions["discrete"][..., k])
        for k, choice in enumerate(policy.categoricals)
    ]
    if policy.gaussian is not None:
        terms.append(action_loss(policy.gaussian, actions["continuous"]))
    return jnp.sum(jnp.stack(terms), axis=0)


def action_scores(policy: ActionDistribution, actions: Any) -> dict[str, Shaped[Array, "..."]]:
    """Compare the most likely action of each prediction with the action in the data.

    Returns:
      "accuracy", for actions with discrete dimensions: whether all of these are equal. "error", for
      those with continuous dimensions: the mean absolute difference over these, in their units.
    """
    if isinstance(policy, Categorical):
        return {"accuracy": policy.mode() == actions}
    if isinstance(policy, Gaussian):
        mean = policy.mode()
        return {"error": jnp.mean(jnp.abs(mean - actions.astype(mean.dtype)), axis=-1)}
    if not isinstance(policy, Hybrid):
        raise TypeError(f"policy must be an action distribution, not {type(policy).__name__}")
    scores: dict[str, Array] = {}
    if policy.categoricals:
        modes = jnp.stack([choice.mode() for choice in policy.categoricals], axis=-1)
        scores["accuracy"] = jnp.all(modes == actions["discrete"], axis=-1)
    if policy.gaussian is not None:
        scores |= action_scores(policy.gaussian, actions["continuous"])
    return scores
