"""How much actions, and memories of offline models, depend on each past time step."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.acting.policy import AgentPolicy, Policy
from gtrxl_jax.offline.attention import difference
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.ops.distributions import Categorical, Gaussian, SquashedGaussian
from gtrxl_jax.timestep import TimeStep

CHUNK = 64
"""Number of replacements at once, each of one step in a copy of the episode."""


@dataclasses.dataclass(frozen=True)
class Influence:
    """What would be different if a step s of an episode of T actions had been another one.

    Attributes:
      decisions: for each step t and s, the change of a score of the action at t, see `influence`.
      memory: for each of N segments, by how much the M vectors in each of G memories would differ
        at its start, see `offline.attention.difference`; None for models without such vectors.
    """

    decisions: Float[np.ndarray, "T T"]
    memory: Float[np.ndarray, "N G M T"] | None = None


def influence(
    policy: Policy, params: Any, timesteps: TimeStep, actions: Any, others: Sequence[TimeStep]
) -> Influence | None:
    """Return by how much the action of each step, and memories, depend on each step up to it.

    It is the larger change of two, if what the encoder returns at s were its mean over the episode,
    an unremarkable step, or what it returns at s in other episodes, on average over these. The
    second counts where an agent would choose the same action without having seen s. The encoder of
    an agent has the observation and the previous action and reward, of an offline model the
    observation.

    The score of an action is the log-odds of the chosen one, log p - log (1 - p), which has no
    ceiling as log p has, so that also the causes of an action with p near 1 count. Its change is
    its gradient with respect to the input of step s, integrated along the path to the other input.
    At a single point, a trained policy's gradient tells little, since the policy is nearly constant
    around the inputs that it knows.

    For action values, the score is Q(a_t) - max of the others; for continuous actions, the mean in
    units of the standard deviation. Changes of scores of several dimensions are added by squares.

    Agents are run in the segment form, offline models in the acting form, with the actions taken.

    Args:
      policy: the policy.
      params: the parameters of its network.
      timesteps: the time steps `[T]` of one episode, from its first.
      actions: the actions `[T]` in the layout of `specs.ActionSpec`.
      others: the time steps of other episodes, of any length. The last step of one that is shorter
        stands for those that it lacks.

    Returns:
      The influence; None for policies without an encoder.
    """
    steps = len(timesteps.first)
    every_ET = _stack(steps, timesteps, *others)
    timesteps, actions = jax.tree.map(jnp.asarray, (timesteps, actions))
    if isinstance(policy, AgentPolicy):
        network: Any = policy.agent
        seen_ET, scores = every_ET, _agent_scores
    elif isinstance(policy, SequencePolicy) and hasattr(policy.model, "encode"):
        network = policy.model
        seen_ET, scores = every_ET.observation, _model_scores
    else:
        return None
    x_ETD = jax.jit(_encode, static_argnums=0)(network, params, seen_ET)
    x_TD = x_ETD[0]
    mean_TD = jnp.broadcast_to(x_TD.mean(axis=0, keepdims=True), x_TD.shape)
    replacements_RTD = x_ETD.at[0].set(mean_TD)
    sources, numbers = map(np.ravel, np.indices((len(x_ETD), steps)))
    changes, memories = [], []
    for start in range(0, len(numbers), CHUNK):
        rest = max(0, start + CHUNK - len(numbers))
        # The first copy, and those beyond the end, have no replacement.
        number_C = np.pad(numbers[start : start + CHUNK], (1, rest), constant_values=steps)
        source_C = np.pad(sources[start : start + CHUNK], (1, rest))
        scores_CTP, memory_TCGM = jax.device_get(
            scores(policy, params, timesteps, actions, x_TD, replacements_RTD[source_C], number_C)
        )
        changes.append(np.linalg.norm(scores_CTP[1:] - scores_CTP[:1], axis=-1))
        if memory_TCGM is not None:
            memories.append(np.moveaxis(memory_TCGM[:: network.context, 1:], 1, 0))

    def join(parts: list[np.ndarray]) -> np.ndarray:
        """Return the influence of each step `[..., T]` from the changes of all chunks."""
        change = np.concatenate(parts)[: len(numbers)]
        change_RT = change.reshape(len(x_ETD), steps, *change.shape[1:])
        return np.moveaxis(np.maximum(change_RT[0], change_RT[1:].mean(axis=0)), 0, -1)

    return Influence(join(changes), join(memories) if memories else None)


def _stack(steps: int, *episodes: TimeStep) -> TimeStep:
    """Return the first time steps of episodes in one array, the last one repeated where needed."""
    numbers_T = np.arange(steps)
    return jax.tree.map(
        lambda *leaves: jnp.stack([leaf[np.minimum(numbers_T, len(leaf) - 1)] for leaf in leaves]),
        *episodes,
    )


def _encode(network: nn.Module, params: Any, seen: Any) -> Float[Array, "..."]:
    apply: Any = network.apply
    return apply({"params": params}, seen, method="encode")


@functools.partial(jax.jit, static_argnums=0)
def _agent_scores(
    policy: AgentPolicy,
    params: Any,
    timesteps: TimeStep,
    actions: Any,
    x_TD: Float[Array, "T D"],
    y_CTD: Float[Array, "C T D"],
    number_C: Array,
) -> tuple[Float[Array, "C T P"], None]:
    """Return the scores of copies of an episode, each with another encoding of one step."""
    is_replaced_CT1 = jax.nn.one_hot(number_C, len(x_TD), dtype=bool)[..., None]
    x_CTD = jnp.where(is_replaced_CT1, y_CTD, x_TD[None])
    timesteps, actions = _copies(len(number_C), (timesteps, actions))
    memory = policy.agent.initial_memory(len(number_C))
    apply: Any = policy.agent.apply
    with _encodings(policy.agent, params, timesteps, x_CTD):
        _, output = apply({"params": params}, memory, timesteps)
    return _scores(output, actions), None


@functools.partial(jax.jit, static_argnums=0)
def _model_scores(
    policy: SequencePolicy,
    params: Any,
    timesteps: TimeStep,
    actions: Any,
    x_TD: Float[Array, "T D"],
    y_CTD: Float[Array, "C T D"],
    number_C: Array,
) -> tuple[Float[Array, "C T P"], Float[Array, "T C G M"] | None]:
    """Return the scores of copies of an episode, each with another encoding of one observation.

    Returns:
      The scores; and how much the vectors of memories at each step differ from the first copy's.
    """
    model: Any = policy.model
    has_vectors = hasattr(model, "memory_vectors") and not getattr(model, "slides", False)

    def step(state: Any, now: Any) -> Any:
        number, timestep, action, x_D, y_CD = now
        x_CD = jnp.where((number_C == number)[:, None], y_CD, x_D[None])
        timestep, action = _copies(len(number_C), (timestep, action))
        with _encodings(policy.model, params, timestep.observation, x_CD):
            state, distribution = policy.decode(params, state, timestep)
        memory = None
        if has_vectors:
            vectors = model.apply({"params": params}, state.model, method="memory_vectors")
            memory = difference(vectors, vectors[:1])
        return policy.observe(params, state, action), (_scores(distribution, action), memory)

    numbers_T = jnp.arange(len(x_TD), dtype=number_C.dtype)
    state = policy.init(params, len(number_C))
    inputs = numbers_T, timesteps, actions, x_TD, y_CTD.swapaxes(0, 1)
    _, (scores_TCP, memory) = jax.lax.scan(step, state, inputs)
    return scores_TCP.swapaxes(0, 1), memory


def _copies(number: int, tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (number, *x.shape)), tree)


def _encodings(network: nn.Module, params: Any, seen: Any, encodings: Array) -> Any:
    """Return a context in which a network's encoder returns the given encodings of what is seen."""
    encoders: list[tuple[str, ...]] = []

    def is_call(context: Any) -> bool:
        return context.module.scope is not None and context.method_name == "__call__"

    def find(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if is_call(context):
            encoders.append(context.module.path)
        return call(*args, **kwargs)

    with nn.intercept_methods(find):
        # The first module that `encode` calls is the encoder.
        jax.eval_shape(functools.partial(_encode, network), params, seen)

    def replace(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        is_encoder = is_call(context) and context.module.path == encoders[0]
        return encodings if is_encoder else call(*args, **kwargs)

    return nn.intercept_methods(replace)


def _scores(output: Any, actions: Any) -> Float[Array, "... P"]:
    """Return the scores of the chosen actions, see `influence`."""
    if isinstance(output, jax.Array):
        return _lead(output, actions, jnp.max)
    policy = getattr(output, "policy", output)
    if isinstance(policy, Categorical):
        return _lead(policy.logits, actions, jax.nn.logsumexp)
    if isinstance(policy, SquashedGaussian):
        policy = policy.base
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
