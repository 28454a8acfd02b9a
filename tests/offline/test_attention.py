"""What RATE and ELMUR attend to and hold in an episode, against what they compute when acting."""

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
from tests.tiers import slow_except

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


@pytest.mark.slow
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
    assert policy.memory(params, episode.timesteps) is None


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


@pytest.mark.parametrize("cache_size", slow_except([0, 5], [5]))
def test_attention_to_cached_steps_and_memory_tokens(cache_size):
    policy, params, episode = recorded("rate", cache_size=cache_size)
    memory = policy.memory(params, episode.timesteps)
    weights, reads = episode.attention, memory.reads
    assert memory.cached_steps == (2 if cache_size else 0)
    tokens, first = policy.model.memory_tokens, cache_size + policy.model.memory_tokens
    window = CONTEXT + (2 if cache_size else 0)  # five tokens are of the last two steps
    assert (weights.shape, reads.shape) == ((2, 2, 11, window), (2, 2, 11, tokens))
    np.testing.assert_allclose(weights.sum(axis=-1) + reads.sum(axis=-1), 1, rtol=1e-4)
    variables = {"params": params}
    memory = policy.model.apply(variables, 1, method="initial_memory")
    for begin in (0, 4):
        segment = window_of(episode, begin, begin + 4)
        (memory, _), sown = apply_with_weights(policy.model, variables, memory, segment)
        (first_layer,) = sown["attention"]["blocks_0"]["attention"]["weights"]
        on_cache, on_tokens, on_steps = np.split(first_layer[0], [cache_size, first], axis=-1)
        for step in range(begin, begin + 4):
            row = tokens + 3 * (step - begin) + 1
            np.testing.assert_allclose(reads[0, :, step], on_tokens[:, row], rtol=1e-4, atol=1e-6)
            for ago in range(min(window, step + 1)):
                place = 3 * (step - ago - begin)
                stream, place = (on_steps, place) if place >= 0 else (on_cache, cache_size + place)
                expected = stream[:, row, max(place, 0) : max(place + 3, 0)].sum(axis=-1)
                found = weights[0, :, step, window - 1 - ago]
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert reads.max() > 0.01
    assert (weights[:, :, 4, :-1].max() > 0.01) == bool(cache_size)


def acting_memories(policy, params, episode):
    """Return the states of acting at the first step of each segment, with the actions taken."""
    state, states = policy.init(params, 1), []
    decode, observe = jax.jit(policy.decode), jax.jit(policy.observe)
    for step in range(10):
        timestep = jax.tree.map(lambda x, at=step: jnp.asarray(x)[at : at + 1], episode.timesteps)
        state, _ = decode(params, state, timestep)
        if step % CONTEXT == 0:
            states.append(state.model)
        state = observe(params, state, jnp.asarray(episode.timesteps.action[step + 1 : step + 2]))
    return states


def test_memory_tokens_of_each_segment():
    policy, params, episode = recorded("rate", layers=1, valve="ca-1")
    memory = policy.memory(params, episode.timesteps)
    states = acting_memories(policy, params, episode)
    tokens = np.stack([state.tokens.tokens for state in states])
    np.testing.assert_allclose(memory.vectors, tokens, rtol=1e-3, atol=1e-4)
    assert memory.vectors.shape == (3, 1, 2, 16)
    assert (memory.context, memory.cached_steps) == (CONTEXT, 0)
    assert memory.written is None

    old, new = memory.vectors[1:, 0], memory.vectors[:-1, 0]
    size = np.linalg.norm(old, axis=-1) + np.linalg.norm(new, axis=-1)
    expected = np.linalg.norm(new - old, axis=-1) / size
    np.testing.assert_allclose(memory.change[1:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(memory.change[0], 0)

    # The weights of the valve mix the values of the old tokens into the new ones.
    p = jax.tree.map(np.asarray, params["valve"])
    values = np.split(new @ p["key_value"]["kernel"], 2, axis=-1)[1].reshape(2, 2, 2, 8)
    mixed = np.einsum("nhmk,nkhd->nmhd", memory.valve, values).reshape(2, 2, 16)
    np.testing.assert_allclose(mixed @ p["output"]["kernel"], old, rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # test_memory_tokens_of_each_segment is quick
def test_slots_of_each_segment():
    policy, params, episode = recorded("elmur")
    memory = policy.memory(params, episode.timesteps)
    states = acting_memories(policy, params, episode)
    vectors = np.stack([[layer.vectors[0] for layer in state.memory.layers] for state in states])
    np.testing.assert_allclose(memory.vectors, vectors, rtol=1e-3, atol=1e-4)
    anchors = [[layer.anchors[0] for layer in state.memory.layers] for state in states]
    for layer in (0, 1):
        np.testing.assert_array_equal(memory.written, np.stack(anchors)[:, layer])
    np.testing.assert_array_equal(memory.written, [[-1, -1], [3, -1], [3, 7]])
    metrics = policy.model.memory_metrics(states[0].memory, states[1].memory)
    assert metrics["memory/size"] == pytest.approx(np.sqrt(np.mean(vectors[1] ** 2)))
    change = np.sqrt(np.mean((vectors[1] - vectors[0]) ** 2))
    assert metrics["memory/change"] == pytest.approx(change)

    # The slot that is written changes, the other does not.
    np.testing.assert_array_equal(memory.change[1:].argmax(axis=-1), [[0, 0], [1, 1]])
    assert np.count_nonzero(memory.change) == 4

    for weights in (episode.attention, memory.reads):
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert (episode.attention.shape, memory.reads.shape) == ((2, 2, 11, CONTEXT), (2, 2, 11, 2))
    (last,) = {state.memory.steps.item() for state in states[2:]}
    segment = window_of(episode, last, 11)
    pad = [(0, 0), (0, CONTEXT - (11 - last))]
    segment = jax.tree.map(lambda x: np.pad(x, pad + [(0, 0)] * (x.ndim - 2)), segment)
    _, sown = apply_with_weights(policy.model, {"params": params}, states[2].memory, segment)
    for layer in (0, 1):
        of_layer = sown["attention"][f"blocks_{layer}"]
        read, own = (of_layer[name]["weights"][0][0] for name in ("read", "attention"))
        np.testing.assert_allclose(memory.reads[layer, :, -1], read[:, 3 * 2 + 1], rtol=1e-3)
        on_steps = own[:, 3 * 2 + 1].reshape(2, CONTEXT, 3).sum(axis=-1)[:, :3]
        np.testing.assert_allclose(episode.attention[layer, :, -1, 1:], on_steps, rtol=1e-3)


def test_models_without_attention():
    policy, params, episode = recorded("bc-lstm")
    assert episode.attention is None
    assert policy.memory(params, episode.timesteps) is None
