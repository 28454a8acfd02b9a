"""The worlds of Numpad against naive ones in Python, and their oracles and explorers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import ExplorerPolicy, OraclePolicy
from gtrxl_jax.envs import Stream, make_env, time_limit
from tests.worlds.test_numpad_sequence import NaivePads

WORLDS = ("Numpad-v0", "NumpadDiscrete-v0")
KEY = jax.random.key(0)


def play(env, params, act, batch, steps):
    """Return the first state `[B]`, and what follows each action, `[B, T]`.

    `act` maps (state, key) to an action.
    """

    def episode(key):
        key, key_reset = jax.random.split(key)
        first, state = env.reset_env(key_reset, params)

        def step(state, key):
            action = act(state, key)
            observation, state, reward, terminated, info = env.step_env(key, state, action, params)
            return state, (action, observation, state, reward, terminated, info)

        return (first, state), jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(0), batch)
    return jax.device_get(jax.jit(jax.vmap(episode))(keys))


def oracle_of(env, params):
    return lambda state, key: env.oracle_action(state, params)


def mostly_oracle(env, params, sample):
    """Return a player that follows the oracle, except for a tenth of its actions."""

    def act(state, key):
        is_oracle = jax.random.bernoulli(key, 0.9)
        return jnp.where(is_oracle, env.oracle_action(state, params), sample(key))

    return act


@pytest.mark.parametrize("size", [2, 4])
def test_grid_matches_naive_grid(size):
    env, params = make_env("NumpadDiscrete-v0", size=size)
    act = mostly_oracle(env, params, lambda key: jax.random.randint(key, (), 0, 8, jnp.int32))
    (first_B, state_B), played = play(env, params, act, batch=16, steps=100)
    action_BT, observation_BT, _, reward_BT, terminated_BT, info = played
    for b in range(16):
        pads = NaivePads(np.argsort(state_B.sequence.rank[b]))
        row, column = divmod(int(state_B.pad[b]), size)
        assert np.flatnonzero(first_B[b]).tolist() == [row * size + column]
        for t in range(100):
            down, right = divmod(int(action_BT[b, t]) + (action_BT[b, t] > 3), 3)
            reward = 0
            if 0 <= row + down - 1 < size and 0 <= column + right - 1 < size:
                row, column = row + down - 1, column + right - 1
                reward = pads.press(row * size + column)
            shown = [row * size + column, *sorted(size**2 + pad for pad in pads.lit)]
            assert np.flatnonzero(observation_BT[b, t]).tolist() == shown
            assert reward_BT[b, t] == reward
            assert info["sequences"][b, t] == pads.completed
            assert info["success"][b, t] == (pads.completed > 0)
    assert info["success"][:, -1].mean() > 0.2
    assert not terminated_BT.any()


def roll(position, velocity, action, size):
    """Return position and velocity after a quarter of an action, in float64."""
    (x, y, z), (u, v, w) = position, velocity
    if z <= 0:
        u, v = (
            (speed + 0.05 * 2.5 * push) / 1.125 for speed, push in ((u, action[0]), (v, action[1]))
        )
        w = 1.25 * max(action[2], 0)
    else:
        w -= 0.125
    x, y, z = x + 0.05 * u, y + 0.05 * v, z + 0.05 * w
    edge = size / 2 - 0.2
    if abs(x) > edge:
        x, u = np.copysign(edge, x), 0.0
    if abs(y) > edge:
        y, v = np.copysign(edge, y), 0.0
    if z < 0:
        z, w = 0.0, 0.0
    return (x, y, z), (u, v, w)


def test_sphere_matches_naive_sphere():
    size = 3
    env, params = make_env("Numpad-v0", size=size)

    def sample(key):
        return jax.random.uniform(key, (3,), jnp.float32, -1.2, 1.2)

    act = mostly_oracle(env, params, sample)
    (first_B, state_B), played = play(env, params, act, batch=12, steps=150)
    action_BT, observation_BT, state_BT, reward_BT, _, info = played
    np.testing.assert_array_equal(first_B[:, 2:], 0)
    presses = 0
    for b in range(12):
        pads = NaivePads(np.argsort(state_B.sequence.rank[b]))
        touched = int(state_B.pad[b])
        row, column = divmod(touched, size)
        position = (column - (size - 1) / 2, row - (size - 1) / 2, 0.0)
        velocity = (0.0, 0.0, 0.0)
        np.testing.assert_allclose(first_B[b, :2], position[:2])
        for t in range(150):
            before, reward = velocity, 0
            for _ in range(4):
                action = np.clip(action_BT[b, t].astype(np.float64), -1, 1)
                position, velocity = roll(position, velocity, action, size)
                if position[2] > 0:
                    continue
                under = -1
                for pad in range(size**2):
                    row, column = divmod(pad, size)
                    center = (column - (size - 1) / 2, row - (size - 1) / 2)
                    if all(abs(p - c) <= 0.35 for p, c in zip(position, center, strict=False)):
                        under = pad
                if under >= 0 and under != touched:
                    reward += pads.press(under)
                    presses += 1
                touched = under
            acceleration = np.subtract(velocity, before) / 0.2
            motion = np.concatenate([position, velocity, acceleration])
            np.testing.assert_allclose(observation_BT[b, t, :9], motion, rtol=1e-3, atol=1e-3)
            assert np.flatnonzero(observation_BT[b, t, 9:]).tolist() == sorted(pads.lit)
            assert reward_BT[b, t] == reward
            assert state_BT.pad[b, t] == touched
    assert presses > 100
    assert info["success"][:, -1].any()


@pytest.fixture(scope="module")
def rolled():
    """Return a function of actions: the states on the middle row of 3 x 3 pads."""
    env, default = make_env("Numpad-v0", size=3)
    step = jax.jit(lambda state, action, params: env.step_env(KEY, state, action, params)[1])

    def states(actions, x=-0.5, speed=1.0, **parameters):
        position = jnp.array([x, 0, 0], jnp.float32)
        state = env.reset_env(KEY, default)[1].replace(
            position=position,
            velocity=jnp.array([speed, 0, 0], jnp.float32),
            pad=env._touched_pad(position, jnp.int32(-1)),
        )
        played = []
        for action in actions:
            state = step(state, jnp.asarray(action, jnp.float32), default.replace(**parameters))
            played.append(jax.device_get(state))
        return played

    return states


def test_jump_leads_over_pad(rolled):
    on_ground = rolled([(1, 0, 0)] * 6)
    assert [int(state.pad) for state in on_ground] == [4, 4, 4, 4, -1, 5]
    jumped = rolled([(1, 0, 1)] + [(-1, 1, 0)] * 5)
    assert [int(state.pad) for state in jumped[:5]] == [-1] * 5
    assert all(state.position[2] > 0 for state in jumped[:5])
    # In the air, pushing neither slows it down nor turns it.
    np.testing.assert_allclose(jumped[4].position[:2], [0.5, 0], atol=0.02)
    assert jumped[5].position[2] == 0
    assert jumped[5].velocity[1] > 0


def test_jump_in_place_presses_nothing(rolled):
    jumped = rolled([(0, 0, 1)] * 20, x=0.0, speed=0.0)
    assert max(state.position[2] for state in jumped) > 0.3
    assert [int(state.pad) for state in jumped] == [4] * 20
    for state in jumped:
        assert (state.sequence.lit, state.sequence.rewarded) == (0, 0)


def test_friction_and_walls_stop_sphere(rolled):
    stopped = rolled([(0, 0, 0)] * 20)[-1]
    np.testing.assert_allclose(stopped.velocity, 0, atol=1e-3)
    at_wall = rolled([(1, 0, 0)] * 20)[-1]
    np.testing.assert_allclose(at_wall.position, [1.3, 0, 0], atol=1e-6)
    assert at_wall.velocity[0] == 0
    fast = rolled([(1, 0, 0)] * 4, x=-1.3, speed=0.0, push=10.0)[-1]
    slow = rolled([(1, 0, 0)] * 4, x=-1.3, speed=0.0)[-1]
    assert fast.position[0] > slow.position[0] + 1


def distance(a, b, size):
    return max(abs(a // size - b // size), abs(a % size - b % size))


@pytest.mark.parametrize("size", [2, 3])
def test_grid_oracle_is_optimal(size):
    """It needs a move for each pad, and only the shortest paths to the first pad besides."""
    env, params = make_env("NumpadDiscrete-v0", size=size)
    (_, state_B), (*_, reward_BT, _, _) = play(
        env, params, oracle_of(env, params), batch=64, steps=100
    )
    for rank, pad, reward_T in zip(state_B.sequence.rank, state_B.pad, reward_BT, strict=True):
        path = np.argsort(rank)
        expected = []
        while len(expected) < 100:
            to_first = distance(pad, path[0], size) or 2
            expected += [0] * (to_first - 1) + [1] * size**2
            pad = path[-1]
        assert reward_T.tolist() == expected[:100]


@pytest.mark.parametrize(("size", "least"), [(2, 65), (4, 70)])
def test_sphere_oracle_makes_no_mistake(size, least):
    env, params = make_env("Numpad-v0", size=size)
    _, (_, _, state_BT, reward_BT, _, _) = play(
        env, params, oracle_of(env, params), batch=64, steps=500
    )
    cleared_BT = np.diff(state_BT.sequence.lit, axis=1) < 0
    completed_BT = np.diff(state_BT.sequence.completed, axis=1) > 0
    np.testing.assert_array_equal(cleared_BT, completed_BT)
    assert (reward_BT.sum(axis=1) >= least).all()


@dataclasses.dataclass(frozen=True)
class Recorder(Policy):
    """Acts like another policy, whose state it also returns."""

    policy: Policy

    def init(self, params, batch_size):
        return self.policy.init(params, batch_size)

    def act(self, params, state, timestep, key):
        state, action, _ = self.policy.act(params, state, timestep, key)
        return state, action, state


def explore(env, params, steps):
    stream = Stream(env, params, 32)
    policy = Recorder(ExplorerPolicy(env, params))
    run = jax.jit(
        lambda key: rollout(
            policy, (), stream, begin(policy, (), stream, key), key, steps, lambda s: s.env
        )[1]
    )
    return jax.device_get(run(KEY))


@pytest.mark.parametrize(
    ("name", "size", "mean"), [("NumpadDiscrete-v0", 4, 33), ("Numpad-v0", 3, 62)]
)
def test_explorer_finds_and_remembers_sequences(name, size, mean):
    env, params = make_env(name, size=size)
    limit = int(time_limit(env, params))
    played = explore(env, params, limit)
    states, notes = played.kept, played.extras
    # What it believes is true, at every step.
    is_known = notes.rank < size**2
    np.testing.assert_array_equal(notes.rank[is_known], states.sequence.rank[is_known])
    np.testing.assert_array_equal(is_known.sum(axis=2), notes.known)
    following = states.sequence.rank == notes.known[..., None]
    assert not (notes.excluded & following).any()
    # Once a round is completed, no lit pad is ever cleared by mistake.
    lit, completed = states.sequence.lit, states.sequence.completed
    is_mistake = (np.diff(lit, axis=1) < 0) & (np.diff(completed, axis=1) == 0)
    assert is_mistake.any()
    assert not is_mistake[completed[:, 1:] > 0].any()
    # The time limit truncates.
    np.testing.assert_array_equal(played.timesteps.last.argmax(axis=1), limit)
    np.testing.assert_array_equal(played.timesteps.discount, 1)
    assert abs(played.episodes.episode_return[:, -1].mean() - mean) < 5


def test_explorer_forgets_at_episode_starts():
    played = explore(*make_env("NumpadDiscrete-v0", size=2), 150)
    assert played.timesteps.first[:, 101].all()
    assert (played.extras.known[:, 100] == 3).all()
    assert (played.extras.known[:, 101] == 0).all()
    assert played.episodes.success[:, 149].all()


@pytest.mark.parametrize("name", WORLDS)
def test_policies_need_their_methods(name):
    env, params = make_env("CartPole-v1")
    with pytest.raises(ValueError, match="CartPole has no explorer_action: use another policy"):
        ExplorerPolicy(env, params)
    env, params = make_env(name)
    assert OraclePolicy(env, params).is_privileged
    assert not ExplorerPolicy(env, params).is_privileged


@pytest.mark.parametrize("name", WORLDS)
def test_observations_do_not_reveal_sequence(name):
    """Two sequences look the same until a pad is pressed in which they differ."""
    env, params = make_env(name, size=3)
    _, state = env.reset_env(KEY, params)

    def hidden(*path):
        rank = jnp.asarray(np.argsort(path), jnp.int32)
        return state.replace(sequence=dataclasses.replace(state.sequence, rank=rank))

    @jax.jit
    def play_both(states):
        """Act in both worlds as the oracle does in the first."""

        def step(states, _):
            action = env.oracle_action(states[0], params)
            stepped = [env.step_env(KEY, state, action, params) for state in states]
            return [state for _, state, *_ in stepped], [
                (observation, reward, state.sequence.lit)
                for observation, state, reward, *_ in stepped
            ]

        first = [env.observe(KEY, state, None, params) for state in states]
        return first, jax.lax.scan(step, states, length=60)[1]

    states = [hidden(0, 1, 2, 5, 4, 3, 6, 7, 8), hidden(0, 1, 2, 5, 8, 7, 6, 3, 4)]
    first, (one, other) = jax.device_get(play_both(states))
    differs = int(np.argmax(one[2] == 5))
    assert differs >= 4
    np.testing.assert_array_equal(*first)
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine[:differs], its[:differs])
    assert (one[0][differs] != other[0][differs]).any()


def test_parameters_are_traced():
    """One program serves all parameters, also a batch of them."""
    env, params = make_env("Numpad-v0", size=2)
    traces = []

    @jax.jit
    def height(params):
        traces.append(params)
        _, state = env.reset_env(KEY, params)
        _, state, *_ = env.step_env(KEY, state, jnp.ones(3, jnp.float32), params)
        return state.position[2], env.is_truncated(state, params)

    low, _ = height(params)
    high, truncated = height(params.replace(jump=2.5, max_steps_in_episode=1))
    assert len(traces) == 1
    assert high > low > 0
    assert truncated
    batch = params.replace(jump=jnp.array([1.25, 2.5]), gravity=jnp.array([2.5, 2.5]))
    axes = jax.tree.map(lambda x: 0 if jnp.ndim(x) else None, batch)
    both, _ = jax.vmap(height, in_axes=(axes,))(batch)
    np.testing.assert_allclose(both, [low, high], rtol=1e-6)


@pytest.mark.parametrize("name", WORLDS)
def test_render_shows_pads_and_player(name):
    env, params = make_env(name, size=3)
    _, state = env.reset_env(KEY, params)
    is_mid = state.replace(sequence=dataclasses.replace(state.sequence, lit=jnp.int32(4)))
    dark, lit = env.render(state, params), env.render(is_mid, params)
    assert dark.shape == (192, 192, 3)
    assert dark.dtype == np.uint8
    green, red = (
        lambda image, color=color: (image == color).all(-1).sum()
        for color in ((88, 166, 92), (214, 69, 65))
    )
    assert green(dark) == 0
    assert green(lit) > 4 * 30**2
    assert red(dark) == red(lit) > 300
    if name == "Numpad-v0":
        jumping = state.replace(position=state.position.at[2].set(0.3))
        assert red(env.render(jumping, params)) > red(dark)


def test_memory_of_an_environment():
    """The sizes that the documentation states, in bytes."""
    sizes = {}
    for name in WORLDS:
        for size in (2, 3, 4):
            env, params = make_env(name, size=size)
            state = jax.eval_shape(lambda env=env, params=params: env.reset_env(KEY, params)[1])
            leaves = jax.tree.leaves(state)
            sizes[name, size] = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert [sizes["Numpad-v0", size] for size in (2, 3, 4)] == [72, 92, 120]
    assert [sizes["NumpadDiscrete-v0", size] for size in (2, 3, 4)] == [36, 56, 84]
