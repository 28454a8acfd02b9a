"""Metrics of offline training: sums over the steps of segments, and statistics of the memory.

A batch `[B, N, K]` is processed as N segments `[B, K]`; C consecutive ones are a chunk.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Key, Real

from gtrxl_jax.ops.imitation import action_loss, action_scores
from gtrxl_jax.segments import Segments

Metrics = dict[str, Real[Array, ""]]


def last_steps(mask_BNK: Bool[Array, "B N K"]) -> Bool[Array, "B N K"]:
    """Mark the last step of each window, at which memory tasks are decided."""
    mask_BS = mask_BNK.reshape(mask_BNK.shape[0], -1)
    following_BS = jnp.pad(mask_BS[:, 1:], [(0, 0), (0, 1)])
    return (mask_BS & ~following_BS).reshape(mask_BNK.shape)


def segment_by_segment(batch: Segments) -> tuple[Segments, Bool[Array, "N B K"]]:
    """Return a batch `[B, N, K]` as `[N, B, K]`, and which steps are the last of their window."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (batch, last_steps(batch.mask)))


def over_segments(
    model: nn.Module,
    params: Any,
    memory: Any,
    chunk: Segments,
    last: Bool[Array, "C B K"],
    dropout: Key[Array, " C"] | None = None,
    remat: bool = False,
) -> tuple[Any, tuple[Metrics, Metrics]]:
    """Apply a model to consecutive segments, each with the memory of the one before.

    Args:
      model: a model of trajectories.
      params: its parameters.
      memory: the memory before the first segment.
      chunk: the segments, `[C, B, K]`.
      last: which steps are the last of a window.
      dropout: PRNG keys, one for each segment; without them, there is no dropout.
      remat: whether the backward pass recomputes the activations of each segment.

    Returns:
      The final memory; the sums of `step_sums`, and means of statistics of the memory.
    """

    def one(memory: Any, inputs: Any) -> Any:
        segment, last_BK, key = inputs
        rngs = None if key is None else {"dropout": key}
        following, policy = model.apply({"params": params}, memory, segment, key is None, rngs=rngs)
        sums = step_sums(policy, segment, last_BK)
        return following, (sums, memory_metrics(memory, following))

    step = jax.checkpoint(one) if remat else one
    memory, (sums, means) = jax.lax.scan(step, memory, (chunk, last, dropout))
    return memory, (jax.tree.map(jnp.sum, sums), jax.tree.map(jnp.mean, means))


def step_means(sums: Metrics, suffix: str = "") -> Metrics:
    """Return the loss and the scores of predictions, means over the steps, from `step_sums`."""
    count = {name: sums["last" if name.endswith("/last_step") else "steps"] for name in sums}
    return {
        f"{name}{suffix}": total / jnp.maximum(count[name], 1)
        for name, total in sums.items()
        if name not in ("steps", "last")
    }


def step_sums(policy: Any, segment: Segments, last_BK: Bool[Array, "B K"]) -> Metrics:
    """Sum over the steps of a segment `[B, K]`, and over those that are the last of a window.

    Returns:
      "loss", the training loss, see `action_loss`; `action_scores`, and "accuracy/last_step" and
      "error/last_step"; and the numbers of steps, "steps" and "last".
    """
    mask_BK = segment.mask
    loss_BK = action_loss(policy, segment.actions)
    values = {"loss": jnp.where(mask_BK, loss_BK, 0), "steps": mask_BK, "last": last_BK}
    for name, score_BK in action_scores(policy, segment.actions).items():
        score_BK = score_BK.astype(loss_BK.dtype)
        values[name] = jnp.where(mask_BK, score_BK, 0)
        values[f"{name}/last_step"] = jnp.where(last_BK, score_BK, 0)
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
