"""Data collection: oracles, numbers of episodes, balanced cues, no bias towards short episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting import collecting
from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import OraclePolicy, RandomPolicy
from gtrxl_jax.data import check
from gtrxl_jax.envs import cue_of, make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.worlds import AssociativeRetrieval, PassiveTMaze, associative
from gtrxl_jax.worlds.base import Cue
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

KEY = jax.random.key(0)


def oracle(name, params=None, **overrides):
    env, default = make_env(name, **overrides)
    params = params or default
    return env, params, OraclePolicy(env, params)


@pytest.mark.parametrize(
    ("name", "cue_from"),
    [
        ("TMazePassive-v0", lambda x: x.observations[:, 0, 1]),
        ("AssociativeRetrieval-v0", lambda x: x.actions[:, 0]),
    ],
)
def test_oracles_solve_tasks_with_balanced_cues(name, cue_from):
    env, _ = make_env(name)
    of_length = oracle(name, env.params_of_length(90))
    whole = collect(*of_length, 50, KEY, num_envs=16, cue=cue_of(env))
    check(whole)
    assert (whole.num_episodes, whole.max_length) == (50, 89)
    np.testing.assert_array_equal(whole.length, 89)
    np.testing.assert_array_equal(whole.rewards.sum(axis=1), 1.0)
    np.testing.assert_array_equal(whole.rewards[:, :-1], 0.0)
    assert whole.terminated.all()
    values, counts = np.unique(cue_from(whole), return_counts=True)
    assert len(values) == 2
    np.testing.assert_array_equal(counts, 25)
    # The noise differs from episode to episode.
    assert len(np.unique(whole.observations[..., -1], axis=0)) == 50


def test_odd_number_of_episodes_is_balanced():
    env, *rest = oracle("TMazePassive-v0", corridor_length=2)
    whole = collect(env, *rest, 7, KEY, num_envs=4, cue=cue_of(env))
    assert np.unique(whole.observations[:, 0, 1], return_counts=True)[1].tolist() == [4, 3]


@pytest.mark.parametrize("num_envs", slow_except([1, 5, 8, 32], [1, 5, 32]))
def test_number_of_episodes_is_exact(num_envs):
    added = []
    whole = collect(
        *oracle("TMazePassive-v0", corridor_length=3),
        9,
        KEY,
        num_envs=num_envs,
        progress=lambda episodes: added.append(episodes),
    )
    assert whole.num_episodes == 9
    assert sum(len(episodes.length) for episodes in added) == 9
    assert len(added) == -(-9 // num_envs)
    assert all(episodes.success.all() for episodes in added)


def test_collection_is_deterministic():
    def play(key):
        env, params = make_env("TMazePassive-v0", corridor_length=3)
        return collect(env, params, RandomPolicy(env.action_space(params)), 12, key, num_envs=5)

    one, same, other = play(KEY), play(KEY), play(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one.observations[:, 0] != other.observations[:, 0]).any()


class Counting(Policy):
    """Its actions are its own count of steps, modulo 3."""

    def init(self, params, batch_size):
        return jnp.zeros(batch_size, jnp.int32)

    def act(self, params, state, timestep, key):
        state = jnp.where(timestep.first, 0, state + 1)
        return state, state % 3, ()


def test_episodes_match_stepwise_replay():
    """Replay the actions one at a time and compare rewards, observations and terminations."""
    env, params = AssociativeRetrieval(), associative.AssociativeParams(wait_steps=4)
    whole = collect(env, params, Counting(), 6, KEY, num_envs=6)
    check(whole)
    np.testing.assert_array_equal(whole.actions[:, :2], [[0, 1]] * 6)
    np.testing.assert_array_equal(whole.length, 2)  # a move before the flag ends it
    assert whole.terminated.all()

    env, params = make_env("TMazePassive-v0", corridor_length=3, max_steps_in_episode=9)
    whole = collect(env, params, RandomPolicy(env.action_space(params)), 24, KEY, num_envs=24)
    assert len(np.unique(whole.length)) > 1  # some turn before the time limit
    step = jax.jit(env.step_env)
    for e in range(24):
        _, state = env.reset_env(KEY, params)
        state = state.replace(hint=jnp.asarray(whole.observations[e, 0, 1], jnp.int32))
        for t in range(whole.length[e]):
            observation, state, reward, terminated, _ = step(
                KEY, state, jnp.asarray(whole.actions[e, t]), params
            )
            # All but the noise.
            np.testing.assert_array_equal(whole.observations[e, t + 1, :3], observation[:3])
            np.testing.assert_allclose(whole.rewards[e, t], reward)
            assert bool(terminated) == (t == whole.length[e] - 1 and whole.terminated[e])
        assert whole.terminated[e] or whole.length[e] == 9
        for padding in (
            whole.observations[e, whole.length[e] + 1 :],
            whole.actions[e, whole.length[e] :],
            whole.rewards[e, whole.length[e] :],
        ):
            assert not padding.any()


def test_short_episodes_are_not_oversampled():
    """Restarting environments while others still play would oversample short episodes."""
    env, params = make_env("TMazePassive-v0", corridor_length=1, max_steps_in_episode=40)
    whole = collect(env, params, RandomPolicy(env.action_space(params)), 2000, KEY, num_envs=500)
    # At the junction a turn has probability 1/2, and at the start a step to the junction 1/4: the
    # Markov chain of these two cells determines the mean length.
    places, mean = np.array([1.0, 0.0]), 0.0
    for _ in range(40):
        mean += places.sum()
        places = places @ np.array([[3 / 4, 1 / 4], [1 / 4, 1 / 4]])
    spread = whole.length.std() / np.sqrt(2000)
    assert abs(whole.length.mean() - mean) < 5 * spread


@pytest.mark.parametrize("part", slow_except([1, 3, 7], [1, 7]))
def test_parts_do_not_matter(part, monkeypatch):
    """Steps are collected in parts of any length, from one to more than the time limit."""
    env, params = make_env("TMazePassive-v0", corridor_length=1, max_steps_in_episode=5)
    arguments = env, params, RandomPolicy(env.action_space(params)), 12, KEY
    whole = collect(*arguments, num_envs=6)
    assert len(np.unique(whole.length)) > 1
    monkeypatch.setattr(collecting, "PART_STEPS", part)
    jax.tree.map(np.testing.assert_array_equal, collect(*arguments, num_envs=6), whole)


def test_episodes_are_those_of_one_long_rollout():
    env, params = make_env("TMazePassive-v0", corridor_length=3, max_steps_in_episode=9)
    policy = RandomPolicy(env.action_space(params))
    whole = collect(env, params, policy, 5, KEY, num_envs=5)
    stream = Stream(env, params, 5)
    key_stream, key_act = jax.random.split(jax.random.fold_in(KEY, 0))
    state = begin(policy, (), stream, key_stream)
    _, played = jax.jit(lambda state: rollout(policy, (), stream, state, key_act, 9))(state)
    for e, n in enumerate(whole.length):
        np.testing.assert_array_equal(whole.actions[e, :n], played.timesteps.action[e, 1 : n + 1])
        np.testing.assert_array_equal(
            whole.observations[e, : n + 1], played.timesteps.observation[e, : n + 1]
        )


def test_memory_does_not_grow_with_time_limit():
    env, params = make_env("TMazePassive-v0", corridor_length=3, max_steps_in_episode=5_000_000)
    policy = OraclePolicy(env, params)
    play = collecting._RoundPlayer(Stream(env, params, 4), policy, (), None)
    assert play._steps <= collecting.PART_STEPS
    assert play._part_bytes <= collecting.PART_BYTES
    np.testing.assert_array_equal(collect(env, params, policy, 6, KEY, num_envs=4).length, 4)


@pytest.mark.parametrize(("size", "numbers"), [(1 << 26, [4, 1]), (1, [1] * 5)])
def test_sets_of_episodes_are_bounded(size, numbers, monkeypatch):
    monkeypatch.setattr(collecting, "PART_BYTES", size)
    env, params, policy = oracle("TMazePassive-v0", corridor_length=3)
    sets = list(collecting.collect_rounds(env, params, policy, 5, KEY, num_envs=4))
    assert [one.num_episodes for one in sets] == numbers


@pytest.mark.parametrize(("left", "steps"), [([0], "0"), ([2**40, 2**40, 0], "2")])
def test_what_exceeds_memory_is_refused(left, steps, monkeypatch):
    left = iter(left)
    monkeypatch.setattr(collecting, "available_memory", lambda: next(left))
    monkeypatch.setattr(collecting, "PART_STEPS", 2)
    message = rf"4 episodes take .* GB after {steps} of at most .* steps, .* reduce env.num_envs"
    with pytest.raises(ValueError, match=message):
        collect(*oracle("TMazePassive-v0", corridor_length=9), 4, KEY, num_envs=4)


def test_third_party_environment_with_continuous_actions():
    env, params = make_env("Pendulum-v1", max_steps_in_episode=5)
    whole = collect(env, params, RandomPolicy(env.action_space(params)), 3, KEY, num_envs=2)
    assert whole.actions.shape == (3, 5, 1)
    assert (whole.actions.dtype, whole.observations.dtype) == (np.float32, np.float32)
    assert len(np.unique(whole.actions)) == 15
    assert not whole.terminated.any()


def test_x64_mode_keeps_dtypes_of_spaces(x64):
    whole = collect(*oracle("TMazePassive-v0", corridor_length=2), 2, KEY, num_envs=2)
    check(whole)


class Endless(PassiveTMaze):
    def is_terminated(self, state, params):
        return jnp.zeros((), bool)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(episodes=0), ValueError, "episodes must be at least 1, got 0"),
        (dict(num_envs=0), ValueError, "num_envs must be at least 1, got 0"),
        (dict(cue=Cue("hunt", (-1, 1))), TypeError, "TMazeState has no 'hunt' to balance over"),
        (dict(cue=Cue("hint", (-1, 0, 1))), ValueError, "hint was never 0 in 20 rounds"),
        (
            dict(env=Endless()),
            ValueError,
            "Endless: an episode has not ended after 4 actions, but its time limit is 4",
        ),
    ],
)
def test_invalid_arguments_raise(changes, error, message):
    env, params = make_env("TMazePassive-v0", corridor_length=2, max_steps_in_episode=4)
    arguments = dict(
        env=env,
        params=params,
        policy=RandomPolicy(env.action_space(params)),
        episodes=4,
        key=KEY,
        num_envs=4,
    )
    with pytest.raises(error, match=message):
        collect(**{**arguments, **changes})


def test_missing_oracle_raises():
    with pytest.raises(ValueError, match="CartPole has no oracle_action: use another policy"):
        OraclePolicy(*make_env("CartPole-v1"))
