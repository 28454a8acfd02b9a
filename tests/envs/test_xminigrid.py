"""The MiniGrid-Memory adapter matches xminigrid, and the task can be solved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.envs.promotion import standard_dtype_promotion

xminigrid = pytest.importorskip("xminigrid")
FORWARD, RIGHT, LEFT = range(3)


def test_steps_match_xminigrid():
    env, params = make_env("MiniGrid-MemoryS8", view_size=5)
    theirs, their_params = xminigrid.make("MiniGrid-MemoryS8", view_size=5)
    key = jax.random.key(3)
    tiles = np.array([0, 1, 2, 3, 7])
    with standard_dtype_promotion():
        timestep = jax.jit(lambda key: theirs.reset(their_params, key))(key)
        their_step = jax.jit(lambda timestep, action: theirs.step(their_params, timestep, action))
        observation, state = env.reset(key, params)
        step = jax.jit(lambda state, action: env.step_env(key, state, action, params))
        for action in np.random.default_rng(0).integers(3, size=30):
            view = tiles[np.asarray(observation).reshape(5, 5, 5).argmax(-1)]
            np.testing.assert_array_equal(view, timestep.observation[..., 0])
            np.testing.assert_array_equal(np.asarray(observation).reshape(25, 5).sum(-1), 1)
            timestep = their_step(timestep, action)
            observation, state, reward, terminated, _ = step(state, jnp.asarray(action))
            assert reward == timestep.reward
            assert terminated == (timestep.discount == 0)


def test_only_matching_object_is_success():
    env, params = make_env("MiniGrid-Memory", width=9)
    stream = Stream(env, params, num_envs=8)

    def act(state, rightly):
        inner = state.env.timestep.state
        end = jnp.where(rightly, inner.carry.success_pos, inner.carry.failure_pos)
        at_end_B = inner.agent.position[:, 1] == end[:, 1]
        upwards_B = end[:, 0] < inner.agent.position[:, 0]
        faces_side_B = inner.agent.direction != 1
        turn_B = jnp.where(upwards_B, LEFT, RIGHT)
        return jnp.where(at_end_B & ~faces_side_B, turn_B, FORWARD)

    def step(carry, _):
        state, rightly = carry
        state, timestep = stream.step(state, act(state, rightly))
        return (state, rightly), (timestep, state.episode)

    @jax.jit
    def run(key, rightly):
        return jax.lax.scan(step, (stream.reset(key)[0], rightly), None, 10)[1]

    for rightly in (True, False):
        timestep, episode = jax.device_get(run(jax.random.key(0), rightly))
        assert timestep.last.any(0).all()
        np.testing.assert_array_equal(timestep.discount[timestep.last], 0)
        np.testing.assert_array_equal(episode.success[timestep.last], rightly)
        assert ((timestep.reward[timestep.last] > 0.9) == rightly).all()


def test_time_limit_truncates():
    stream = Stream(*make_env("MiniGrid-MemoryS8", max_steps_in_episode=5), num_envs=2)

    @jax.jit
    def run(key):
        state, _ = stream.reset(key)
        return jax.lax.scan(lambda s, _: stream.step(s, jnp.full(2, LEFT)), state, None, 6)[1]

    timestep = jax.device_get(run(jax.random.key(0)))
    np.testing.assert_array_equal(timestep.last.all(1), [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(timestep.discount, 1)
    assert timestep.first[5].all()


def test_render_size_of_widest_grid():
    env, params = make_env("MiniGrid-MemoryS128")
    _, state = env.reset(jax.random.key(0), params)
    image = env.render(state, params)
    assert image.dtype == np.uint8
    assert max(image.shape) <= 1024
