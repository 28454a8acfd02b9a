"""The memory chain matches gymnax's, at any length."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.ops.promotion import standard_dtype_promotion


@pytest.mark.parametrize(
    ("name", "bits"), [("MemoryChain-bsuite", 1), ("MemoryChain-v0", 1), ("MemoryChain-v0", 3)]
)
def test_stream_matches_gymnax(name, bits):
    stream = Stream(*make_env(name, memory_length=4, num_bits=bits), num_envs=5)
    theirs, their_params = gymnax.make("MemoryChain-bsuite", num_bits=bits)
    their_params = their_params.replace(memory_length=4)
    with standard_dtype_promotion():  # gymnax does not support strict promotion
        their_step = jax.jit(
            jax.vmap(
                lambda state, action: theirs.step(jax.random.key(0), state, action, their_params)
            )
        )
        step = jax.jit(stream.step)
        state, timestep = jax.jit(stream.reset)(jax.random.key(0))
        their_state = state.env
        actions = jax.random.randint(jax.random.key(1), (30, 5), 0, 2)
        for action in actions:
            if timestep.last.all():
                # gymnax's step resets with another key, so continue from the stream's new episode.
                state, timestep = step(state, action)
                their_state = state.env
                assert timestep.first.all()
                continue
            _, their_state, reward, terminated, truncated, info = their_step(their_state, action)
            state, timestep = step(state, action)
            np.testing.assert_array_equal(timestep.reward, reward)
            np.testing.assert_array_equal(timestep.last, terminated | truncated)
            np.testing.assert_array_equal(timestep.discount, 1 - terminated)
            np.testing.assert_array_equal(timestep.observation, info["final_observation"])


@pytest.mark.parametrize(("bits", "expected"), [(1, 1.0), (3, 0.75)])
def test_previous_action_keeps_a_bit(bits, expected):
    """Without memory: the action is what most bits of the context are, and later the last one."""
    env, params = make_env("MemoryChain-v0", memory_length=6, num_bits=bits)
    stream = Stream(env, params, 2048)

    def step(carry, _):
        state, timestep = carry
        context = jnp.sum(timestep.observation[:, 2:], axis=-1)
        action = jnp.where(context == 0, timestep.action, (context > 0).astype(jnp.int32))
        after = stream.step(state, action)
        return after, after[0].episode.success

    @jax.jit
    def run(key):
        return jax.lax.scan(step, stream.reset(key), length=7)[1][-1]

    assert abs(float(run(jax.random.key(0)).mean()) - expected) < 0.04


def test_space_contains_negative_context():
    env, params = make_env("MemoryChain-v0", num_bits=2)
    observations = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)[0]))(
        jax.random.split(jax.random.key(0), 16)
    )
    assert observations.min() == -1
    assert jax.vmap(env.observation_space(params).contains)(observations).all()


def test_long_chain_ends_with_reward():
    env, params = make_env("MemoryChain-v0", memory_length=1500)
    assert time_limit(env, params) == 1501
    stream = Stream(env, params, num_envs=4)

    def step(state, _):
        state, timestep = stream.step(state, state.env.context[:, 0])
        return state, (timestep.last, timestep.discount, timestep.reward, state.episode.success)

    run = jax.jit(lambda key: jax.lax.scan(step, stream.reset(key)[0], None, 1501)[1])
    last, discount, reward, success = run(jax.random.key(0))
    assert not last[:-1].any()
    assert last[-1].all()
    np.testing.assert_array_equal(discount[-1], 0)
    np.testing.assert_array_equal(reward[-1], 1)
    assert success[-1].all()


def test_explicit_time_limit_truncates():
    stream = Stream(*make_env("MemoryChain-v0", max_steps_in_episode=3), num_envs=2)
    state, _ = jax.jit(stream.reset)(jax.random.key(0))
    step = jax.jit(stream.step)
    for _ in range(3):
        state, timestep = step(state, jnp.zeros(2, jnp.int32))
    assert timestep.last.all()
    np.testing.assert_array_equal(timestep.discount, 1)


@pytest.mark.parametrize("bits", [1, 40])
def test_render_size_and_progress(bits):
    env, params = make_env("MemoryChain-v0", num_bits=bits)
    _, state = env.reset(jax.random.key(0), params)
    image = env.render(state, params)
    assert image.dtype == np.uint8
    assert max(image.shape) <= 512
    later = env.render(state.replace(time=jnp.asarray(4)), params)
    assert (image != later).any()
