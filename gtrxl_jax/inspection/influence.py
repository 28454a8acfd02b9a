"""How much the action of a step depends on each past time step, for an agent with any core."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.nn.agent import MemoryNetwork
from gtrxl_jax.ops.distributions import Categorical, Gaussian
from gtrxl_jax.timestep import TimeStep

CHUNK = 32
"""Number of steps that are taken away at once, each from a copy of the episode."""


def influence(
    agent: MemoryNetwork, params: Any, timesteps: TimeStep, actions: Any
) -> Float[np.ndarray, "T T"]:
    """Return by how much the action of each step depends on each step up to it.

    Entry (t, s) is the change of a score of the action at t if step s had been unremarkable: if
    what the encoder returns at s, for the observation and the previous action and reward, were its
    mean over the episode. The score is the log-odds of the chosen action, log p - log (1 - p),
    which has no ceiling as log p has, so that also the causes of an action with p near 1 count.

    This is the gradient of the log-odds with respect to the input of step s, integrated along the
    path from its mean to it. At a single point, a trained policy's gradient tells little, since the
    policy is nearly constant around the inputs that it knows.

    For action values, the score is Q(a_t) - max of the others; for continuous actions, the mean in
    units of the standard deviation. Changes of scores of several dimensions are added by squares.

    Args:
      agent: the agent.
      params: its parameters.
      timesteps: the time steps `[T]` of one episode, from its first.
      actions: the actions `[T]` in the layout of `specs.ActionSpec`.
    """
    timesteps, actions = jax.tree.map(lambda x: jnp.asarray(x)[None], (timesteps, actions))
    x_TD = _encode(agent, params, timesteps)
    steps = len(x_TD)
    none_C = np.full(CHUNK, steps)
    none_TP = np.asarray(_scores_without(agent, params, timesteps, actions, x_TD, none_C)[0])
    changes = []
    for start in range(0, steps, CHUNK):
        taken_C = np.arange(start, start + CHUNK)  # beyond the end, none is
        scores_CTP = _scores_without(agent, params, timesteps, actions, x_TD, taken_C)
        changes.append(np.linalg.norm(np.asarray(scores_CTP) - none_TP, axis=-1))
    return np.concatenate(changes)[:steps].T


@functools.partial(jax.jit, static_argnums=0)
def _encode(agent: MemoryNetwork, params: Any, timesteps: TimeStep) -> Float[Array, "T D"]:
    apply: Any = agent.apply
    return apply({"params": params}, timesteps, method="encode")[0]


@functools.partial(jax.jit, static_argnums=0)
def _scores_without(
    agent: MemoryNetwork,
    params: Any,
    timesteps: TimeStep,
    actions: Any,
    x_TD: Float[Array, "T D"],
    taken_C: Array,
) -> Float[Array, "C T P"]:
    """Return the scores of an episode `[1, T]` in copies without one of the encoded steps each."""
    is_taken_CT1 = jax.nn.one_hot(taken_C, len(x_TD), dtype=bool)[..., None]
    x_CTD = jnp.where(is_taken_CT1, jnp.mean(x_TD, axis=0)[None, None], x_TD[None])
    timesteps, actions = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (len(taken_C), *x.shape[1:])), (timesteps, actions)
    )

    def encoded(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Return the given encodings instead of computing any, as an interceptor of Flax."""
        module = context.module
        is_encoder = module.scope is not None and module.path == ("encoder",)
        return x_CTD if is_encoder else call(*args, **kwargs)

    memory = agent.initial_memory(len(taken_C))
    with nn.intercept_methods(encoded):
        apply: Any = agent.apply
        _, output = apply({"params": params}, memory, timesteps)
    return _scores(output, actions)


def _scores(output: Any, actions: Any) -> Float[Array, "... P"]:
    """Return the scores of the chosen actions, see `influence`."""
    if isinstance(output, jax.Array):
        return _lead(output, actions, jnp.max)
    policy = output.policy
    if isinstance(policy, Categorical):
        return _lead(policy.logits, actions, jax.nn.logsumexp)
    if isinstance(policy, Gaussian):
        return policy.mean / policy.scale
    scores = [
        _lead(categorical.logits, actions["discrete"][..., k], jax.nn.logsumexp)
        for k, categorical in enumerate(policy.categoricals)
    ]
    if policy.gaussian is not None:
        scores.append(policy.gaussian.mean / policy.gaussian.scale)
    return jnp.concatenate(scores, axis=-1)


def _lead(values: Float[Array, "... A"], chosen: Array, join: Any) -> Float[Array, "... 1"]:
    """Return the chosen one of some values minus all others, joined."""
    is_chosen = jax.nn.one_hot(chosen, values.shape[-1], dtype=bool)
    others = jnp.where(is_chosen, jnp.finfo(values.dtype).min, values)
    value = jnp.take_along_axis(values, chosen[..., None], axis=-1)
    return value - join(others, axis=-1, keepdims=True)
