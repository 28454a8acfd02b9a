"""POBAX's Battleship against its rules in plain Python, with the same randomness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Stream, make_env
from gtrxl_jax.ops.legal import draw_choices
from gtrxl_jax.worlds.cells import _COLORS, Cell
from gtrxl_jax.worlds.fleet import new_game

FLEETS = {10: (5, 4, 3, 2), 5: (3, 2), 3: (2,)}


def squares(upright, row, column, length):
    return [(row + i, column) if upright else (row, column + i) for i in range(length)]


def placed(key, size):
    """Place the ships by listing all places where a ship fits."""
    taken = set()
    for length in FLEETS[size]:
        key, key_direction, key_place = jax.random.split(key, 3)
        upright = bool(jax.random.bernoulli(key_direction))
        places = [
            ship
            for row in range(size - (length - 1) * upright)
            for column in range(size - (length - 1) * (not upright))
            if not taken & set(ship := squares(upright, row, column, length))
        ]
        taken |= set(places[int(jax.random.randint(key_place, (), 0, len(places)))])
    return taken


@pytest.mark.parametrize("size", [5, 10])
def test_ships_are_placed_where_drawn(size):
    env, params = make_env(f"Battleship-{size}")
    keys = jax.random.split(jax.random.key(0), 8)
    _, state = jax.device_get(jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))(keys))
    for key, ships in zip(keys, state.ships, strict=True):
        assert set(zip(*np.nonzero(ships), strict=True)) == placed(key, size)


def test_shots_follow_rules():
    """Also repeated shots, which are not legal, and shots after the end; with both rewards."""
    env, params = make_env("Battleship-10")

    def step(carry, inputs):
        (state, dense), (action, by_oracle) = carry, inputs
        mine = params.replace(dense_reward=dense)
        action = jnp.where(by_oracle, env.oracle_action(state, params), action)
        observation, after, reward, terminated, _ = env.step_env(
            jax.random.key(0), state, action, mine
        )
        return (after, dense), (
            action,
            observation,
            reward,
            terminated,
            env.legal_actions(after, params),
        )

    def episode(key, dense):
        first, state = env.reset_env(key, params)
        inputs = jax.random.randint(key, (120,), 0, 100), jax.random.bernoulli(key, 0.2, (120,))
        return first, state, *jax.lax.scan(step, (state, dense), inputs)[1]

    dense_B = np.arange(6) < 3
    keys = jax.random.split(jax.random.key(0), 6)
    first, start, *record = jax.device_get(jax.jit(jax.vmap(episode))(keys, dense_B))
    np.testing.assert_array_equal(first, 0)
    repeated = ended = 0
    for b, dense in enumerate(dense_B):
        ships, shot = set(np.flatnonzero(start.ships[b]).tolist()), set()
        assert len(ships) == 14
        for action, observation, reward, terminated, legal in zip(
            *(x[b] for x in record), strict=True
        ):
            hit = int(action) in ships - shot
            repeated += int(action) in shot
            shot.add(int(action))
            ended += (ends := ships <= shot)
            assert observation.tolist() == [hit]
            assert terminated == ends
            assert reward == (hit if dense else 100 if ends else -1)
            assert set(np.flatnonzero(~legal).tolist()) == shot
    assert repeated
    assert ended


def test_legal_shots_end_the_game():
    env, params = make_env("Battleship-3")
    stream = Stream(env, params, num_envs=64)

    @jax.jit
    def run(key):
        def step(carry, key):
            state, timestep = carry
            action = draw_choices(key, timestep.legal, [9])[..., 0]
            state, timestep = stream.step(state, action)
            return (state, timestep), (state.episode, timestep.discount)

        return jax.lax.scan(step, stream.reset(key), jax.random.split(key, 30))[1]

    episode, discount = jax.device_get(run(jax.random.key(0)))
    done = episode.done
    assert done.sum() >= 2 * 64
    np.testing.assert_array_equal(discount, 1 - done)
    np.testing.assert_array_equal(episode.episode_return[done], 10 - episode.length[done])
    # The later of 2 squares among 9 in random order: 2 * 10 / 3 in the mean.
    assert abs(episode.length[done].mean() - 2 * 10 / 3) < 0.5


def test_picture_shows_hits_misses_and_ships():
    env, params = make_env("Battleship-3")
    guessed = np.array([[1, 1, 1], [0, 1, 0], [0, 1, 0]], bool)
    ships = np.array([[0, 0, 0], [0, 1, 1], [0, 0, 0]], bool)
    state = new_game(jnp.asarray(ships)).replace(guessed=guessed)
    image = env.render(state, params)
    colors = image.reshape(5, 24, 5, 24, 3)[1:-1, 12, 1:-1, 12]
    kinds = {(0, 0): Cell.FLOOR, (0, 1): Cell.UP, (1, 0): Cell.LIT, (1, 1): Cell.AGENT}
    for place in np.ndindex(3, 3):
        kind = kinds[int(state.ships[place]), int(guessed[place])]
        assert tuple(colors[place]) == tuple(_COLORS[kind])
