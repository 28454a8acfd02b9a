"""Imitation: predict the actions of trajectories, segment by segment.

An update scans the model over the K segments of each window (Chen et al. 2021; RATE, arXiv
2306.09459). The memory is passed from each segment to the next, and the gradient flows back through
it. C = bptt + 1 consecutive segments are a chunk, for which the optimizer takes a step. A segment's
activations are recomputed in the backward pass, so memory usage grows with T instead of K * T.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.offline.algorithm import (
    Metrics,
    OfflineAlgorithm,
    OfflineAlgorithmConfig,
    Setup,
)
from gtrxl_jax.ops.imitation import action_loss, action_scores
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.parallel.placement import gather_parameters, split_batch, split_gradients
from gtrxl_jax.segments import Segments


@dataclasses.dataclass(frozen=True)
class ImitationConfig(OfflineAlgorithmConfig):
    """Settings of imitation: none but the name."""

    name: str = "imitation"

    def make(self, setup: Setup) -> "Imitation":
        return Imitation(self, setup)


@struct.dataclass
class ImitationLearner:
    """What imitation changes.

    Attributes:
      params: parameters of the model.
      optimizer: state of the optax optimizer.
      updates: number of completed updates.
    """

    params: Any
    optimizer: optax.OptState
    updates: Int[Array, ""]


class Chunk(NamedTuple):
    """Consecutive segments `[C, B, T]` of each window.

    Attributes:
      segments: the segments.
      last: which steps are the last of their window, for the metrics.
      weights: see `Imitation.weights`.
    """

    segments: Segments
    last: Bool[Array, "C B T"]
    weights: Float[Array, "C B T"] | None = None


class Imitation(OfflineAlgorithm):
    """Minimizes the mean of `ops.imitation.action_loss` over the steps of a batch."""

    def __init__(self, config: Any, setup: Setup):
        super().__init__(config, setup)
        self.optimizer, self.schedule = setup.optimizer.make(setup.num_updates)

    def weights(self, batch: Segments) -> Float[Array, "B K T"] | None:
        """Return the weights of the steps' losses; None: all are 1."""
        return None

    def init(self, params: Any, key: Key[Array, ""]) -> ImitationLearner:
        with standard_dtype_promotion():
            optimizer = self.optimizer.init(params)
        return ImitationLearner(params, optimizer, jnp.zeros((), jnp.int32))

    def update(
        self, learner: ImitationLearner, batch: Segments, key: Key[Array, ""]
    ) -> tuple[ImitationLearner, Metrics]:
        """Take an optimizer step for each chunk, except those in which all windows are padding."""
        size, segments, _ = batch.mask.shape
        bptt = self.setup.bptt
        length = segments if bptt is None else min(bptt + 1, segments)
        # [K / C, C, B, T, ...]: the gradient does not cross chunks.
        chunks = jax.tree.map(
            lambda x: x.reshape(-1, length, *x.shape[1:]), self._by_segment(split_batch(batch))
        )
        keys = jax.random.split(key, (segments // length, length))
        memory = self.initial_memory(learner.params, size)
        rate = self.schedule(learner.updates.astype(float))

        def one(carry: Any, inputs: Any) -> Any:
            params, optimizer, memory = carry
            number, chunk, keys = inputs
            gradients, (memory, (sums, means)) = jax.grad(self.loss, has_aux=True)(
                gather_parameters(params), memory, chunk, keys, number == 0
            )
            gradients = split_gradients(gradients)
            means["gradient_norm"] = optax.tree.norm(gradients)
            with standard_dtype_promotion():
                updates, following = self.optimizer.update(gradients, optimizer, params)
            moved = optax.apply_updates(params, jax.tree.map(lambda u: -rate * u, updates))
            is_real = sums["steps"] > 0
            params, optimizer = jax.tree.map(
                lambda new, old: jnp.where(is_real, new, old),
                (moved, following),
                (params, optimizer),
            )
            return (params, optimizer, memory), (sums, means, is_real)

        numbers = jnp.arange(segments // length, dtype=jnp.int32)
        (params, optimizer, _), (sums, means, is_real) = jax.lax.scan(
            one, (learner.params, learner.optimizer, memory), (numbers, chunks, keys)
        )
        means = jax.tree.map(lambda x: jnp.mean(x, where=is_real), means)
        metrics = means | step_means(jax.tree.map(jnp.sum, sums))
        metrics["learning_rate"] = rate
        return ImitationLearner(params, optimizer, learner.updates + 1), metrics

    def loss(
        self,
        params: Any,
        memory: Any,
        chunk: Chunk,
        keys: Key[Array, " C"],
        is_first: Array | bool,
    ) -> tuple[Float[Array, ""], tuple[Any, tuple[Metrics, Metrics]]]:
        """Compute the mean loss over the steps of C consecutive segments `[C, B, T]`.

        Args:
          params: parameters of the model.
          memory: memory before the first segment; no gradient enters it. It is ignored in the first
            chunk of a window, which starts from the network's trainable initial memory.
          chunk: the segments.
          keys: PRNG keys for dropout, one for each segment.
          is_first: whether this is the first chunk of a window.

        Returns:
          The loss; the final memory, and what `over_segments` returns with it.
        """
        fresh = self.initial_memory(params, chunk.last.shape[1])
        memory = jax.tree.map(
            lambda new, old: jnp.where(is_first, new, old), fresh, jax.lax.stop_gradient(memory)
        )
        # With a single segment, the backward pass uses the activations immediately.
        remat = self.setup.remat and len(keys) > 1
        memory, metrics = over_segments(self.model, params, memory, chunk, keys, remat)
        sums, _ = metrics
        return sums["loss"] / jnp.maximum(sums["steps"], 1), (memory, metrics)

    def validate(self, learner: ImitationLearner, batch: Segments) -> Metrics:
        """Return the loss and the scores of predictions of a batch `[B, K, T]`, without dropout."""
        params = gather_parameters(learner.params)
        memory = self.initial_memory(params, len(batch.mask))
        chunk = self._by_segment(split_batch(batch))
        _, (sums, _) = over_segments(self.model, params, memory, chunk)
        return step_means(sums)

    def initial_memory(self, params: Any, batch: int) -> Any:
        """Return the model's memory before the first of B windows."""
        return self.model.apply({"params": params}, batch, method="initial_memory")

    def _by_segment(self, batch: Segments) -> Chunk:
        """Return a batch `[B, K, T]` as segments `[K, B, T]`."""
        chunk = Chunk(batch, last_steps(batch.mask), self.weights(batch))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), chunk)


def last_steps(mask_BKT: Bool[Array, "B K T"]) -> Bool[Array, "B K T"]:
    """Mark the last step of each window, at which memory tasks are decided."""
    mask_BS = mask_BKT.reshape(mask_BKT.shape[0], -1)
    following_BS = jnp.pad(mask_BS[:, 1:], [(0, 0), (0, 1)])
    return (mask_BS & ~following_BS).reshape(mask_BKT.shape)


def over_segments(
    model: nn.Module,
    params: Any,
    memory: Any,
    chunk: Chunk,
    dropout: Key[Array, " C"] | None = None,
    remat: bool = False,
) -> tuple[Any, tuple[Metrics, Metrics]]:
    """Apply a model to consecutive segments, each with the memory of the one before.

    Args:
      model: a sequence model.
      params: its parameters.
      memory: the memory before the first segment.
      chunk: the segments, `[C, B, T]`.
      dropout: PRNG keys, one for each segment; without them, there is no dropout.
      remat: whether the backward pass recomputes the activations of each segment.

    Returns:
      The final memory; the sums of `step_sums`, and means of the model's `memory_metrics`.
    """

    def one(memory: Any, inputs: Any) -> Any:
        (segment, last_BT, weight_BT), key = inputs
        rngs = None if key is None else {"dropout": key}
        following, policy = model.apply({"params": params}, memory, segment, key is None, rngs=rngs)
        sums = step_sums(policy, segment, last_BT, weight_BT)
        return following, (sums, report(memory, following))

    report: Any = getattr(model, "memory_metrics", lambda before, after: {})
    step = jax.checkpoint(one) if remat else one
    memory, (sums, means) = jax.lax.scan(step, memory, (chunk, dropout))
    return memory, (jax.tree.map(jnp.sum, sums), jax.tree.map(jnp.mean, means))


def step_means(sums: Metrics) -> Metrics:
    """Return the loss and the scores of predictions, means over the steps, from `step_sums`."""
    count = {name: sums["last" if name.endswith("/last_step") else "steps"] for name in sums}
    return {
        name: total / jnp.maximum(count[name], 1)
        for name, total in sums.items()
        if name not in ("steps", "last")
    }


def step_sums(
    policy: Any,
    segment: Segments,
    last_BT: Bool[Array, "B T"],
    weight_BT: Float[Array, "B T"] | None = None,
) -> Metrics:
    """Sum over the steps of a segment `[B, T]`, and over those that are the last of a window.

    Returns:
      "loss", the training loss, see `action_loss`, times the weight; `action_scores`, and
      "accuracy/last_step" and "error/last_step"; and the numbers of steps, "steps" and "last".
    """
    mask_BT = segment.mask
    loss_BT = action_loss(policy, segment.actions)
    if weight_BT is not None:
        loss_BT *= weight_BT
    values = {"loss": jnp.where(mask_BT, loss_BT, 0), "steps": mask_BT, "last": last_BT}
    for name, score_BT in action_scores(policy, segment.actions).items():
        score_BT = score_BT.astype(loss_BT.dtype)
        values[name] = jnp.where(mask_BT, score_BT, 0)
        values[f"{name}/last_step"] = jnp.where(last_BT, score_BT, 0)
    return {name: jnp.sum(value, dtype=loss_BT.dtype) for name, value in values.items()}
