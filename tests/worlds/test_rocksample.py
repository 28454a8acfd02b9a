"""RockSample against its rules in plain Python, with the same randomness."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import make_env
from gtrxl_jax.worlds.cells import _COLORS, Cell

EPISODES, STEPS = 8, 150

# From POBAX's own code under the version of JAX that it pins, 0.6.2, by the seed of the run.
POBAX_MAPS = {
    (11, 2024): "5 8, 5 1, 7 7, 3 9, 1 9, 6 5, 5 0, 5 3, 6 8, 9 9, 2 6",
    (11, 2025): "8 6, 1 7, 10 2, 2 9, 7 4, 8 4, 6 9, 3 5, 5 3, 2 1, 6 3",
    (15, 2025): "14 4, 6 8, 11 7, 3 5, 11 13, 2 2, 4 11, 3 12, 1 8, 11 6, 10 11, 6 3, 13 7, 7 3, "
    "0 7",
    (15, 2026): "8 5, 10 6, 3 9, 5 6, 4 5, 9 6, 0 13, 7 11, 5 10, 9 10, 13 5, 5 0, 10 4, 2 7, 9 9",
}


class Rules:
    """The rules, by loops."""

    def __init__(self, size, rocks, place, good):
        self.size, self.rocks = size, [tuple(rock) for rock in rocks]
        self.row, self.column = place
        self.good = list(good)

    def step(self, action, uniform):
        """Return the observation, the reward and whether the episode ends."""
        reward, readings, top = 0.0, [0] * len(self.rocks), self.size - 1
        if action == 0:
            self.row = max(self.row - 1, 0)
        elif action == 1:
            self.column = min(self.column + 1, top)
        elif action == 2:
            self.row = min(self.row + 1, top)
        elif action == 3:
            self.column = max(self.column - 1, 0)
        elif action == 4 and (self.row, self.column) in self.rocks:
            rock = self.rocks.index((self.row, self.column))
            reward += 10 if self.good[rock] else -10
            self.good[rock] = False
        elif action > 4:
            rock = action - 5
            distance = math.dist(self.rocks[rock], (self.row, self.column))
            is_right = uniform < 0.5 + 0.5 * 2 ** (-distance / 20)
            readings[rock] = 1 if self.good[rock] == is_right else -1
        ends = self.column == top
        if ends:
            reward += 10
        return self.observe(readings), reward, ends

    def observe(self, readings):
        row, column = ([float(i == j) for i in range(self.size)] for j in (self.row, self.column))
        return row + column + readings


def play(env, params):
    """Take actions, every second one of them the oracle's; the play goes on behind the exit."""

    def step(state, inputs):
        key, action, by_oracle = inputs
        action = jnp.where(by_oracle, env.oracle_action(state, params), action)
        observation, after, reward, terminated, info = env.step_env(key, state, action, params)
        uniform, score = jax.random.uniform(key), info["discounted_return"]
        return after, (action, uniform, observation, reward, terminated, score)

    def episode(key):
        key_action, key_oracle, key_steps = jax.random.split(key, 3)
        inputs = (
            jax.random.split(key_steps, STEPS),
            jax.random.randint(key_action, (STEPS,), 0, env.num_actions),
            jax.random.bernoulli(key_oracle, shape=(STEPS,)),
        )
        first, state = env.reset_env(key, params)
        return first, state, *jax.lax.scan(step, state, inputs)[1]

    return jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES)))


def test_steps_follow_rules():
    size = 11
    env, params = make_env("RockSample-11-11", map_seed=2024)
    first, start, *record = play(env, params)
    seen = set()
    for b in range(EPISODES):
        rules = Rules(size, params.rock_K2.tolist(), start.place_2[b].tolist(), start.good_K[b])
        np.testing.assert_array_equal(first[b], rules.observe([0] * size))
        discounted_return = 0.0
        for t, (action, uniform, observation, reward, terminated, score) in enumerate(
            zip(*(x[b] for x in record), strict=True)
        ):
            before = list(rules.good)
            expected, value, ends = rules.step(int(action), float(uniform))
            np.testing.assert_array_equal(observation, expected)
            assert (reward, terminated) == (value, ends)
            discounted_return += 0.99**t * value
            np.testing.assert_allclose(score, discounted_return, rtol=1e-4, atol=1e-4)
            if action > 4:
                seen.add(f"check {before[action - 5] == (sum(expected[2 * size :]) > 0)}")
            seen |= {f"reward {value}", f"end {ends}"}
    assert {"check True", "check False", "reward 10.0", "reward -10.0", "end True"} <= seen


def test_reset_draws_cells_and_qualities_uniformly():
    env, params = make_env("RockSample-5-5")
    keys = jax.random.split(jax.random.key(0), 8000)
    _, state = jax.device_get(jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))(keys))
    count = np.zeros((5, 5))
    np.add.at(count, tuple(state.place_2.T), 1)
    np.testing.assert_array_equal(count[:, 4], 0)
    # Standard deviations of 19.5, and of 0.0056.
    np.testing.assert_allclose(count[:, :4], 400, atol=90)
    np.testing.assert_allclose(state.good_K.mean(0), 0.5, atol=0.025)
    np.testing.assert_allclose(np.corrcoef(state.good_K.T), np.eye(5), atol=0.06)


@pytest.mark.parametrize(("size", "seed"), POBAX_MAPS)
def test_maps_are_those_of_pobax(size, seed):
    env, params = make_env(f"RockSample-{size}-{size}", map_seed=seed)
    rocks = [[int(x) for x in rock.split()] for rock in POBAX_MAPS[size, seed].split(", ")]
    np.testing.assert_array_equal(params.rock_K2, rocks)


def test_oracle_samples_all_good_rocks_of_any_map():
    """Other maps and rewards are other parameters of the same program."""
    env, params = make_env("RockSample-7-8")
    rock_MK2 = np.stack([make_env("RockSample-7-8", map_seed=s)[1].rock_K2 for s in range(3)])
    assert len(np.unique(rock_MK2, axis=0)) == 3

    def episode(rock_K2, reward, key):
        mine = params.replace(rock_K2=rock_K2, good_rock_reward=reward)

        def step(carry, _):
            state, going = carry
            action = env.oracle_action(state, mine)
            _, after, reward, terminated, _ = env.step_env(key, state, action, mine)
            return (after, going & ~terminated), jnp.where(going, reward, 0)

        state = env.reset_env(key, mine)[1]
        (_, going), reward_T = jax.lax.scan(step, (state, jnp.bool_(True)), length=9 * 14)
        return going, reward_T.sum(), state.good_K.sum()

    maps = jax.vmap(episode, (0, 0, None))
    reward_M, keys = jnp.array([10.0, 3.0, 1.0]), jax.random.split(jax.random.key(1), 16)
    going, total, good = jax.jit(jax.vmap(maps, (None, None, 0)))(rock_MK2, reward_M, keys)
    assert not going.any()
    np.testing.assert_allclose(total, 10 + np.asarray(good) * np.asarray(reward_M))


def test_time_limit_truncates():
    env, params = make_env("RockSample-5-5", max_steps_in_episode=3)
    state = env.reset_env(jax.random.key(0), params)[1]
    for late, time in ((False, 2), (True, 3)):
        assert env.is_truncated(state.replace(time=jnp.int32(time)), params) == late


def test_picture_shows_rocks_agent_and_exit():
    env, params = make_env("RockSample-7-8")
    _, state = env.reset_env(jax.random.key(4), params)
    image = env.render(state, params)
    colors = image.reshape(9, 24, 9, 24, 3)[1:-1, 12, 1:-1, 12]
    for row in range(7):
        for column in range(7):
            kind = Cell.LIT if column == 6 else Cell.FLOOR
            for rock, good in zip(params.rock_K2, state.good_K, strict=True):
                if tuple(rock) == (row, column):
                    kind = Cell.UP if good else Cell.DOWN
            if tuple(state.place_2.tolist()) == (row, column):
                kind = Cell.AGENT
            assert tuple(colors[row, column]) == tuple(_COLORS[kind])


@pytest.mark.parametrize(
    ("rock_K2", "message"),
    [
        ([[0, 0]], r"have the shape \(2, 2\).*got \(1, 2\)"),
        ([[0, 0], [5, 1]], "be different cells, of a row from 0 to 4 and a column from 0 to 3, be"),
        ([[0, 0], [1, 4]], r"be .*; got \[\[0, 0\], \[1, 4\]\]"),
        ([[0, 0], [-1, 1]], "be different cells"),
        ([[2, 1], [2, 1]], "be different cells"),
    ],
)
def test_rocks_at_other_places_raise(rock_K2, message):
    env, params = make_env("RockSample-5-5", num_rocks=2, rock_K2=np.array(rock_K2))
    with pytest.raises(ValueError, match=f"rock_K2 must {message}"):
        env.reset_env(jax.random.key(0), params)
