"""Color-Cubes: its rules against plain Python, its oracle, and what is seen between events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.acting.scripted import OraclePolicy
from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.worlds.color_cubes import DOWN, LEFT, RIGHT, UP

KEY = jax.random.key(0)
MOVES = {UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}


def start(env, params, place, cubes, target):
    """Return a first state that is set by hand."""
    state = env.reset_env(jax.random.key(0), params)[1]
    as_array = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    return state.replace(place_2=as_array(place), cube_N2=as_array(cubes), target=as_array(target))


def read(env, observation):
    """Return what an observation says: the agent's place, the target, the flags and the cubes."""
    size, number = env.size, env.num_cubes
    parts = np.split(np.asarray(observation), np.cumsum([2 * size, number, 2]))
    where = lambda part: [tuple(x) for x in part.reshape(-1, 2, size).argmax(2)]  # noqa: E731
    cubes = where(parts[3]) if parts[3].any() else None
    return where(parts[0])[0], int(parts[1].argmax()), tuple(parts[2].tolist()), cubes


def test_two_phases_by_hand():
    env, params = make_env("ColorCubes-Trivial", num_phases=2)
    state = start(env, params, (0, 0), [(0, 2), (2, 2), (4, 4)], 0)
    step = jax.jit(env.step_env)
    assert read(env, env.observe(KEY, state, None, params)) == (
        (0, 0),
        0,
        (1, 0),
        [(0, 2), (2, 2), (4, 4)],
    )
    rewards = []
    for action in (UP, RIGHT, RIGHT):  # off the grid; a move; the target
        observation, state, reward, terminated, info = step(
            jax.random.key(3), state, action, params
        )
        rewards.append(round(float(reward), 4))
        if action == UP:
            assert read(env, observation) == ((0, 0), 0, (0, 0), None)
    assert rewards == [-0.01, -0.01, 1]
    assert not terminated
    assert (int(info["found"]), bool(info["success"])) == (1, False)
    place, target, flags, cubes = read(env, observation)
    assert (place, flags, cubes[1:]) == ((0, 2), (1, 0), [(2, 2), (4, 4)])
    assert target in (1, 2)
    assert cubes[0] not in [(0, 2), (2, 2), (4, 4)]
    # The cube of another color ends the episode; so does the last target.
    near = state.replace(place_2=jnp.int32([2, 1]), cube_N2=jnp.int32([[0, 0], [2, 2], [4, 4]]))
    for target, expected in ((2, (-1, 1, False)), (1, (1, 2, True))):
        goal = near.replace(target=jnp.int32(target))
        _, _, reward, terminated, info = step(jax.random.key(0), goal, RIGHT, params)
        assert terminated
        assert (float(reward), int(info["found"]), bool(info["success"])) == expected


def test_random_episodes_follow_rules():
    """What an agent does and sees agrees with the rules, step by step; at most one cube moves."""
    env, params = make_env("ColorCubes-Medium", teleport=0.3)
    steps = 60

    def episode(key):
        first, state = env.reset_env(key, params)

        def step(state, key):
            action = jax.random.randint(key, (), 0, 4)
            observation, after, reward, terminated, _ = env.step_env(key, state, action, params)
            return after, (state, action, observation, reward, terminated)

        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(0), 64)
    state, *record = jax.device_get(jax.jit(jax.vmap(episode))(keys))
    teleports = events = 0
    for b in range(64):
        for t, (action, observation, reward, terminated) in enumerate(
            zip(*(x[b] for x in record), strict=True)
        ):
            before = [tuple(cube) for cube in state.cube_N2[b, t]]
            target = int(state.target[b, t])
            cell = tuple(np.clip(state.place_2[b, t] + MOVES[int(action)], 0, 4))
            place, seen_target, flags, cubes = read(env, observation)
            assert place == cell
            hit, wrong = before[target] == cell, cell in before and before[target] != cell
            assert round(float(reward), 2) == (1 if hit else -1 if wrong else -0.01)
            assert terminated == (wrong or (hit and state.found[b, t] == 2))
            assert (seen_target == target) == (not hit)
            assert flags == ((1, 0) if cubes else (0, 0))
            if cubes:
                moved = [n for n in range(3) if cubes[n] != before[n]]
                assert len(moved) == 1
                assert (moved[0] == target) == hit
                assert cubes[moved[0]] not in {*before, cell}
            assert not hit or cubes
            events += not (hit or wrong)
            teleports += not (hit or wrong) and cubes is not None
            if terminated:
                break
    # A standard deviation of about 0.01.
    np.testing.assert_allclose(teleports / events, 0.3, atol=0.05)


def test_hidden_colors_are_listed_by_row():
    env, params = make_env("ColorCubes-Extreme", teleport=1.0)
    cubes = [(6, 6), (3, 3), (5, 0), (0, 6), (2, 2)]
    state = start(env, params, (0, 0), cubes, 0)
    assert read(env, env.observe(KEY, state, None, params))[2:] == ((1, 0), cubes)
    observation, state, *_ = env.step_env(jax.random.key(0), state, UP, params)
    flags, seen = read(env, observation)[2:]
    assert flags == (0, 1)
    assert seen == sorted(tuple(cube) for cube in state.cube_N2.tolist())
    assert len({*seen} & {*cubes}) == 4


def test_oracle_has_the_best_return():
    """Without teleports, it enters the target after as many moves as its cell is away."""
    env, params = make_env("ColorCubes-Trivial")
    evaluate = make_evaluate(OraclePolicy(env, params), Stream(env, params, num_envs=1), 256)
    played = jax.device_get(summarize(jax.jit(evaluate)(None, jax.random.key(0))))
    # A target in a corner behind both of the others cannot be reached: about 0.07 % of episodes.
    assert played["success"].mean() > 0.98
    won = played["success"] == 1
    np.testing.assert_allclose(
        played["return"][won], 1 - 0.01 * (played["length"][won] - 1), rtol=1e-5
    )
    act = jax.jit(env.oracle_action)
    state = start(env, params, (0, 0), [(0, 2), (0, 1), (4, 4)], 0)
    assert act(state, params) == DOWN  # around the cube in between
    fenced = start(env, params, (1, 1), [(0, 0), (0, 1), (1, 0)], 0)
    assert act(fenced, params) in (RIGHT, DOWN)
    # The mean distance of two different cells of 5 x 5 is 10/3; ways around cubes are longer.
    np.testing.assert_allclose(played["length"][won].mean(), 10 / 3, atol=0.4)


@pytest.mark.parametrize("level", ["Trivial", "Extreme"])
def test_between_events_nothing_tells_where_cubes_are(level):
    """So a policy of the last observation does not know which cells to enter."""
    env, params = make_env(f"ColorCubes-{level}")
    seen = []
    for seed in (0, 1):
        state = env.reset_env(jax.random.key(seed), params)[1]
        place = jnp.int32([1, 1])
        state = state.replace(place_2=place, target=jnp.int32(1), shown=jnp.bool_(False))
        seen.append(env.observe(KEY, state, None, params))
    np.testing.assert_array_equal(*seen)


def test_time_limit_and_picture():
    env, params = make_env("ColorCubes-Extreme")
    assert time_limit(env, params) == 4 * 7 * 5
    state = start(env, params, (0, 0), [(6, 6), (3, 3), (5, 0), (0, 6), (2, 2)], 0)
    images = [
        env.render(state.replace(**change), params)
        for change in ({}, dict(shown=jnp.bool_(False)), dict(target=jnp.int32(1)))
    ]
    assert {image.shape for image in images} == {(9 * 24, 9 * 24, 3)}
    assert all((images[0] != image).any() for image in images[1:])
