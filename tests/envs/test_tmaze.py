"""The T-Mazes against a maze written as a set of cells, and their oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import ActiveTMaze, PassiveTMaze, Stream, make_env, time_limit, tmaze

MAZES = [
    ("TMazePassive-v0", dict(corridor_length=1)),
    ("TMazePassive-v0", dict(corridor_length=6)),
    ("TMazePassive-v0", dict(corridor_length=5, step_penalty=0.0, max_steps_in_episode=30)),
    ("TMazeActive-v0", dict(corridor_length=4)),
    ("TMazeActive-v0", dict(corridor_length=3, cue_distance=3, max_steps_in_episode=40)),
]


def reference(actions, hint, length, penalty, cue_distance, active):
    """Yields (y, hint, flag), reward and whether the maze ended, for each action."""
    end = cue_distance + length
    cells = {(x, 0) for x in range(end + 1)} | {(end, 1), (end, -1)}
    moves = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    position = (cue_distance, 0)
    for time, action in enumerate(actions, start=1):
        target = tuple(np.add(position, moves[action]).tolist())
        position = target if target in cells else position
        turned = position[1] != 0
        seen = hint if active and position[0] == 0 else 0
        if turned:
            reward = 1.0 if position[1] == hint else 0.0
        else:
            reward = -penalty / length if position[0] < time - cue_distance else 0.0
        yield (position[1], seen, float(position == (end, 0))), reward, turned
        if turned:
            return


@pytest.mark.parametrize(("name", "overrides"), MAZES)
def test_replays_the_reference(name, overrides):
    env, params = make_env(name, **overrides)
    active = isinstance(env, ActiveTMaze)
    rng = np.random.default_rng(0)
    steps = 40
    actions = rng.choice(4, size=(64, steps), p=[0.7, 0.1, 0.1, 0.1])
    # Half of the sequences leave the start by the cue's side.
    actions[::2, : getattr(params, "cue_distance", 0)] = tmaze.LEFT

    def play(key, action_T):
        observation, state = env.reset_env(key, params)

        def step(state, action):
            observation, state, reward, terminated, info = env.step_env(key, state, action, params)
            return state, (observation, reward, terminated, info["success"])

        return observation, state.hint, jax.lax.scan(step, state, action_T)[1]

    keys = jax.random.split(jax.random.key(1), len(actions))
    played = jax.device_get(jax.jit(jax.vmap(play))(keys, jnp.asarray(actions, jnp.int32)))
    first_B4, hint_B, (observation_BT4, reward_BT, terminated_BT, success_BT) = played
    ended = 0
    for b, hint in enumerate(hint_B):
        seen_at_once = hint if not active else 0
        assert first_B4[b, :3].tolist() == [0, seen_at_once, 0]
        expected = reference(
            actions[b],
            hint,
            params.corridor_length,
            params.step_penalty,
            getattr(params, "cue_distance", 0),
            active,
        )
        for t, (observation, reward, turned) in enumerate(expected):
            assert observation_BT4[b, t, :3].tolist() == list(observation)
            np.testing.assert_allclose(reward_BT[b, t], reward, rtol=1e-6)
            assert terminated_BT[b, t] == turned
            assert success_BT[b, t] == (turned and reward == 1)
        ended += turned
    assert ended > 10  # the comparison has covered turns
    assert set(np.unique(hint_B)) == {-1, 1}
    assert set(np.unique(observation_BT4[..., 3])) == {-1, 0, 1}


def run_oracle(env, params, num_envs=32):
    """One whole episode of each of `num_envs` environments: time steps `[T, B]` and statistics."""
    stream = Stream(env, params, num_envs)
    act = jax.vmap(lambda state: env.oracle_action(state, params))

    def step(carry, _):
        state, timestep = carry
        carry = stream.step(state, act(state.env))
        return carry, (timestep, state.episode)

    steps = int(time_limit(env, params)) + 1
    run = jax.jit(lambda key: jax.lax.scan(step, stream.reset(key), None, steps)[1])
    return jax.device_get(run(jax.random.key(0)))


@pytest.mark.parametrize(
    ("name", "overrides", "actions"),
    [
        ("TMazePassive-v0", dict(corridor_length=7), 8),
        ("TMazePassive-v0", dict(corridor_length=1), 2),
        ("TMazeActive-v0", dict(corridor_length=7), 10),
        ("TMazeActive-v0", dict(corridor_length=2, cue_distance=4), 11),
    ],
)
def test_the_oracle_succeeds_at_once_and_pays_nothing(name, overrides, actions):
    env, params = make_env(name, **overrides)
    timestep, episode = run_oracle(env, params)
    assert time_limit(env, params) == actions + 1
    np.testing.assert_array_equal(timestep.last.argmax(0), actions)
    assert (episode.length[actions] == actions).all()
    assert episode.success[actions].all()
    np.testing.assert_array_equal(episode.episode_return[actions], 1.0)
    np.testing.assert_array_equal(timestep.discount[actions], 0.0)


def test_rate_lengths_fill_the_segments():
    params = tmaze.rate_params(segments=3, context=5)
    assert (params.corridor_length, params.max_steps_in_episode) == (13, 15)
    timestep, episode = run_oracle(PassiveTMaze(), params)
    observations = timestep.last.argmax(0) + 1
    np.testing.assert_array_equal(observations, 15)
    assert episode.success[14].all()
    # The cue on the first observation alone; the flag on the one before the turn.
    hint_TB, flag_TB = timestep.observation[:15, :, 1], timestep.observation[:15, :, 2]
    assert (hint_TB[0] != 0).all()
    assert not hint_TB[1:].any()
    np.testing.assert_array_equal(np.nonzero(flag_TB.all(1))[0], [13])
    assert flag_TB.sum() == flag_TB.shape[1]


def test_rate_refuses_lengths_without_a_corridor():
    with pytest.raises(ValueError, match="at least 3, got 1 \\* 2"):
        tmaze.rate_params(segments=1, context=2)


def test_a_random_walk_pays_the_penalty_and_meets_the_time_limit():
    env, params = make_env("TMazePassive-v0", corridor_length=20)
    stream = Stream(env, params, num_envs=16)

    def step(state, key):
        state, timestep = stream.step(state, jax.random.randint(key, (16,), 0, 4))
        return state, (timestep, state.episode)

    @jax.jit
    def run(key):
        return jax.lax.scan(step, stream.reset(key)[0], jax.random.split(key, 22))[1]

    timestep, episode = jax.device_get(run(jax.random.key(0)))
    assert timestep.last[-1].all()
    np.testing.assert_array_equal(timestep.discount[-1], 1.0)
    assert not episode.success.any()
    assert (episode.episode_return[-1] < -0.5).all()
    assert (episode.episode_return[-1] >= -22 / 20 - 1e-5).all()


def test_parameters_can_be_mapped_over():
    lengths = jnp.array([3, 5, 9])

    def solved_at(length):
        env, params = make_env("TMazePassive-v0")
        params = params.replace(corridor_length=length)
        stream = Stream(env, params, num_envs=4)

        def step(state, _):
            action = jax.vmap(lambda s: env.oracle_action(s, params))(state.env)
            state, timestep = stream.step(state, action)
            return state, state.episode.success & timestep.last

        state, _ = stream.reset(jax.random.key(0))
        return jax.lax.scan(step, state, None, 10)[1].argmax(0)

    np.testing.assert_array_equal(
        jax.jit(jax.vmap(solved_at))(lengths), np.broadcast_to(np.array([[3], [5], [9]]), (3, 4))
    )


@pytest.mark.parametrize("length", [1, 10, 39, 40, 100, 9598])
def test_pictures_show_agent_and_cue_at_any_length(length):
    env, params = make_env("TMazePassive-v0", corridor_length=length)
    hint = -1 if length % 2 else 1
    state = tmaze.TMazeState(time=0, x=0, y=0, hint=hint)
    at_end = state.replace(x=length, y=hint)
    start, end = env.render(state, params), env.render(at_end, params)
    for image in (start, end):
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[2] == 3
        assert max(image.shape) <= 700
    red = (start == (214, 69, 65)).all(-1)
    assert red.any()
    assert (red != (end == (214, 69, 65)).all(-1)).any()
    blue, orange = ((end == colour).all(-1).any() for colour in ((46, 134, 193), (230, 150, 40)))
    assert (blue, orange) == ((True, False) if hint > 0 else (False, True))
