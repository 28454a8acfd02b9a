"""Action Associative Retrieval against a reference in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.envs.extensions import chance_of
from gtrxl_jax.worlds import AssociativeRetrieval, associative


def reference(actions, wait_steps):
    """Yield (state, flag), reward and whether the episode ended, for each action."""
    goal, waits_left = None, wait_steps
    for action in actions:
        if goal is None:
            goal = None if action == 2 else action
            yield (goal is not None, goal is not None and waits_left == 0), 0, False
        elif waits_left == 0:
            yield None, float(action == goal), True
            return
        elif action == 2:
            waits_left -= 1
            yield (1, waits_left == 0), 0, False
        else:
            yield None, 0, True
            return


@pytest.mark.parametrize("wait_steps", [1, 2, 4])
def test_matches_reference(wait_steps):
    env, params = make_env("AssociativeRetrieval-v0", wait_steps=wait_steps)
    rng = np.random.default_rng(wait_steps)
    actions = rng.choice(3, size=(200, 12), p=[0.15, 0.15, 0.7])

    def play(key, action_T):
        observation, state = env.reset_env(key, params)

        def step(state, action):
            observation, state, reward, terminated, info = env.step_env(key, state, action, params)
            return state, (observation, reward, terminated, info["success"])

        return observation, jax.lax.scan(step, state, action_T)[1]

    keys = jax.random.split(jax.random.key(1), len(actions))
    played = jax.device_get(jax.jit(jax.vmap(play))(keys, jnp.asarray(actions, jnp.int32)))
    first_B3, (observation_BT3, reward_BT, terminated_BT, success_BT) = played
    assert not first_B3[:, :2].any()
    outcomes = set()
    for b in range(len(actions)):
        for t, (observation, reward, ended) in enumerate(reference(actions[b], wait_steps)):
            if observation is not None:
                assert observation_BT3[b, t, :2].tolist() == [float(x) for x in observation]
            assert reward_BT[b, t] == reward
            assert terminated_BT[b, t] == ended
            assert success_BT[b, t] == (reward == 1)
        outcomes.add((ended, reward))
    assert {(True, 0.0), (True, 1.0)} <= outcomes
    assert set(np.unique(observation_BT3[..., 2])) == {-1, 0, 1}


def test_policy_without_memory_solves_it_online():
    """It always takes action 0, so no rate of success can be declared as chance."""
    env, params = make_env("AssociativeRetrieval-v0", wait_steps=2)
    observation, state = env.reset_env(jax.random.key(0), params)
    for _ in range(4):
        waits = observation[:2].tolist() == [1, 0]
        observation, state, reward, terminated, _ = env.step_env(
            jax.random.key(1), state, associative.STAY if waits else 0, params
        )
    assert (reward, terminated) == (1, True)
    assert chance_of(env) is None


def test_oracle_solves_rate_length():
    env, params = AssociativeRetrieval(), AssociativeRetrieval().params_of_length(12)
    assert time_limit(env, params) == 12
    assert params.wait_steps == 9
    stream = Stream(env, params, num_envs=64)

    def step(carry, _):
        state, timestep = carry
        action = jax.vmap(lambda s: env.oracle_action(s, params))(state.env)
        return stream.step(state, action), (timestep, action, state.episode)

    run = jax.jit(lambda key: jax.lax.scan(step, stream.reset(key), None, 12)[1])
    timestep, action_TB, episode = jax.device_get(run(jax.random.key(0)))
    np.testing.assert_array_equal(timestep.last.argmax(0) + 1, 12)
    assert episode.success[-1].all()
    np.testing.assert_array_equal(action_TB[0], action_TB[10])
    assert 16 < action_TB[0].sum() < 48
    np.testing.assert_array_equal(action_TB[1:10], 2)
    # The flag is set only in the observation of the final decision.
    np.testing.assert_array_equal(timestep.observation[:11, :, 1].sum(0), 1)
    np.testing.assert_array_equal(timestep.observation[10, :, 1], 1)


def test_idling_at_start_is_truncated():
    env, params = make_env("AssociativeRetrieval-v0", wait_steps=2)
    stream = Stream(env, params, num_envs=3)
    state, _ = jax.jit(stream.reset)(jax.random.key(0))
    step = jax.jit(stream.step)
    for _ in range(5):
        state, timestep = step(state, jnp.full(3, associative.STAY))
    assert timestep.last.all()
    np.testing.assert_array_equal(timestep.discount, 1.0)
    assert not state.episode.success.any()


def test_rate_length_without_wait_raises():
    with pytest.raises(ValueError, match="length must be at least 4, got 3"):
        AssociativeRetrieval().params_of_length(3)


def test_render_shows_path_taken():
    env, params = make_env("AssociativeRetrieval-v0", wait_steps=2)
    key = jax.random.key(0)
    _, state = env.reset(key, params)
    step = jax.jit(env.step_env)
    images = [env.render(state, params)]
    for action in (1, 2, 2):
        _, state, *_ = step(key, state, action, params)
        images.append(env.render(state, params))
    assert {image.shape for image in images} == {(80, 192, 3)}
    assert all((a != b).any() for a, b in zip(images, images[1:], strict=False))
