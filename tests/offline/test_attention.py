"""RATE's attention over episodes, by steps, against the weights that its layers compute."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gtrxl_jax.acting.evaluation import record_episode
from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.nn.sequence.registry import make_model, model_config
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import action_spec
from tests.nn.cores import random_values

pytestmark = pytest.mark.integration

CONTEXT = 4


def recorded(name, **settings):
    """Return a policy with an untrained model, its parameters, and an episode of 11 steps."""
    stream = Stream(*make_env("TMazePassive-v0", corridor_length=9, max_steps_in_episode=10), 1)
    config = dataclasses.replace(model_config(name, "debug", layers=2), **settings)
    model = make_model(config, stream.observation_space, stream.action_space, CONTEXT)
    policy = SequencePolicy(model, action_spec(stream.action_space), 1.0, "sample")

    def everything(model):
        state = model.start(1)
        state, _ = model.decode(state, jnp.zeros(1), jnp.zeros((1, 4)), jnp.ones(1, bool))
        return model.observe_action(state, jnp.zeros(1, jnp.int32))

    shapes = jax.eval_shape(nn.init(everything, model), jax.random.key(0))
    params = random_values(shapes["params"])  # attention is far from uniform
    episode = record_episode(policy, stream, params, jax.random.key(3))
    assert len(episode.timesteps.first) == 11
    return policy, params, episode


def test_sliding_window_attends_to_steps_alone():
    policy, params, episode = recorded("dt")
    weights = episode.attention
    assert weights.shape == (2, 2, 11, CONTEXT)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    for step in range(CONTEXT):
        np.testing.assert_array_equal(weights[:, :, step, : CONTEXT - 1 - step], 0)
    # The window of the last step, alone.
    window = window_of(episode, 11 - CONTEXT, 11)
    variables = {"params": params}
    memory = policy.model.apply(variables, 1, method="initial_memory")
    _, sown = apply_with_weights(policy.model, variables, memory, window)
    (first_layer,) = sown["attention"]["blocks_0"]["attention"]["weights"]
    of_last_step = first_layer[0, :, 3 * (CONTEXT - 1) + 1].reshape(2, CONTEXT, 3).sum(axis=-1)
    np.testing.assert_allclose(weights[0, :, -1], of_last_step, rtol=1e-4, atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def apply_with_weights(model, variables, memory, segment):
    return model.apply(variables, memory, segment, mutable="attention")


def window_of(episode, begin, end):
    """Return the steps of an episode as a segment; the episode's last has no action."""
    steps = jax.tree.map(lambda x: x[begin:end], episode.timesteps)
    reward = np.cumsum(episode.timesteps.reward)[begin:end]
    action = np.append(episode.timesteps.action, 0)[begin + 1 : end + 1]
    return Segments(
        observations=jnp.asarray(steps.observation)[None],
        actions=jnp.asarray(action, jnp.int32)[None],
        returns_to_go=jnp.asarray(1.0 - reward, jnp.float32)[None],
        timesteps=jnp.arange(begin, end, dtype=jnp.int32)[None],
        mask=jnp.ones((1, end - begin), bool),
    )


@pytest.mark.parametrize("cache_size", [0, 5])
def test_rest_of_attention_is_on_memory(cache_size):
    policy, params, episode = recorded("rate", cache_size=cache_size)
    weights, tokens = episode.attention, policy.model.memory_tokens
    assert weights.shape == (2, 2, 11, CONTEXT)
    variables = {"params": params}
    memory = policy.model.apply(variables, 1, method="initial_memory")
    for begin in (0, 4):
        segment = window_of(episode, begin, begin + 4)
        (memory, _), sown = apply_with_weights(policy.model, variables, memory, segment)
        (first_layer,) = sown["attention"]["blocks_0"]["attention"]["weights"]
        rows = first_layer[0, :, tokens + 1 : tokens + 12 : 3]
        on_memory = rows[..., : cache_size + tokens].sum(axis=-1)
        assert on_memory.max() > 0.01
        on_steps = weights[0, :, begin : begin + 4].sum(axis=-1)
        np.testing.assert_allclose(on_steps + on_memory, 1, rtol=1e-4)


def test_models_without_attention():
    _, _, episode = recorded("bc-lstm")
    assert episode.attention is None
