"""Trajectories: returns-to-go, concatenation, division and validation."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.data import (
    check,
    concatenate,
    dataset_spaces,
    held_out,
    one_episode,
    returns_to_go,
    select,
)
from tests.data.sets import FLAT, LENGTHS, NESTED, make_episode, make_set, with_value


@pytest.mark.parametrize("jit", [False, True])
def test_returns_to_go_match_reference(jit):
    rng = np.random.default_rng(0)
    rewards_ET = rng.normal(size=(4, 7)).astype(np.float32)  # the padding is not 0
    length_E = np.array([7, 1, 4, 6], np.int32)
    expected_ET = np.zeros((4, 7))
    for e, n in enumerate(length_E):
        for t in range(n):
            expected_ET[e, t] = np.sum(rewards_ET[e, t:n], dtype=np.float64)
    function = jax.jit(returns_to_go) if jit else returns_to_go
    result_ET = function(rewards_ET, length_E)
    assert result_ET.dtype == np.float32
    np.testing.assert_allclose(result_ET, expected_ET, rtol=1e-5, atol=1e-6)


def test_returns_to_go_ignore_padding():
    rewards_ET = np.array([[1.0, 2.0, np.nan]], np.float32)
    np.testing.assert_array_equal(returns_to_go(rewards_ET, np.array([2])), [[3.0, 2.0, 0.0]])


@pytest.mark.parametrize("spaces", [FLAT, NESTED])
def test_an_episode_of_wider_types_is_that_of_its_spaces(spaces):
    """NumPy's own types are of 64 bits."""
    expected = make_episode(5, spaces)

    def widen(x):
        wide = {"f": np.float64, "i": np.int64}.get(x.dtype.kind, x.dtype)
        return np.asarray(x[0]).astype(wide)

    arrays = jax.tree.map(widen, (expected.observations, expected.actions, expected.rewards))
    made = one_episode(*arrays, terminated=True, spaces=spaces)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    lists = one_episode(arrays[0], arrays[1], list(arrays[2]), terminated=False, spaces=spaces)
    assert not lists.terminated[0]


@pytest.mark.usefixtures("unchecked")  # the package's own errors
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros((3, 1))}, r"rewards have shape \(1, 3, 1\), not \[E, T\]"),
        ({"rewards": [0, 0, np.nan]}, "episode 0, step 2: rewards is nan"),
        (
            {"observations": np.zeros((3, 2))},
            "observations has 3 steps for 3 actions: pass 4, with the last one",
        ),
        ({"rewards": np.zeros(4)}, "actions has 3 steps for 4 rewards: pass one of each for each"),
        (
            {"terminated": np.zeros(3, bool)},
            r"terminated must be one bool for the episode, not of shape \(3,\): pass its last",
        ),
        ({"terminated": None}, "terminated must be one bool for the episode, not None"),
        ({"terminated": 0.5}, "terminated must be one bool for the episode, not 0.5"),
        ({"spaces": (0, 1)}, r"spaces must be of type Spaces, not tuple: dataset_spaces\(obs"),
        ({"observations": np.zeros((4, 3))}, r"observations are float64\[3\], but one of"),
        ({"actions": [0.5, 0.0, 0.0]}, r"actions are float64\[\], but one of their space is int32"),
        ({"actions": [0, 1, 7]}, "episode 0, step 2: actions is 7"),
    ],
)
def test_an_episode_that_does_not_fit_its_spaces(change, message):
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    episode = {
        "observations": np.zeros((4, 2)),
        "actions": [0, 1, 2],
        "rewards": [1, 0, 0],
        "terminated": True,
        "spaces": dataset_spaces(box, gymnasium.spaces.Discrete(3)),
    }
    with pytest.raises((TypeError, ValueError), match=message):
        one_episode(**(episode | change))


@pytest.mark.parametrize("spaces", [FLAT, NESTED])
def test_concatenate_keeps_episodes_and_pads(spaces):
    episodes = [make_episode(n, spaces, seed=e) for e, n in enumerate(LENGTHS)]
    whole = concatenate(episodes)
    check(whole)
    assert (whole.num_episodes, whole.max_length) == (5, 12)
    for e, episode in enumerate(episodes):
        n = LENGTHS[e]

        def same(joined, alone, e=e):
            size = alone.shape[1]
            np.testing.assert_array_equal(joined[e, :size], alone[0])
            assert not joined[e, size:].any()

        jax.tree.map(same, whole.observations, episode.observations)
        same(whole.actions, episode.actions)
        same(whole.rewards, episode.rewards)
        assert (whole.length[e], whole.terminated[e]) == (n, n % 2 == 1)


def test_concatenate_requires_equal_spaces():
    with pytest.raises(ValueError, match="the same spaces"):
        concatenate([make_set(spaces=FLAT), make_set(spaces=NESTED)])
    with pytest.raises(ValueError, match="at least one set"):
        concatenate([])


def test_select_leaves_original_unchanged():
    whole = make_set()
    before = jax.tree.map(np.copy, whole)
    chosen = select(whole, np.array([3, 0]))
    np.testing.assert_array_equal(chosen.length, [12, 3])
    np.testing.assert_array_equal(chosen.rewards, whole.rewards[[3, 0]])
    assert select(whole, whole.terminated).num_episodes == whole.terminated.sum()
    jax.tree.map(np.testing.assert_array_equal, whole, before)


def test_fraction_of_each_length_is_held_out():
    length = np.random.default_rng(0).permutation(np.repeat([3, 5, 9], [10, 20, 30]))
    marked = held_out(length, 0.1, seed=0)
    assert [marked[length == n].sum() for n in (3, 5, 9)] == [1, 2, 3]
    np.testing.assert_array_equal(marked, held_out(length, 0.1, seed=0))
    assert np.any(marked != held_out(length, 0.1, seed=1))
    assert not held_out(length, 0.0, seed=0).any()


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("number", [1, 2, 7, 100])
def test_fraction_is_rounded_down(fraction, number):
    assert held_out(np.ones(number, int), fraction, 0).sum() == int(number * fraction)


def test_rounding_of_the_fraction_does_not_count():
    assert held_out(np.ones(100, int), 0.29, 0).sum() == 29


@pytest.mark.parametrize("fraction", [1.0, -0.5, float("nan")])
def test_fraction_out_of_range_raises(fraction):
    with pytest.raises(ValueError, match="fraction must be at least 0 and below 1"):
        held_out(np.ones(5, int), fraction, 0)


def test_set_is_divided():
    whole = make_set(range(1, 21))
    marked = held_out(whole.length, 0.25, 0)
    training, validation = select(whole, ~marked), select(whole, marked)
    assert validation.num_episodes == 5
    assert sorted([*training.length, *validation.length]) == list(range(1, 21))


def test_padding_is_not_checked():
    whole = make_set()
    check(with_value("rewards", (0, 3), np.nan)(whole))
    check(with_value("observations", (0, 4), np.nan)(whole))
    check(with_value("actions", (0, 3), 99)(whole))


def test_equal_spaces_and_shapes_compile_once():
    traced = 0

    @jax.jit
    def total(trajectories):
        nonlocal traced
        traced += 1
        return jnp.sum(returns_to_go(trajectories.rewards, trajectories.length)[:, 0])

    one, other = make_set(seed=0), make_set(seed=100)
    assert total(one) != total(other)
    assert total(jax.device_put(other)) == total(other)
    assert traced == 1
