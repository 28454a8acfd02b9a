"""Metrics of offline training: sums over the steps of segments, and statistics of the memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Real

from gtrxl_jax.ops.imitation import action_correct, action_loss
from gtrxl_jax.segments import Segments

Metrics = dict[str, Real[Array, ""]]

SUMS = ("loss", "steps", "correct", "last", "last_correct")


def last_steps(mask_BNK: Bool[Array, "B N K"]) -> Bool[Array, "B N K"]:
    """Mark the last step of each window, at which memory tasks are decided."""
    mask_BS = mask_BNK.reshape(mask_BNK.shape[0], -1)
    following_BS = jnp.pad(mask_BS[:, 1:], [(0, 0), (0, 1)])
    return (mask_BS & ~following_BS).reshape(mask_BNK.shape)


def step_sums(policy: Any, segment: Segments, last_BK: Bool[Array, "B K"]) -> Metrics:
    """Compute `SUMS` over the steps of a segment `[B, K]`, and over its last steps of windows.

    "loss" is the training loss, see `action_loss`.
    """
    mask_BK = segment.mask
    loss_BK = action_loss(policy, segment.actions)
    correct_BK = action_correct(policy, segment.actions) & mask_BK
    values = {
        "loss": jnp.where(mask_BK, loss_BK, jnp.zeros((), loss_BK.dtype)),
        "steps": mask_BK,
        "correct": correct_BK,
        "last": last_BK,
        "last_correct": correct_BK & last_BK,
    }
    return {name: jnp.sum(value, dtype=loss_BK.dtype) for name, value in values.items()}


def memory_metrics(before: Any, after: Any) -> Metrics:
    """Compute the root mean squares of the memory tokens and of their change over a segment."""
    if not hasattr(after, "tokens") or not after.tokens.tokens.size:
        return {}
    old, new = (jax.lax.stop_gradient(x.tokens.tokens) for x in (before, after))
    return {
        "memory/size": jnp.sqrt(jnp.mean(jnp.square(new))),
        "memory/change": jnp.sqrt(jnp.mean(jnp.square(new - old))),
    }
