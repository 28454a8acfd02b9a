"""What RATE and ELMUR attend to over an episode, and what their memory holds by segment."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float, Int

from gtrxl_jax.nn.sequence.elmur import ELMUR
from gtrxl_jax.nn.sequence.rate import RATE
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import ActionSpec
from gtrxl_jax.timestep import TimeStep

CHUNK = 64
"""Number of sliding windows that are processed at once."""


@dataclasses.dataclass(frozen=True)
class SegmentMemory:
    """The memory of RATE or ELMUR at the start of each of the N segments of an episode.

    It has M vectors, RATE's memory tokens or the slots of ELMUR, in each of G memories: one for
    RATE, one of each layer for ELMUR.

    Attributes:
      context: T, the number of steps of a segment.
      cached_steps: the number of steps before a segment of which RATE's cache has tokens.
      vectors: the vectors.
      reads: the attention weights of each layer and head at each of the S steps on them. For RATE,
        they are part of the weights on everything that a step attends to; for ELMUR, they add up to
        1.
      valve: for each token that begins a segment after the first, the weights of RATE's valve. With
        attention, those of each head on the K = M tokens that ca-2 takes from the segment before,
        as written, and ca-1 as they were; for `g`, the mean opening of its gate, K = 1. Otherwise
        None.
      written: for ELMUR, the step at which each slot was last written, -1 if it is empty.
    """

    context: int
    cached_steps: int
    vectors: Float[np.ndarray, "N G M D"]
    reads: Float[np.ndarray, "L H S M"]
    valve: Float[np.ndarray, "J H M K"] | None = None
    written: Int[np.ndarray, "N M"] | None = None

    @property
    def change(self) -> Float[np.ndarray, "N G M"]:
        """How much each vector differs from that of the segment before, see `difference`."""
        before = self.vectors[[0, *range(len(self.vectors) - 1)]]
        return np.asarray(difference(self.vectors, before))


def difference(x: Any, y: Any) -> Any:
    """Return |x - y| / (|x| + |y|) of vectors `[..., D]`: 0 if they are equal, at most 1."""
    norm = functools.partial(jnp.linalg.norm, axis=-1)
    return norm(x - y) / jnp.maximum(norm(x) + norm(y), jnp.finfo(x.dtype).tiny)


def attention_by_step(
    model: nn.Module,
    params: Any,
    timesteps: TimeStep,
    returns_to_go: Float[np.ndarray, " S"],
    action: ActionSpec,
) -> Float[np.ndarray, "L H S W"] | None:
    """Return the attention at each step of an episode on the steps in the model's context.

    The weight on a step is the sum over its three tokens, also where these are cached. RATE's
    weights do not add up to 1: the rest is attention to memory tokens.

    Args:
      model: a model, see `gtrxl_jax.nn.sequence.model`.
      params: its parameters.
      timesteps: the episode, `[S]`; the action of a step is in the next one.
      returns_to_go: the returns-to-go that the model was given.
      action: the layout of the actions.

    Returns:
      The weights of each layer and head at each step on the W - 1 steps before it, oldest first,
      and on the step itself. W is T, the number of steps of the context, and with a cache the
      number of steps in it more. None for models other than RATE, of which dt is one, and ELMUR.
    """
    if not isinstance(model, RATE | ELMUR):
        return None
    steps, context = len(returns_to_go), model.context
    window = _windows(model, timesteps, returns_to_go, action)
    rows = []
    if isinstance(model, RATE) and model.slides:

        def within(starts: Any) -> Float[np.ndarray, "B L H T W"]:
            memory = _initial_memory(model, params, len(starts))
            return _on_steps(model, _run(model, params, memory, window(starts))[1])

        # The first window has the attention of the first T steps, each later one of its last step.
        rows.append(within([0])[0])
        for begin in range(1, steps - context + 1, CHUNK):
            # All chunks have the same size, so that they share one program.
            starts = np.minimum(np.arange(begin, begin + CHUNK), steps - context)
            count = min(CHUNK, steps - context + 1 - begin)
            rows.append(np.moveaxis(within(starts)[:count, :, :, -1:], 0, 2)[..., 0, :])
    else:
        for _, recorded in _segments(model, params, window, steps):
            rows.append(_on_steps(model, recorded)[0])
    return np.concatenate(rows, axis=2)[:, :, :steps]


def memory_by_segment(
    model: nn.Module,
    params: Any,
    timesteps: TimeStep,
    returns_to_go: Float[np.ndarray, " S"],
    action: ActionSpec,
) -> SegmentMemory | None:
    """Return the memory at the start of each segment of an episode, and what reads it.

    Args: see `attention_by_step`.

    Returns:
      The memory; None for models other than ELMUR and RATE, and without memory and cache.
    """
    if not isinstance(model, RATE | ELMUR) or isinstance(model, RATE) and model.slides:
        return None
    steps = len(returns_to_go)
    window = _windows(model, timesteps, returns_to_go, action)
    memories, recorded = zip(*_segments(model, params, window, steps), strict=True)
    apply: Any = model.apply
    vectors = [apply({"params": params}, one, method="memory_vectors")[0] for one in memories]
    reads = [_on_memory(model, one)[0] for one in recorded]
    valve, written = None, None
    if isinstance(model, ELMUR):
        # All layers write the same slots.
        written = np.stack([one.layers[0].anchors[0] for one in memories])
    elif "valve" in recorded[0]:
        after = [one["valve"]["valve"]["weights"][0][0] for one in recorded[:-1]]
        valve = np.stack(after) if after else None
    return SegmentMemory(
        model.context,
        _cached_steps(model),
        np.stack(vectors).astype(np.float32),
        np.concatenate(reads, axis=2)[:, :, :steps],
        valve,
        written,
    )


def _windows(
    model: Any, timesteps: TimeStep, returns_to_go: Float[np.ndarray, " S"], action: ActionSpec
) -> Callable[[Any], Segments]:
    """Return a function from B first steps to windows `[B, T]` of an episode of S steps.

    Steps beyond the episode's end are masked.
    """
    steps = len(returns_to_go)
    actions = jax.tree.map(
        lambda a_S, zero: np.concatenate([a_S[1:], np.asarray(zero)[None]]),
        timesteps.action,
        action.zeros(),
    )

    def window(starts: Any) -> Segments:
        step_BT = np.asarray(starts)[:, None] + np.arange(model.context)[None]
        inside_BT = np.minimum(step_BT, steps - 1)
        return Segments(
            observations=jax.tree.map(lambda x: jnp.asarray(x[inside_BT]), timesteps.observation),
            actions=jax.tree.map(lambda x: jnp.asarray(x[inside_BT]), actions),
            returns_to_go=jnp.asarray(returns_to_go[inside_BT], jnp.float32),
            timesteps=jnp.asarray(inside_BT, jnp.int32),
            mask=jnp.asarray(step_BT < steps),
        )

    return window


def _segments(
    model: Any, params: Any, window: Callable[[Any], Segments], steps: int
) -> Iterator[tuple[Any, Any]]:
    """Yield the memory before each segment of an episode, and what its layers sow."""
    memory = _initial_memory(model, params, 1)
    for begin in range(0, steps, model.context):
        after, recorded = _run(model, params, memory, window([begin]))
        yield memory, recorded
        memory = after


def _initial_memory(model: Any, params: Any, batch_size: int) -> Any:
    return model.apply({"params": params}, batch_size, method="initial_memory")


@functools.partial(jax.jit, static_argnums=0)
def _run(model: nn.Module, params: Any, memory: Any, segment: Segments) -> tuple[Any, Any]:
    """Return the memory after segments `[B, T]`, and the weights that layers and valve sow."""
    apply: Any = model.apply
    collections = ["attention", "valve"]
    (memory, _), recorded = apply({"params": params}, memory, segment, mutable=collections)
    return memory, recorded


def _of_layers(model: Any, recorded: Any, module: str) -> list[Float[np.ndarray, "B H Q S"]]:
    """Return the weights that a module of each layer has sown."""
    layers = range(len(model.blocks))
    return [np.asarray(recorded["attention"][f"blocks_{k}"][module]["weights"][0]) for k in layers]


def _of_steps(model: Any, recorded: Any) -> Float[np.ndarray, "B L H T S"]:
    """Return the weights of each step's o token on all tokens of a segment."""
    context, tokens = model.context, getattr(model, "memory_tokens", 0)
    rows = []
    for weights_BHQS in _of_layers(model, recorded, "attention"):
        # RATE's last layer computes the o tokens first; the others all, after the read tokens.
        is_last = weights_BHQS.shape[2] == context + tokens
        queries = slice(0, context) if is_last else slice(tokens + 1, tokens + 3 * context, 3)
        rows.append(weights_BHQS[:, :, queries])
    return np.stack(rows, axis=1)


def _cached_steps(model: Any) -> int:
    """Return the number of steps in the cache; of the oldest, there may be a part."""
    return -(-getattr(model, "cache_size", 0) // 3)


def _on_steps(model: Any, recorded: Any) -> Float[np.ndarray, "B L H T W"]:
    """Return the weights of each step on the cached steps and those of its segment, by distance."""
    context = model.context
    cached, tokens = (getattr(model, name, 0) for name in ("cache_size", "memory_tokens"))
    before = _cached_steps(model)
    weights = _of_steps(model, recorded)
    first = cached + tokens
    stream = np.concatenate(
        [
            np.zeros_like(weights, shape=(*weights.shape[:-1], 3 * before - cached)),
            weights[..., :cached],
            weights[..., first : first + 3 * context],
        ],
        axis=-1,
    )
    on_steps = stream.reshape(*stream.shape[:-1], before + context, 3).sum(axis=-1)
    by_distance = np.zeros_like(on_steps)
    for step in range(context):
        by_distance[..., step, context - 1 - step :] = on_steps[..., step, : before + step + 1]
    return by_distance


def _on_memory(model: Any, recorded: Any) -> Float[np.ndarray, "B L H T M"]:
    """Return the weights of each step on the vectors of the memory."""
    if isinstance(model, ELMUR):
        return np.stack(_of_layers(model, recorded, "read"), axis=1)[..., 1::3, :]
    first = model.cache_size
    return _of_steps(model, recorded)[..., first : first + model.memory_tokens]
