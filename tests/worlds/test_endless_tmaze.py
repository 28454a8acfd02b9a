"""The Endless T-Maze: episodes worked out by hand, its oracle, and the bound without memory."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.acting.scripted import OraclePolicy
from gtrxl_jax.envs import Stream, make_env, time_limit

F, L, R = range(3)
KEY = jax.random.key(0)


def play(actions, cues, lengths, **overrides):
    """Return observations, rewards and ends of a scripted episode, until it ends.

    The corridors' cues and lengths are set by hand, whenever a corridor begins.
    """
    env, params = make_env("EndlessTMaze-v0", **overrides)
    state = env.reset_env(jax.random.key(0), params)[1]
    step = jax.jit(env.step_env)
    seen, rewards, info = [], [], {}
    for action in [None, *actions]:
        if action is not None:
            _, state, reward, terminated, info = step(jax.random.key(1), state, action, params)
            rewards.append(round(float(reward), 4))
        if state.x == 0:
            n = int(state.corridor)
            state = state.replace(cue=jnp.int32(cues[n]), length=jnp.int32(lengths[n]))
        seen.append(env.observe(KEY, state, action, params).tolist())
        if action is not None and (terminated or env.is_truncated(state, params)):
            return seen, rewards, bool(terminated), jax.device_get(info)
    raise AssertionError("the script does not end the episode")


def test_two_corridors_by_hand():
    """A turn inside a corridor costs a step; the second cue replaces the first."""
    script = [F, L, F, L, F, R]
    seen, rewards, terminated, info = play(script, (-1, 1), (2, 1), num_corridors=2)
    assert seen == [
        [1, 0, 0],
        [0, 0, 0.5],
        [0, 0, 0.5],
        [0, 0, 1],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 1],
    ]
    assert rewards == [-0.01, -0.01, -0.01, 1, -0.01, 1]
    assert terminated
    assert info == {"success": True, "corridors": 2}


@pytest.mark.parametrize(("action", "penalty"), [(F, 1.0), (R, 0.25)])
def test_wrong_turn_ends_the_episode(action, penalty):
    script = [F, L, F, action]
    overrides = dict(num_corridors=2, wrong_penalty=penalty)
    _, rewards, terminated, info = play(script, (-1, -1), (1, 1), **overrides)
    assert rewards == [-0.01, 1, -0.01, -penalty]
    assert terminated
    assert info == {"success": False, "corridors": 1}


def test_agent_may_wait_at_junction_if_allowed():
    script = [F, F, R]
    _, rewards, _, info = play(script, (1,), (1,), num_corridors=1, wait_at_junction=True)
    assert rewards == [-0.01, -0.01, 1]
    assert info["success"]


def test_cue_stays_while_agent_stays_and_time_limit_truncates():
    overrides = dict(num_corridors=1, corridor_length=2, max_steps_in_episode=3)
    seen, rewards, terminated, info = play([L, R, L], (1,), (2,), **overrides)
    assert seen == [[0, 1, 0]] * 4
    assert rewards == [-0.01] * 3
    assert not terminated
    assert not info["success"]
    env, params = make_env("EndlessTMaze-v0", num_corridors=3, corridor_length=4)
    assert time_limit(env, params) == 6 * 5 * 3


@pytest.mark.parametrize("lengths", ["fixed", "uniform"])
def test_oracle_has_the_best_return(lengths):
    """Each corridor costs its length, and each turn earns 1; more corridors are a parameter."""
    env, params = make_env("EndlessTMaze-v0", lengths=lengths, corridor_length=4)

    @jax.jit
    def scores(num_corridors):
        mine = params.replace(num_corridors=num_corridors)
        evaluate = make_evaluate(OraclePolicy(env, mine), Stream(env, mine, num_envs=1), 512)
        return summarize(evaluate(None, jax.random.key(0)))

    for n in (1, 7):
        played = jax.device_get(scores(n))
        np.testing.assert_array_equal(played["success"], 1)
        np.testing.assert_array_equal(played["corridors"], n)
        moves = played["length"] - n
        np.testing.assert_allclose(played["return"], n - 0.01 * moves, rtol=1e-5)
        if lengths == "fixed":
            np.testing.assert_array_equal(moves, 4 * n)
        else:
            # Lengths from 1 to 4, with a standard error of about 0.05 for each corridor.
            np.testing.assert_allclose(moves.mean() / n, 2.5, atol=0.25)
            assert moves.min() < 4 * n
            assert moves.max() <= 4 * n


def test_without_memory_each_turn_is_a_guess():
    """No policy of the last observation passes n corridors more often than with 0.5^n."""
    n, length = 3, 2
    env, params = make_env("EndlessTMaze-v0", num_corridors=n, corridor_length=length)
    state = env.reset_env(jax.random.key(0), params)[1]
    junction = state.replace(x=jnp.int32(length))
    # What is seen at a junction, and behind the first step, does not depend on the cue.
    for x in range(1, length + 1):
        seen = [
            env.observe(KEY, state.replace(x=jnp.int32(x), cue=jnp.int32(cue)), None, params)
            for cue in (-1, 1)
        ]
        np.testing.assert_array_equal(*seen)
    # So the turn is the same in all corridors: of all sequences of cues, one fits.
    for turn in (L, R):
        passed = []
        for cues in itertools.product((-1, 1), repeat=n):
            corridors = [junction.replace(cue=jnp.int32(cue)) for cue in cues]
            passed.append(all(env.oracle_action(one, params) == turn for one in corridors))
        assert np.mean(passed) == 0.5**n


def test_picture_shows_cue_agent_and_progress():
    env, params = make_env("EndlessTMaze-v0", num_corridors=4, corridor_length=3)
    state = env.reset_env(jax.random.key(0), params)[1]
    images = [
        env.render(state.replace(**{k: jnp.int32(v) for k, v in change.items()}), params)
        for change in ({}, dict(x=2), dict(corridor=2), dict(cue=-int(state.cue)))
    ]
    assert {image.shape for image in images} == {images[0].shape}
    assert all((images[0] != image).any() for image in images[1:])
