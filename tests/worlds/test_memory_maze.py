"""Memory Maze: its border, rewards, motion and oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.worlds.memory_maze import FORWARD, NOOP, RIGHT, MemoryMaze
from gtrxl_jax.worlds.raycast import FirstPerson

B = 32


@pytest.fixture(scope="module")
def maze():
    """Return the environment, its parameters, and jitted reset and step of B environments."""
    env, params = make_env("MemoryMaze-9x9-v0", height=16, width=16)
    key_B = jax.random.split(jax.random.key(0), B)
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    return (
        env,
        params,
        lambda: reset(key_B, params),
        lambda state_B, action_B: step(key_B, state_B, action_B, params),
    )


def test_border_has_color_of_target(maze):
    _, _, reset, _ = maze
    image_B, state_B = jax.device_get(reset())
    border = np.ones((16, 16), bool)
    border[1:-1, 1:-1] = False
    colors = {}
    for image, target in zip(image_B, state_B.target, strict=True):
        (color,) = {tuple(pixel) for pixel in image[border].tolist()}
        assert colors.setdefault(int(target), color) == color
        assert (image[1:-1, 1:-1] != image[0, 0]).any(-1).mean() > 0.5
    assert len(set(colors.values())) == 3


def test_border_of_narrow_image_leaves_the_view(maze, monkeypatch):
    _, params, reset, _ = maze
    state = jax.tree.map(lambda x: x[0], reset()[1])
    monkeypatch.setattr(FirstPerson, "observe", lambda *_: jnp.zeros((256, 8, 3), jnp.uint8))
    image = MemoryMaze(height=256, width=8).observe(jax.random.key(0), state, None, params)
    is_view = ~np.asarray(image).any(axis=-1)
    assert is_view[1:-1, 1:-1].all()
    assert is_view.sum() == 254 * 6


def test_touching_only_right_target_is_rewarded(maze):
    _, _, reset, step = maze
    _, state_B = reset()
    at_B, noop_B = jnp.arange(B) % 3, jnp.full(B, NOOP)
    state_B = state_B.replace(position_2=state_B.target_N2[jnp.arange(B), at_B] + 0.2)
    _, next_B, reward_B, terminated_B, info = step(state_B, noop_B)
    right_B = np.asarray(at_B == state_B.target)
    np.testing.assert_array_equal(reward_B, right_B)
    np.testing.assert_array_equal(info["found"], right_B)
    np.testing.assert_array_equal(next_B.target != state_B.target, right_B)
    assert len({*zip(at_B[right_B].tolist(), next_B.target[right_B].tolist(), strict=True)}) > 3
    np.testing.assert_array_equal(next_B.target_N2, state_B.target_N2)
    assert not terminated_B.any()
    # The agent is still there, but another target is wanted.
    _, _, reward_B, _, _ = step(next_B, noop_B)
    np.testing.assert_array_equal(reward_B[right_B], 0)


def test_motion_matches_original(maze):
    """The numbers are those of memory-maze 1.0.3, from a start at rest."""
    _, _, reset, step = maze
    _, state_B = reset()
    state_B = state_B.replace(
        wall_SS=jnp.ones_like(state_B.wall_SS).at[:, 5, 1:-1].set(0),
        position_2=jnp.tile(jnp.array([1.5, 5.5]), (B, 1)),
        heading=jnp.zeros(B),
    )
    forward, turned = [state_B], [state_B]
    for _ in range(4):
        forward.append(step(forward[-1], jnp.full(B, FORWARD))[1])
        turned.append(step(turned[-1], jnp.full(B, RIGHT))[1])
    x = np.array([state.position_2[0, 0] for state in forward])
    np.testing.assert_allclose(np.diff(x), [0.111, 0.219, 0.248, 0.2495], atol=0.01)
    heading = np.array([state.heading[0] for state in turned])
    np.testing.assert_allclose(np.diff(heading), [0.247, 0.320, 0.321, 0.321], atol=0.01)


def test_params_do_not_recompile(maze):
    env, params, reset, _ = maze
    traces = []

    @jax.jit
    def motion(state, params):
        traces.append(None)
        key = jax.random.key(0)
        return env.step_env(key, state, FORWARD, params)[1].position_2 - state.position_2

    state = jax.tree.map(lambda x: x[0], reset()[1])
    slow, fast = (
        np.linalg.norm(motion(state, params.replace(move_speed=speed))) for speed in (0.1, 0.2)
    )
    np.testing.assert_allclose(fast, 2 * slow, rtol=1e-3)
    motion(state, params.replace(extra_gaps=0.9, field_of_view=60.0, touch_distance=1.0))
    assert len(traces) == 1


@pytest.mark.slow
def test_oracle_finds_targets():
    env, params = make_env("MemoryMaze-9x9-v0", height=8, width=8, max_steps_in_episode=150)
    stream = Stream(env, params, num_envs=4)

    def step(carry, _):
        state, _ = carry
        action = jax.vmap(lambda s: env.oracle_action(s, params))(state.env)
        state, timestep = stream.step(state, action)
        column_B, row_B = jnp.floor(state.env.position_2).astype(jnp.int32).T
        in_wall_B = state.env.wall_SS[jnp.arange(4), row_B, column_B] > 0
        return (state, timestep), (timestep.last, state.episode.episode_return, in_wall_B)

    run = jax.jit(lambda key: jax.lax.scan(step, stream.reset(key), None, 150)[1])
    last_TB, return_TB, in_wall_TB = jax.device_get(run(jax.random.key(0)))
    assert last_TB[-1].all()
    assert not last_TB[:-1].any()
    assert return_TB[-1].min() >= 1
    assert return_TB[-1].mean() >= 2.5
    assert not in_wall_TB.any()


def test_render_shows_view_and_maze(maze):
    env, params, reset, _ = maze
    _, state_B = reset()
    image, other = (env.render(jax.tree.map(lambda x, b=b: x[b], state_B), params) for b in (0, 1))
    assert image.shape == other.shape == (256, 256 + 8 + 253, 3)
    assert image.dtype == np.uint8
    assert (image[:, :256] != other[:, :256]).any()
    assert (image[:, 264:] != other[:, 264:]).any()
