"""Metrics of offline training: sums over the steps of segments, and statistics of the memory.

A batch `[B, N, K]` is processed as N segments `[B, K]`; C consecutive ones are a chunk.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Key, Real

from gtrxl_jax.ops.imitation import action_correct, action_loss
from gtrxl_jax.segments import Segments

Metrics = dict[str, Real[Array, ""]]

SUMS = ("loss", "steps", "correct", "last", "last_correct")


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
) -> tuple[Any, Metrics]:
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
      The final memory, and the metrics: the sums `SUMS`, and means of statistics of the memory.
    """

    def one(memory: Any, inputs: Any) -> Any:
        segment, last_BK, key = inputs
        rngs = None if key is None else {"dropout": key}
        following, policy = model.apply({"params": params}, memory, segment, key is None, rngs=rngs)
        sums = step_sums(policy, segment, last_BK)
        return following, sums | memory_metrics(memory, following)

    step = jax.checkpoint(one) if remat else one
    memory, records = jax.lax.scan(step, memory, (chunk, last, dropout))
    sums = {name: jnp.sum(records.pop(name)) for name in SUMS}
    return memory, jax.tree.map(jnp.mean, records) | sums


def step_means(sums: Metrics, suffix: str = "") -> Metrics:
    """Return the loss and the accuracies, means over the steps, from the sums `SUMS`."""
    return {
        f"loss{suffix}": sums["loss"] / sums["steps"],
        f"accuracy{suffix}": sums["correct"] / sums["steps"],
        f"accuracy/last_step{suffix}": sums["last_correct"] / jnp.maximum(sums["last"], 1),
    }


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
