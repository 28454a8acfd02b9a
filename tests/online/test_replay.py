"""The replay of segments, against a list of Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.online import replay as replays

E, C = 2, 5


def filled(rollouts, each=1):
    """Return a replay after some rollouts of `each` segments, numbered from 0 in order."""
    replay = replays.make_replay({"x": jnp.zeros((E * each, 3))}, E, C, jnp.float32)
    insert = jax.jit(replays.insert)
    for n in range(rollouts):
        number_EK = np.arange(E)[:, None] * 100 + n * each + np.arange(each)
        x = np.broadcast_to(number_EK.reshape(-1, 1), (E * each, 3))
        replay = insert(replay, {"x": jnp.asarray(x, jnp.float32)}, jnp.ones(E * each))
    return replay


@pytest.mark.parametrize(("rollouts", "each"), [(0, 1), (3, 1), (5, 1), (12, 1), (4, 3)])
@pytest.mark.parametrize("history", [0, 2])
def test_latest_segments_with_enough_before_them(rollouts, each, history):
    replay = filled(rollouts, each)
    number = rollouts * each
    kept = range(max(number - C, 0), number)
    assert int(replay.size) == len(kept)
    drawable = replays.is_drawable(replay, history)
    stored = np.asarray(replay.segments["x"])[:, drawable, 0]
    expected = list(kept)[history:]
    for e in range(E):
        assert sorted(stored[e] - 100 * e) == expected


def test_segments_before_one_are_those_of_its_environment():
    replay = filled(12)
    slot_EN, _ = jax.jit(replays.draw, static_argnums=(2, 3, 4))(
        replay, jax.random.key(0), 64, 2, 1.0
    )
    whole, before = (replays.take(replay, slot_EN - n)["x"][:, 0] for n in (0, 2))
    np.testing.assert_array_equal(before, whole - 2)
    assert set(np.asarray(whole)) == {9, 10, 11, 109, 110, 111}


def test_draws_follow_priorities():
    replay = filled(5)
    priority_EC = jnp.array([[1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 1.0, 1.0, 1.0, 0.0]])
    replay = replay.replace(priority_EC=priority_EC)
    slot_EN, probability_EN = replays.draw(replay, jax.random.key(0), 20_000, 1, 0.5)
    # The oldest has none before it.
    expected = np.sqrt(priority_EC[:, 1:])
    expected /= expected.sum(1, keepdims=True)
    for e in range(E):
        shares = np.bincount(slot_EN[e], minlength=C) / 20_000
        assert shares[0] == 0
        np.testing.assert_allclose(shares[1:], expected[e], atol=0.02)
        np.testing.assert_allclose(probability_EN[e], expected[e][slot_EN[e] - 1], atol=1e-3)


def test_new_priorities_are_of_the_taken():
    replay = filled(5)
    slot_EN = jnp.array([[0, 3], [2, 1]])
    after = replays.set_priorities(replay, slot_EN, jnp.array([7.0, 8.0, 9.0, 10.0]))
    expected = np.ones((E, C))
    expected[0, [0, 3]], expected[1, [2, 1]] = [7, 8], [9, 10]
    np.testing.assert_array_equal(after.priority_EC, expected)
