"""MiniGrid-Memory against the package minigrid, and its oracle, parameters and plots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minigrid.envs import MemoryEnv

from gtrxl_jax.envs import Stream, make_env, time_limit
from gtrxl_jax.worlds import MiniGridMemory
from gtrxl_jax.worlds.minigrid.layout import MiniGridParams, MiniGridState, cells, view
from gtrxl_jax.worlds.minigrid.memory import FORWARD, NORTH
from gtrxl_jax.worlds.minigrid.tiles import Kind

KINDS = {"key": Kind.KEY, "ball": Kind.BALL}
# minigrid's numbers of the kinds of cell.
NUMBERS = np.array([0, 1, 2, 5, 6])


def original(size, random_length, view_size, seed):
    """Return minigrid's environment after a reset."""
    env = MemoryEnv(size=size, random_length=random_length, agent_view_size=view_size)
    env.reset(seed=seed)
    return env


def state_of(theirs):
    """Return the state that equals that of minigrid's environment."""
    end, middle = int(theirs.success_pos[0]) - 1, theirs.height // 2
    in_view = theirs.agent_sees(1, middle - 1)
    numbers = dict(
        time=theirs.step_count,
        x=theirs.agent_pos[0],
        y=theirs.agent_pos[1],
        direction=theirs.agent_dir,
        end=end,
        cue=KINDS[theirs.grid.get(1, middle - 1).type],
        upper=KINDS[theirs.grid.get(end + 1, middle - 2).type],
    )
    return MiniGridState(
        **{name: np.int32(x) for name, x in numbers.items()},
        in_view=np.bool_(in_view),
        seen=np.bool_(in_view),
    )


def play(env, params, state, action_T):
    """Take all actions, also those after the end of an episode."""

    def step(state, action):
        observation, state, *outcome = env.step_env(jax.random.key(0), state, action, params)
        return state, (observation, *outcome, env.is_truncated(state, params))

    first = env.observe(jax.random.key(0), state, None, params)
    return first, jax.lax.scan(step, state, action_T)[1]


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


@pytest.mark.parametrize("view_size", [3, 7])
def test_random_actions_match_minigrid(view_size):
    """Mazes of several sizes in one batch, half of them close to the time limit."""
    env = MiniGridMemory(view_size=view_size, observation="symbolic")
    rng = np.random.default_rng(view_size)
    mazes, params, states = [], [], []
    for seed in range(24):
        size, random_length = (7, 9, 11, 13, 17)[seed % 5], seed % 3 == 0
        maze = original(size, random_length, view_size, seed)
        maze.step_count = seed % 2 * (maze.max_steps - 80)
        mazes.append(maze)
        params.append(MiniGridParams(size=np.int32(size), random_length=np.bool_(random_length)))
        states.append(state_of(maze))
    action_BT = rng.choice(7, (24, 100), p=[0.17, 0.17, 0.5, 0.04, 0.04, 0.04, 0.04])
    first_B, (seen_BT, reward_BT, ended_BT, info, cut_BT) = jax.device_get(
        jax.jit(jax.vmap(lambda *given: play(env, *given)))(
            stacked(params), stacked(states), jnp.asarray(action_BT, jnp.int32)
        )
    )
    ends = np.zeros(3, int)
    for b, maze in enumerate(mazes):
        np.testing.assert_array_equal(first_B[b], maze.gen_obs()["image"])
        for t, action in enumerate(action_BT[b]):
            observation, reward, terminated, truncated, _ = maze.step(action)
            np.testing.assert_array_equal(seen_BT[b, t], observation["image"])
            np.testing.assert_allclose(reward_BT[b, t], reward, atol=1e-6)
            assert (ended_BT[b, t], cut_BT[b, t]) == (terminated, truncated)
            success = terminated and tuple(maze.agent_pos) == maze.success_pos
            assert info["success"][b, t] == success
            ends += (success, terminated and not success, truncated)
    assert (ends > 5).all()  # the comparison has covered successes, failures and time limits


@pytest.mark.parametrize(("view_size", "tile_size"), [(3, 28), (5, 8), (7, 12)])
def test_images_match_minigrid(view_size, tile_size):
    env = MiniGridMemory(7, view_size=view_size, observation="rgb", tile_size=tile_size)
    params = env.default_params
    action_BT = np.random.default_rng(0).choice(3, (4, 40), p=[0.2, 0.3, 0.5])
    mazes = [original(7, False, view_size, seed) for seed in range(4)]
    states = stacked([state_of(maze) for maze in mazes])
    # Consecutive states, without the compilation of steps: those are compared above.
    key = jax.random.key(0)
    observe = jax.jit(jax.vmap(lambda state: env.observe(key, state, None, params)))
    shown = set()
    for t in range(action_BT.shape[1]):
        images = observe(states)
        for b, maze in enumerate(mazes):
            np.testing.assert_array_equal(images[b], maze.get_frame(True, tile_size, True))
            shown |= set(maze.gen_obs()["image"][..., 0].ravel().tolist())
            maze.step(action_BT[b, t])
        states = stacked([state_of(maze) for maze in mazes])
    assert shown == set(NUMBERS.tolist())
    assert images[0].shape == env.observation_space().shape


@pytest.mark.parametrize("direction", range(4))
def test_render_matches_minigrid(direction):
    env = MiniGridMemory(9)
    maze = original(9, False, 7, direction)
    maze.agent_dir = direction
    picture = env.render(state_of(maze), env.default_params)
    np.testing.assert_array_equal(picture, maze.get_frame(True, 32))


def test_widest_grid_is_cropped_around_agent():
    env, params = make_env("MiniGrid-Memory", size=501)
    state = state_of(original(13, False, 7, 0)).replace(end=np.int32(498), y=np.int32(250))
    middle = env.render(state.replace(x=np.int32(300)), params)
    start = env.render(state.replace(x=np.int32(1)), params)
    assert middle.shape == start.shape == (31 * 16, 31 * 16, 3)
    # The agent is in the window's center, or next to the wall on its left.
    for image, column in ((middle, 15), (start, 1)):
        red = (image[..., 0] > 200) & (image[..., 1] < 100)
        assert {c // 16 for c in np.nonzero(red)[1]} == {column}


@pytest.mark.parametrize(("size", "random_length"), [(7, False), (9, True), (17, True)])
def test_layouts_match_minigrid(size, random_length):
    """The same cells for the same draws, and the same draws occur, equally often."""
    env = MiniGridMemory(size, random_length)
    params = env.default_params
    x_XY, y_XY = np.indices((size, size))
    for seed in range(5):
        maze = original(size, random_length, 7, seed)
        kind_XY = cells(x_XY, y_XY, state_of(maze), params)
        np.testing.assert_array_equal(NUMBERS[np.asarray(kind_XY)], maze.grid.encode()[..., 0])
    keys = jax.random.split(jax.random.key(0), 1 << 14)
    state = jax.device_get(jax.jit(jax.vmap(lambda key: env.reset_env(key, params)[1]))(keys))
    ends = range(4, size - 2) if random_length else [size - 3]
    for end in ends:
        here = state.end == end
        assert abs(here.mean() * len(ends) - 1) < 0.15
        count = np.bincount(state.x[here], minlength=end + 1)
        assert count[0] == 0
        assert len(count) == end + 1
        assert count[1:].min() > 0.6 * here.sum() / end
    pairs, count = np.unique(np.stack([state.cue, state.upper]), axis=1, return_counts=True)
    assert pairs.T.tolist() == [[3, 3], [3, 4], [4, 3], [4, 4]]
    assert (np.abs(count / len(keys) - 0.25) < 0.02).all()
    assert (state.y == size // 2).all()
    assert not state.direction.any()


def test_one_hot_equals_symbolic_observation():
    key = jax.random.key(3)
    symbolic, flat = (
        jax.jit(MiniGridMemory(observation=form).reset_env)(key, MiniGridParams(size=9))[0]
        for form in ("symbolic", "one-hot")
    )
    one_hot = np.asarray(flat).reshape(7, 7, 5)
    np.testing.assert_array_equal(one_hot.sum(-1), 1)
    np.testing.assert_array_equal(NUMBERS[one_hot.argmax(-1)], symbolic[..., 0])


@pytest.mark.parametrize("view_size", [3, 5, 7])
@pytest.mark.parametrize("hidden", ["cue", "upper"])
def test_oracle_acts_on_what_it_has_seen(view_size, hidden):
    """Twin episodes, whose hidden objects differ, have the same actions until they look different.

    Otherwise, a model cannot learn to imitate it.
    """
    env, params = MiniGridMemory(view_size=view_size), MiniGridParams(size=13)

    def twins(key):
        def step(states, _):
            actions = [env.oracle_action(state, params) for state in states]
            seen = [env.observe(key, state, None, params) for state in states]
            moves = zip(states, actions, strict=True)
            new = [env.step_env(key, state, action, params)[1] for state, action in moves]
            return new, (jnp.all(seen[0] == seen[1]), actions[0] == actions[1])

        state = env.reset_env(key, params)[1]
        other = Kind.KEY + Kind.BALL - getattr(state, hidden)
        return jax.lax.scan(step, [state, state.replace(**{hidden: other})], length=30)[1]

    alike_ET, same_ET = jax.device_get(jax.vmap(twins)(jax.random.split(jax.random.key(0), 64)))
    alike_ET = np.logical_and.accumulate(alike_ET, axis=1)
    assert same_ET[alike_ET].all()
    assert not same_ET.all(axis=1).any()


@pytest.mark.parametrize("view_size", [3, 7])
def test_oracle_looks_and_solves_any_size(view_size):
    """Also after random actions, and all sizes in one compiled program."""
    env = MiniGridMemory(view_size=view_size)
    sizes = np.array([7, 9, 13, 21])

    def episode(size, key, detour):
        params = MiniGridParams(size=size)

        def step(carry, inputs):
            (state, going), (t, random) = carry, inputs
            action = jnp.where(t < detour, random, env.oracle_action(state, params))
            _, new, _, ended, info = env.step_env(key, state, action, params)
            return (new, going & ~ended), (state, going & ended, info)

        start = (env.reset_env(key, params)[1], jnp.bool_(True))
        inputs = jnp.arange(80), jax.random.randint(key, (80,), 0, 3)
        return jax.lax.scan(step, start, inputs)[1]

    run = jax.jit(jax.vmap(jax.vmap(episode, (None, 0, None)), (0, None, None)))
    keys = jax.random.split(jax.random.key(0), 64)
    state, last, info = jax.device_get(run(jnp.asarray(sizes), keys, 0))
    assert info["success"][last].all()
    actions = last.argmax(-1) + 1
    start, end = state.x[..., 0], sizes[:, None] - 3
    # Turn around until the cue is in view, if it is not, and then around again.
    seen_first = state.in_view[..., 0]
    turns = np.where(seen_first, 0, 4)
    back = np.where(seen_first, 0, np.maximum(start - view_size, 0))
    # A view of 3 shows the objects at the end only after a turn: left once, or three times.
    is_below = state.upper[..., 0] != state.cue[..., 0]
    looks = np.where(is_below & (view_size == 3), 2, 0)
    straight = end + 1 - start + 2 + looks
    assert (actions <= straight + 2 * back + turns).all()
    assert (actions[seen_first] == straight[seen_first]).all()

    state, last, info = jax.device_get(run(jnp.asarray(sizes), keys, 25))
    by_oracle = last & (np.arange(80) >= 25)
    assert ((last.sum(-1) == 1) & (by_oracle.sum(-1) <= 1)).all()
    assert by_oracle.sum() > 150
    assert info["success"][by_oracle].all()
    assert state.seen[by_oracle].all()
    shown = np.maximum.accumulate(state.in_view, axis=-1)
    np.testing.assert_array_equal(state.seen, shown)
    np.testing.assert_array_equal(info["cue_seen"][..., :-1], shown[..., 1:])
    assert not info["cue_seen"][..., 0].all()


def test_cap_on_steps_truncates_without_scaling_reward():
    env, params = make_env("MiniGrid-MemoryS9-v0", max_steps_in_episode=95)
    assert time_limit(env, params) == 95
    assert time_limit(env, params.replace(max_steps_in_episode=None)) == 405
    stream = Stream(env, params.replace(max_steps_in_episode=5), num_envs=2)

    @jax.jit
    def run(key):
        state, _ = stream.reset(key)
        turn = jnp.zeros(2, jnp.int32)
        return jax.lax.scan(lambda s, _: stream.step(s, turn), state, None, 6)[1]

    timestep = jax.device_get(run(jax.random.key(0)))
    np.testing.assert_array_equal(timestep.last.all(1), [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(timestep.discount, 1)
    assert timestep.first[5].all()

    # At the end of the corridor, facing the object.
    state = state_of(original(9, False, 7, 0))
    state = state.replace(x=np.int32(7), direction=np.int32(NORTH), upper=state.cue)
    _, _, reward, terminated, _ = jax.jit(env.step_env)(jax.random.key(0), state, FORWARD, params)
    assert terminated
    np.testing.assert_allclose(reward, 1 - 0.9 / 405, rtol=1e-6)


def test_small_state_and_one_program_for_sizes():
    env = MiniGridMemory()
    reset, step = jax.jit(env.reset_env), jax.jit(env.step_env)
    for size in (7, 501):
        params = MiniGridParams(size=size, max_steps_in_episode=95)
        _, state = reset(jax.random.key(0), params)
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == 30
        step(jax.random.key(0), state, jnp.int32(FORWARD), params)
    assert reset._cache_size() == step._cache_size() == 1


@pytest.mark.parametrize(
    ("name", "overrides", "chance"),
    [
        ("MiniGrid-MemoryS9-v0", {}, None),
        ("MiniGrid-MemoryS11-v0", {}, 0.5),
        ("MiniGrid-Memory", dict(size=9), None),
        ("MiniGrid-MemoryS7-v0", dict(view_size=3), 0.5),
        ("MiniGrid-MemoryS17Random-v0", {}, None),
        ("MiniGrid-MemoryS17Random-v0", dict(view_size=3), 0.5),
    ],
)
def test_chance_is_known_where_memory_is_required(name, overrides, chance):
    """The cue and the other objects are never in view together, or else chance is unknown."""
    env, params = make_env(name, **overrides)
    assert env.chance == chance
    end = 4 if params.random_length else params.size - 3
    state = state_of(original(params.size, False, 7, 0))
    x, direction = (jnp.asarray(z.ravel(), jnp.int32) for z in np.mgrid[1 : end + 2, :4])

    def together(x, direction):
        here = state.replace(x=x, direction=direction, end=jnp.int32(end))
        kind, column, _ = view(here, params, env.view_size)
        is_object = kind >= Kind.KEY
        return (is_object & (column == 1)).any() & (is_object & (column == end + 1)).any()

    assert jax.vmap(together)(x, direction).any() == (chance is None)
