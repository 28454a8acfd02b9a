"""The T-Mazes against a reference maze given as a set of cells, and their oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.worlds import ActiveTMaze, PassiveTMaze, tmaze

MAZES = [
    ("TMazePassive-v0", dict(corridor_length=1)),
    ("TMazePassive-v0", dict(corridor_length=6, max_steps_in_episode=40)),
    ("TMazePassive-v0", dict(corridor_length=6, max_steps_in_episode=11, penalty="behind")),
    ("TMazePassive-v0", dict(corridor_length=5, step_penalty=0.0, max_steps_in_episode=30)),
    ("TMazeActive-v0", dict(corridor_length=4)),
    ("TMazeActive-v0", dict(corridor_length=3, cue_distance=3, max_steps_in_episode=40)),
    ("TMazeActive-v0", dict(corridor_length=3, max_steps_in_episode=40, penalty="behind")),
]
MOVES = [(1, 0), (0, 1), (-1, 0), (0, -1)]


def moved(position, action, length):
    """Return the cell an action leads to in a maze of `length` cells, including the junction."""
    cells = {(x, 0) for x in range(length)} | {(length - 1, 1), (length - 1, -1)}
    target = tuple(np.add(position, MOVES[action]).tolist())
    return target if target in cells else position


def shortest(position, seen, length):
    """Return the length of the shortest path to a cued turn, by breadth-first search."""
    actions, places = 0, {(position, seen)}
    while True:
        actions += 1
        reached = set()
        for position, seen in places:
            for action in range(4):
                new = moved(position, action, length)
                if new[1] and seen:
                    return actions
                if not new[1]:
                    reached.add((new, seen or new == (0, 0)))
        places = reached


def reference(actions, hint, params, limit, active):
    """Yield (y, hint, flag), reward, whether the maze ended, and success, for each action."""
    start = params.cue_distance if active else 0
    length = start + params.corridor_length + 1
    position, seen = (start, 0), not active
    for time, action in enumerate(actions, start=1):
        before = shortest(position, seen, length)
        position = moved(position, action, length)
        seen = seen or position == (0, 0)
        turned, success = position[1] != 0, position[1] == hint
        reward = float(success)
        if not turned:
            if params.penalty == "progress":
                penalized = shortest(position, seen, length) >= before
            else:
                penalized = position[0] < time - start
            reward = -penalized * params.step_penalty / params.corridor_length
        shown = hint if active and position[0] == 0 else 0
        ended = turned or time == limit
        yield (position[1], shown, float(position == (length - 1, 0))), reward, ended, success
        if ended:
            return


@pytest.mark.parametrize(("name", "overrides"), MAZES)
def test_matches_reference_maze(name, overrides):
    env, params = make_env(name, **overrides)
    active = isinstance(env, ActiveTMaze)
    rng = np.random.default_rng(0)
    steps = 40
    actions = rng.choice(4, size=(64, steps), p=[0.7, 0.1, 0.1, 0.1])
    # Half of the sequences start by walking to the cue.
    actions[::2, : getattr(params, "cue_distance", 0)] = tmaze.LEFT

    def play(key, action_T):
        observation, state = env.reset_env(key, params)

        def step(state, action):
            observation, state, reward, terminated, info = env.step_env(key, state, action, params)
            truncated = env.is_truncated(state, params)
            return state, (observation, reward, terminated, truncated, info["success"])

        return observation, state.hint, jax.lax.scan(step, state, action_T)[1]

    keys = jax.random.split(jax.random.key(1), len(actions))
    played = jax.device_get(jax.jit(jax.vmap(play))(keys, jnp.asarray(actions, jnp.int32)))
    first_B4, hint_B, (observation_BT4, reward_BT, terminated_BT, truncated_BT, success_BT) = played
    turns = 0
    for b, hint in enumerate(hint_B):
        seen_at_once = hint if not active else 0
        assert first_B4[b, :3].tolist() == [0, seen_at_once, 0]
        expected = reference(actions[b], hint, params, time_limit(env, params), active)
        for t, (observation, reward, ended, success) in enumerate(expected):
            assert observation_BT4[b, t, :3].tolist() == list(observation)
            np.testing.assert_allclose(reward_BT[b, t], reward, rtol=1e-6)
            assert terminated_BT[b, t] == ended
            assert success_BT[b, t] == success
        assert ended
        turns += observation[0] != 0
    assert turns > 10  # the comparison has covered turns
    assert not truncated_BT.any()
    assert set(np.unique(hint_B)) == {-1, 1}
    assert set(np.unique(observation_BT4[..., 3])) == {-1, 0, 1}


@pytest.mark.parametrize(
    ("name", "penalty", "actions", "rewards"),
    [
        # Actions without progress are penalized, at the start and at the junction.
        ("TMazePassive-v0", "progress", "LRRU", [-1, 0, 0, 2]),
        ("TMazePassive-v0", "progress", "RRRLRU", [0, 0, -1, -1, 0, 2]),
        # Ni et al.: after one lost step, every action costs the same.
        ("TMazePassive-v0", "behind", "LRRU", [-1, -1, -1, 2]),
        ("TMazePassive-v0", "behind", "LLLLLL", [-1] * 6),
        # The shortest path leads to the cue first, with o = 1.
        ("TMazeActive-v0", "progress", "LRRRU", [0, 0, 0, 0, 2]),
        ("TMazeActive-v0", "progress", "RLLRRRU", [-1, 0, 0, 0, 0, 0, 2]),
        ("TMazeActive-v0", "progress", "LLRLRRRU", [0, -1, 0, -1, 0, 0, 0, 2]),
        ("TMazeActive-v0", "progress", "RRU", [-1, -1, 2]),
    ],
)
def test_penalties_of_action_sequences(name, penalty, actions, rewards):
    """With L = 2, a penalized action costs 1 / 2. Rewards are in halves: 2 is a correct turn."""
    env, params = make_env(name, corridor_length=2, max_steps_in_episode=20, penalty=penalty)
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(hint=jnp.ones_like(state.hint))
    got = []
    for letter in actions:
        action = "RULD".index(letter)
        _, state, reward, _, _ = env.step_env(jax.random.key(0), state, action, params)
        got.append(2 * float(reward))
    assert got == rewards


@pytest.mark.parametrize("hint", [-1, 1])
@pytest.mark.parametrize("name", ["TMazePassive-v0", "TMazeActive-v0"])
def test_wrong_turn_earns_nothing(name, hint):
    env, params = make_env(name, corridor_length=1)
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(x=jnp.int32(env._junction(params)), hint=jnp.int32(hint))
    _, _, reward, terminated, info = env.step_env(
        jax.random.key(0), state, tmaze.UP if hint < 0 else tmaze.DOWN, params
    )
    assert (float(reward), bool(terminated), bool(info["success"])) == (0.0, True, False)


@pytest.mark.parametrize("penalty", ["progres", "", 1, None])
def test_unknown_penalty_raises(penalty):
    message = f"unknown penalty {penalty!r}: .*Valid: behind, progress"
    with pytest.raises(ValueError, match=message) as error:
        make_env("TMazePassive-v0", penalty=penalty)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        tmaze.TMazeParams().replace(penalty=penalty)


def run_oracle(env, params, num_envs=32):
    """Play one episode in each environment: return time steps `[T, B]` and statistics."""
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
def test_oracle_takes_shortest_path_without_penalty(name, overrides, actions):
    env, params = make_env(name, **overrides)
    timestep, episode = run_oracle(env, params)
    assert time_limit(env, params) == 2 * actions
    np.testing.assert_array_equal(timestep.last.argmax(0), actions)
    assert (episode.length[actions] == actions).all()
    assert episode.success[actions].all()
    np.testing.assert_array_equal(episode.episode_return[actions], 1.0)
    np.testing.assert_array_equal(timestep.discount[actions], 0.0)


def test_rate_lengths_fill_segments():
    params = PassiveTMaze().params_of_length(15)
    assert (params.corridor_length, params.max_steps_in_episode) == (13, 15)
    assert params.step_penalty == 0
    timestep, episode = run_oracle(PassiveTMaze(), params)
    observations = timestep.last.argmax(0) + 1
    np.testing.assert_array_equal(observations, 15)
    assert episode.success[14].all()
    # The cue is shown only first, the flag only in the observation before the turn.
    hint_TB, flag_TB = timestep.observation[:15, :, 1], timestep.observation[:15, :, 2]
    assert (hint_TB[0] != 0).all()
    assert not hint_TB[1:].any()
    np.testing.assert_array_equal(np.nonzero(flag_TB.all(1))[0], [13])
    assert flag_TB.sum() == flag_TB.shape[1]


def test_rate_length_without_corridor_raises():
    with pytest.raises(ValueError, match="length must be at least 3, got 2"):
        PassiveTMaze().params_of_length(2)
    with pytest.raises(ValueError, match="length must be at least 5, got 4"):
        ActiveTMaze().params_of_length(4)


def test_active_maze_of_length_is_solved_by_its_end():
    params = ActiveTMaze().params_of_length(9)
    assert (params.corridor_length, params.cue_distance) == (5, 1)
    timestep, episode = run_oracle(ActiveTMaze(), params)
    np.testing.assert_array_equal(timestep.last.argmax(0) + 1, 9)
    assert episode.success[8].all()


@pytest.mark.parametrize("name", ["TMazePassive-v0", "TMazeActive-v0"])
def test_oracle_solves_from_any_state(name):
    """After any detour it succeeds in the number of actions that `remaining` returns."""
    env, params = make_env(name, corridor_length=4, max_steps_in_episode=100)

    @jax.jit
    def play(key, detour_T):
        _, state = env.reset_env(key, params)
        for action in detour_T:
            state = env.step_env(key, state, action, params)[1]
        start = env.remaining(state, params)

        def step(state, _):
            action = env.oracle_action(state, params)
            _, state, reward, terminated, info = env.step_env(key, state, action, params)
            return state, (reward, terminated, info["success"], env.remaining(state, params))

        return start, jax.lax.scan(step, state, length=12)[1]

    for seed in range(20):
        key = jax.random.key(seed)
        # Only right and left: the detour must not turn.
        detour_T = 2 * jax.random.randint(key, (6,), 0, 2)
        start, (reward_T, terminated_T, success_T, remaining_T) = play(key, detour_T)
        end = int(start) - 1
        np.testing.assert_array_equal(remaining_T[: end + 1], np.arange(end, -1, -1))
        assert terminated_T.argmax() == end
        assert success_T[end]
        np.testing.assert_array_equal(reward_T[: end + 1], [0.0] * end + [1.0])


def test_random_walk_pays_penalty_until_limit():
    env, params = make_env("TMazePassive-v0", corridor_length=20)
    stream = Stream(env, params, num_envs=16)

    def step(state, key):
        state, timestep = stream.step(state, jax.random.randint(key, (16,), 0, 4))
        return state, (timestep, state.episode)

    @jax.jit
    def run(key):
        return jax.lax.scan(step, stream.reset(key)[0], jax.random.split(key, 42))[1]

    timestep, episode = jax.device_get(run(jax.random.key(0)))
    assert timestep.last[-1].all()
    # The limit terminates the episode, so that nothing is bootstrapped.
    np.testing.assert_array_equal(timestep.discount[-1], 0.0)
    assert not episode.success.any()
    assert (episode.episode_return[-1] < -0.5).all()
    assert (episode.episode_return[-1] >= -42 / 20 - 1e-5).all()


@pytest.mark.parametrize("penalty", ["progress", "behind"])
def test_vmap_over_parameters(penalty):
    lengths = jnp.array([3, 5, 9])

    def solved_at(length):
        env, params = make_env("TMazePassive-v0", penalty=penalty)
        params = params.replace(corridor_length=length)
        stream = Stream(env, params, num_envs=4)

        def step(state, _):
            action = jax.vmap(lambda s: env.oracle_action(s, params))(state.env)
            state, timestep = stream.step(state, action)
            return state, (state.episode.success == 1) & timestep.last

        state, _ = stream.reset(jax.random.key(0))
        return jax.lax.scan(step, state, None, 10)[1].argmax(0)

    np.testing.assert_array_equal(
        jax.jit(jax.vmap(solved_at))(lengths), np.broadcast_to(np.array([[3], [5], [9]]), (3, 4))
    )


@pytest.mark.parametrize("length", [1, 10, 39, 40, 100, 9598])
def test_render_shows_agent_and_cue(length):
    env, params = make_env("TMazePassive-v0", corridor_length=length)
    hint = -1 if length % 2 else 1
    state = tmaze.TMazeState(time=0, x=0, y=0, hint=hint, seen=True)
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
    blue, orange = ((end == color).all(-1).any() for color in ((46, 134, 193), (230, 150, 40)))
    assert (blue, orange) == ((True, False) if hint > 0 else (False, True))
