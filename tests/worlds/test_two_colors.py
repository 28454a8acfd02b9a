"""Two-Colors: health, rewards, the pillar and the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import make_env
from gtrxl_jax.worlds.two_colors import FORWARD, LEFT, RIGHT, TwoColors

B = 16


@pytest.fixture(scope="module")
def room():
    """Return the environment, its parameters, jitted reset and step, and B states."""
    return of_size(10)


def of_size(size):
    env, params = make_env("TwoColors-v0", size=size, items=4, height=16, width=28)
    key_B = jax.random.split(jax.random.key(0), B)
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    return env, params, reset(key_B, params), lambda *x, params=params: step(key_B, *x, params)


def test_items_change_health_and_reward(room):
    _, params, (_, state_B), step = room
    # Each agent stands on one red or green item, and the others are far away.
    index_B, far_N2 = jnp.arange(B) % 8, jnp.full((8, 2), 1.5)
    place_2 = jnp.array([6.0, 9.0])
    state_B = state_B.replace(
        position_2=jnp.tile(place_2, (B, 1)),
        item_N2=jax.vmap(lambda n: far_N2.at[n].set(place_2))(index_B),
        health=jnp.full(B, 50.0),
        color=jnp.arange(B) // 8,
    )
    _, next_B, reward_B, dead_B, _ = step(state_B, jnp.full(B, LEFT))
    right_B = np.array(index_B >= 4) == np.array(state_B.color)
    np.testing.assert_allclose(reward_B, np.where(right_B, 1.02, 0.02), rtol=1e-5)
    expected_B = 50 - 10 / 32 + np.where(right_B, 25, -25)
    np.testing.assert_allclose(next_B.health, expected_B, rtol=1e-5)
    assert not dead_B.any()
    moved_BN = (next_B.item_N2 != state_B.item_N2).any(-1)
    np.testing.assert_array_equal(moved_BN, np.arange(8) == np.array(index_B)[:, None])
    assert ((next_B.item_N2 > 1) & (next_B.item_N2 < 11)).all()


def test_acid_kills_without_reward(room):
    _, params, (_, state_B), step = room
    state_B = state_B.replace(
        health=jnp.linspace(0.1, 0.6, B), item_N2=jnp.full_like(state_B.item_N2, 1.5)
    )
    _, next_B, reward_B, dead_B, _ = step(state_B, jnp.full(B, LEFT))
    np.testing.assert_array_equal(dead_B, state_B.health <= 10 / 32)
    np.testing.assert_allclose(reward_B, np.where(dead_B, 0, 0.02), rtol=1e-5)
    assert (np.asarray(next_B.health) >= 0).all()


def test_pillar_is_seen_until_it_disappears(room):
    env, params, (image_B, state_B), _ = room
    assert set(state_B.color.tolist()) == {0, 1}
    # The pillar is in the middle of the first image, in its color.
    middle_B3 = np.asarray(image_B)[:, 8, 13:15].astype(int).max(axis=1)
    np.testing.assert_array_equal(middle_B3[:, 1] > middle_B3[:, 0], state_B.color == 1)
    state_B = state_B.replace(item_N2=jnp.full_like(state_B.item_N2, 1.5))
    draw = jax.jit(jax.vmap(env.observe, (None, 0, None, None)))
    last, gone = (
        draw(jax.random.key(0), state_B.replace(time=jnp.full(B, time)), None, params)
        for time in (44, 45)
    )
    shows_B = [env.shows_cue(state_B.replace(time=jnp.full(B, t)), params) for t in (44, 45)]
    assert shows_B[0].all()
    assert not shows_B[1].any()
    assert (np.asarray(last) != np.asarray(gone)).any(axis=(1, 2, 3)).all()
    # Without the pillar nothing tells the color.
    assert len({image.tobytes() for image in np.asarray(gone)}) == 1


def test_room_is_empty_after_the_pillar(room):
    env, params, (_, state_B), step = room
    params = params.replace(pillar_steps=10, empty_steps=5)
    # Each agent stands on an item, looks at another, and takes the first only while there are any.
    place_2 = jnp.array([6.0, 9.0])
    item_N2 = jnp.tile(jnp.array([7.0, 9.0]), (8, 1)).at[0].set(place_2)
    state_B = state_B.replace(
        position_2=jnp.tile(place_2, (B, 1)),
        heading=jnp.zeros(B),
        item_N2=jnp.tile(item_N2, (B, 1, 1)),
        time=jnp.arange(B),
        color=jnp.zeros(B, jnp.int32),
    )
    draw = jax.jit(jax.vmap(env.observe, (None, 0, None, None)))
    image_B = draw(jax.random.key(0), state_B, None, params)
    has_items_B = ~np.isin(np.arange(B), range(10, 15))
    *_, info = step(state_B, jnp.full(B, LEFT), params=params)
    np.testing.assert_array_equal(info["right"] > 0, has_items_B)
    is_bare_B = [image.tobytes() == np.asarray(image_B[10]).tobytes() for image in image_B]
    np.testing.assert_array_equal(is_bare_B, ~has_items_B)
    # The oracle waits, turning.
    action_B = jax.jit(jax.vmap(env.oracle_action, (0, None)))(state_B, params)
    assert (np.asarray(action_B)[~has_items_B] == RIGHT).all()
    assert (np.asarray(action_B)[has_items_B] != RIGHT).all()


def test_oracle_outlives_idle_agent(room):
    env, params, (_, state_B), step = room
    oracle = jax.jit(jax.vmap(env.oracle_action, (0, None)))

    def play(choose):
        state_B_ = state_B
        for _ in range(100):
            _, state_B_, _, _, info = step(state_B_, choose(state_B_))
        return state_B_.health.mean(), info["right"].sum(), info["wrong"].sum()

    health, right, wrong = play(lambda s: oracle(s, params))
    assert right > 2 * B
    assert wrong < right / 10
    assert health > 80
    idle, *_ = play(lambda s: jnp.full(B, LEFT))
    assert idle < 70


def test_oracle_ignores_what_is_behind_the_agent(room):
    """Otherwise, a model cannot learn to imitate it."""
    env, params, (_, state_B), _ = room
    oracle = jax.jit(jax.vmap(env.oracle_action, (0, None)))
    state_B = state_B.replace(position_2=jnp.full((B, 2), 6.0))
    is_behind_BN = state_B.item_N2[..., :1] < 6
    near_2 = jnp.array([5.5, 6.1])
    moved_BN2 = jnp.where(is_behind_BN, near_2[None, None], state_B.item_N2)
    assert (moved_BN2 != state_B.item_N2).any()
    actions = [oracle(state_B.replace(item_N2=x), params) for x in (state_B.item_N2, moved_BN2)]
    np.testing.assert_array_equal(*actions)
    alone_B = oracle(
        state_B.replace(item_N2=jnp.zeros_like(moved_BN2) + near_2[None, None]), params
    )
    np.testing.assert_array_equal(alone_B, RIGHT)


def test_agent_walks_forward_up_to_wall(room):
    _, _, (_, state_B), step = room
    state_B = state_B.replace(heading=jnp.full(B, np.pi), position_2=jnp.full((B, 2), 2.0))
    for _ in range(8):
        _, state_B, *_ = step(state_B, jnp.full(B, FORWARD))
    np.testing.assert_allclose(state_B.position_2, [[1.125, 2.0]] * B, atol=1e-5)


def test_smaller_room():
    env, params, (_, state_B), step = of_size(4)
    np.testing.assert_array_equal(state_B.position_2, [[2.0, 3.0]] * B)
    assert ((state_B.item_N2 > 1) & (state_B.item_N2 < 5)).all()
    assert (np.asarray(state_B.item_N2) > 4).any()
    for _ in range(30):
        _, state_B, *_ = step(state_B, jnp.full(B, FORWARD))
    np.testing.assert_allclose(state_B.position_2, [[5 - 0.125, 3.0]] * B, atol=1e-5)


def test_too_small_room_raises():
    with pytest.raises(ValueError, match="size must be from 3 to 30, got 2"):
        make_env("TwoColors-v0", size=2)
    with pytest.raises(ValueError, match="items must be at least 1, not 0"):
        TwoColors(items=0)
