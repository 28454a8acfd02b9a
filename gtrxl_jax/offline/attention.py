"""The attention of RATE over an episode, by steps, for plots."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from gtrxl_jax.acting.policy import in_order
from gtrxl_jax.nn.sequence.rate import RATE
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import ActionSpec
from gtrxl_jax.timestep import TimeStep

CHUNK = 64
"""Number of sliding windows that are processed at once."""


def attention_by_step(
    model: nn.Module,
    params: Any,
    timesteps: TimeStep,
    returns_to_go: Float[np.ndarray, " S"],
    action: ActionSpec,
) -> Float[np.ndarray, "L H S W"] | None:
    """Return the attention at each step of an episode on the steps in the model's context.

    The weight on a step is the sum over its three tokens. Weights do not add up to 1: the rest is
    attention to memory tokens, or to cached hidden states of the previous segment.

    Args:
      model: a model, see `gtrxl_jax.nn.sequence.model`.
      params: its parameters.
      timesteps: the episode, `[S]`; the action of a step is in the next one.
      returns_to_go: the returns-to-go that the model was given.
      action: the layout of the actions.

    Returns:
      The weights of each layer and head at each step on the W - 1 steps before it, oldest first,
      and on the step itself, with W = T, the number of steps of the context; None for models other
      than RATE, of which dt is one.
    """
    if not isinstance(model, RATE):
        return None
    steps, context = len(returns_to_go), model.context
    actions = jax.tree.map(
        lambda a_S, zero: np.concatenate([a_S[1:], np.asarray(zero)[None]]),
        timesteps.action,
        action.zeros(),
    )

    def window(starts: Any) -> Segments:
        """Return windows of T steps; steps beyond the episode's end are masked."""
        step_BT = np.asarray(starts)[:, None] + np.arange(context)[None]
        inside_BT = np.minimum(step_BT, steps - 1)
        return Segments(
            observations=jax.tree.map(lambda x: jnp.asarray(x[inside_BT]), timesteps.observation),
            actions=jax.tree.map(lambda x: jnp.asarray(x[inside_BT]), actions),
            returns_to_go=jnp.asarray(returns_to_go[inside_BT], jnp.float32),
            timesteps=jnp.asarray(inside_BT, jnp.int32),
            mask=jnp.asarray(step_BT < steps),
        )

    rows = []
    if model.slides:
        # The first window has the attention of the first T steps, each later one of its last step.
        rows.append(_within(model, _run(model, params, None, window([0]))[1])[0])
        for begin in range(1, steps - context + 1, CHUNK):
            # All chunks have the same size, so that they share one program.
            starts = np.minimum(np.arange(begin, begin + CHUNK), steps - context)
            within = _within(model, _run(model, params, None, window(starts))[1])
            count = min(CHUNK, steps - context + 1 - begin)
            rows.append(np.moveaxis(within[:count, :, :, -1:], 0, 2)[..., 0, :])
    else:
        memory = None
        for begin in range(0, steps, context):
            memory, recorded = _run(model, params, memory, window([begin]))
            rows.append(_within(model, recorded)[0])
    return np.concatenate(rows, axis=2)[:, :, :steps]


@functools.partial(jax.jit, static_argnums=0)
def _run(model: RATE, params: Any, memory: Any, segment: Segments) -> tuple[Any, Any]:
    """Return the memory after segments `[B, T]`, and the weights that each layer sows."""
    variables = {"params": params}
    apply: Any = model.apply
    if memory is None:
        memory = apply(variables, len(segment.mask), method="initial_memory")
    (memory, _), recorded = apply(variables, memory, segment, mutable="attention")
    return memory, recorded["attention"]


def _within(model: RATE, recorded: Any) -> Float[np.ndarray, "B L H T T"]:
    """Return the weights of each step's o token on the steps of its segment, by distance."""
    context, tokens = model.context, model.memory_tokens
    first = model.cache_size + tokens
    layers = []
    for weights_BHTS in in_order(recorded):
        # The last layer computes the o tokens first; the others all tokens, after the read tokens.
        is_last = weights_BHTS.shape[2] == context + tokens
        rows = slice(0, context) if is_last else slice(tokens + 1, tokens + 3 * context, 3)
        on_steps = weights_BHTS[:, :, rows, first : first + 3 * context]
        layers.append(on_steps.reshape(*on_steps.shape[:3], context, 3).sum(axis=-1))
    weights_BLHTT = np.stack(layers, axis=1)
    by_distance = np.zeros_like(weights_BLHTT)
    for step in range(context):
        by_distance[..., step, context - 1 - step :] = weights_BLHTT[..., step, : step + 1]
    return by_distance
