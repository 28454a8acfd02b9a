"""The apple maze: its layout, hybrid actions, teleports and oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.specs import action_spec

B = 16


@pytest.fixture(scope="module")
def room():
    """Return the environment, its parameters, B states, and a jitted step."""
    env, params = make_env("AppleMaze-v0", height=12, width=16)
    key_B = jax.random.split(jax.random.key(0), B)
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    _, state_B = jax.jit(jax.vmap(env.reset_env, (0, None)))(key_B, params)
    return env, params, state_B, lambda *x: step(key_B, *x, params)


def actions(grip=0, **continuous):
    names = ("look", "nod", "strafe", "forward", "right", "up", "ahead", "push")
    values = [continuous.get(name, 0.0) for name in names]
    return {"continuous": jnp.tile(jnp.array(values), (B, 1)), "discrete": jnp.full(B, grip)}


def test_open_cells_are_connected(room):
    env, params, _, _ = room
    draw = jax.jit(jax.vmap(env._blocks, (0, None)))
    wall_NSS = np.asarray(draw(jax.random.split(jax.random.key(1), 300), params))
    assert all(scipy.ndimage.label(wall_SS == 0)[1] == 1 for wall_SS in wall_NSS)
    assert not wall_NSS[:, 1::2, 1::2].any()
    assert 0.2 < (wall_NSS[:, 1:-1, 1:-1] > 0).mean() < 0.4


def test_action_is_repeated_in_open_space(room):
    _, params, state_B, step = room
    state_B = state_B.replace(
        wall_SS=jnp.ones_like(state_B.wall_SS).at[:, 1:-1, 1:-1].set(0),
        position_2=jnp.full((B, 2), 5.5),
        heading=jnp.zeros(B),
        apple_2=jnp.full((B, 2), 1.5),
    )
    _, next_B, *_ = step(state_B, actions(forward=1.0, strafe=-0.5))
    np.testing.assert_allclose(
        next_B.position_2 - state_B.position_2, [[0.32, -0.16]] * B, rtol=1e-4
    )
    _, next_B, *_ = step(state_B, actions(look=-0.5, nod=1.0))
    np.testing.assert_allclose(next_B.heading, -np.deg2rad(10), rtol=1e-4)
    np.testing.assert_allclose(next_B.pitch, -np.deg2rad(20), rtol=1e-4)
    image_B, hand_B, *_ = step(state_B, actions(right=1.0, up=1.0, ahead=1.0, push=10.0, grip=1))
    still_B, idle_B, *_ = step(state_B, actions())
    np.testing.assert_array_equal(image_B, still_B)
    jax.tree.map(np.testing.assert_array_equal, hand_B, idle_B)


def test_apple_rewards_and_teleports(room):
    _, _, state_B, step = room
    at_B = jnp.arange(B) % 2 == 0
    near_B2 = state_B.apple_2 + 0.1
    state_B = state_B.replace(position_2=jnp.where(at_B[:, None], near_B2, state_B.position_2))
    _, next_B, reward_B, terminated_B, info = step(state_B, actions())
    np.testing.assert_array_equal(reward_B, at_B)
    np.testing.assert_array_equal(info["found"], at_B)
    np.testing.assert_array_equal(next_B.apple_2, state_B.apple_2)
    apart_B = np.linalg.norm(next_B.position_2 - state_B.apple_2, axis=1)
    assert (apart_B >= 2).all()
    assert len({tuple(p) for p in np.asarray(next_B.position_2)[at_B].tolist()}) > 3
    assert not terminated_B.any()


@pytest.mark.slow
def test_oracle_collects_apples_in_stream():
    env, params = make_env("AppleMaze-v0", height=8, width=8, max_steps_in_episode=100)
    stream = Stream(env, params, num_envs=4)
    spec = action_spec(stream.action_space)
    assert (spec.num_continuous, spec.discrete) == (8, (2,))
    assert spec.continuous[-1] == (-10, 10)
    assert env.num_actions == spec.num_features

    def step(carry, _):
        state, _ = carry
        action = jax.vmap(lambda s: env.oracle_action(s, params))(state.env)
        state, timestep = stream.step(state, action)
        return (state, timestep), (timestep.last, state.episode.episode_return)

    run = jax.jit(lambda key: jax.lax.scan(step, stream.reset(key), None, 100)[1])
    last_TB, return_TB = jax.device_get(run(jax.random.key(0)))
    np.testing.assert_array_equal(last_TB.all(1), np.arange(1, 101) == 100)
    assert return_TB[-1].mean() >= 1.5


def test_landmarks_overtop_walls(room):
    env, params, state_B, _ = room
    state = jax.tree.map(lambda x: x[0], state_B)
    image = env.render(state.replace(position_2=jnp.array([1.5, 5.5]), heading=0.0), params)
    assert image.dtype == np.uint8
    overhead = image[:, -253:]
    colors = {tuple(c) for c in overhead.reshape(-1, 3).tolist()}
    assert {(230, 60, 60), (245, 245, 245), (250, 140, 40)} <= colors
