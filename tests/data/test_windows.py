"""Windows of segments against loops over single steps."""

import jax
import numpy as np
import pytest

from gtrxl_jax.data import cut_segments, sample_segments, select
from gtrxl_jax.data.windows import STARTS, WEIGHTS, draw_windows, take_segments
from gtrxl_jax.segments import OPTIONAL
from tests.data.sets import FLAT, LENGTHS, NESTED, make_set

sample = jax.jit(sample_segments, static_argnums=(2, 3, 4, 5, 6))


def check_window(segments, b, trajectories, e, start):
    """Compare window b with the steps of episode e from `start`, and with zeros after its end."""
    _, num_segments, unroll = segments.mask.shape
    for n, k in np.ndindex(num_segments, unroll):
        t = start + n * unroll + k
        real = t < trajectories.length[e]
        assert segments.mask[b, n, k] == real
        got = jax.tree.map(lambda x, n=n, k=k: x[b, n, k], segments)
        if not real:
            assert not any(np.any(leaf) for leaf in jax.tree.leaves(got))
            continue
        jax.tree.map(
            lambda x, y, t=t: np.testing.assert_array_equal(x, y[e, t]),
            (got.observations, got.actions),
            (trajectories.observations, trajectories.actions),
        )
        assert got.timesteps == t
        rest = np.sum(trajectories.rewards[e, t : trajectories.length[e]], dtype=np.float64)
        np.testing.assert_allclose(got.returns_to_go, rest, rtol=1e-5, atol=1e-5)
        is_end = t == trajectories.length[e] - 1
        expected = {
            "rewards": trajectories.rewards[e, t],
            "last": is_end,
            "terminated": is_end and trajectories.terminated[e],
            "next_observations": jax.tree.map(
                lambda x, t=t: x[e, t + 1], trajectories.observations
            ),
        }
        for name in OPTIONAL:
            if getattr(segments, name) is not None:
                found = getattr(got, name)
                jax.tree.map(np.testing.assert_array_equal, found, expected[name])


@pytest.mark.parametrize("spaces", [FLAT, NESTED])
@pytest.mark.parametrize(("num_segments", "unroll"), [(2, 3), (1, 20), (4, 1)])
def test_windows_match_steps_and_zero_padding(spaces, num_segments, unroll):
    trajectories = make_set(spaces=spaces)
    # On the device, float64 becomes float32.
    trajectories = jax.device_get(jax.device_put(trajectories))
    windows = [(e, start) for e, n in enumerate(LENGTHS) for start in range(n)]
    episode_B, start_B = np.array(windows, np.int32).T
    take = jax.jit(take_segments, static_argnums=(3, 4, 5))
    segments = jax.device_get(
        take(trajectories, episode_B, start_B, num_segments, unroll, OPTIONAL)
    )
    for b, (e, start) in enumerate(windows):
        check_window(segments, b, trajectories, e, start)
    assert all(getattr(segments, name) is not None for name in OPTIONAL)


@pytest.mark.parametrize("needs", [(), ("rewards",), ("last", "terminated")])
def test_segments_have_only_what_is_needed(needs):
    segments = sample_segments(make_set(), jax.random.key(0), 2, 2, 3, needs=needs)
    assert {name for name in OPTIONAL if getattr(segments, name) is not None} == set(needs)


def where(segments, trajectories):
    """Return the episode and the start of each window, found by its first observation."""
    first = trajectories.observations[:, :-1, 0]
    found = [np.argwhere(first == o[0, 0, 0]) for o in np.asarray(segments.observations)]
    assert all(len(places) == 1 for places in found)
    return np.concatenate(found)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_sampling_frequencies(start, weight):
    trajectories = make_set()
    batch = 4000
    segments = jax.device_get(sample(trajectories, jax.random.key(0), batch, 2, 3, start, weight))
    assert segments.mask.shape == (batch, 2, 3)
    places = where(segments, trajectories)
    for b in range(0, batch, 100):
        check_window(segments, b, trajectories, *places[b])
    episodes = np.array(LENGTHS) / sum(LENGTHS) if weight == "length" else np.full(5, 1 / 5)
    for e, n in enumerate(LENGTHS):
        starts = places[places[:, 0] == e, 1]
        # The tolerance is five standard deviations of a binomial proportion.
        assert abs(len(starts) / batch - episodes[e]) < 5 * np.sqrt(0.25 / batch)
        if start == "episode":
            assert not starts.any()
        else:
            shares = np.bincount(starts, minlength=n) / len(starts)
            assert len(shares) == n
            places_N = np.ones(n)
            if start == "covering":
                places_N[0] = 2 * 3
            expected_N = places_N / places_N.sum()
            assert abs(shares - expected_N).max() < 5 * np.sqrt(0.25 / len(starts))


def test_windows_depend_on_key():
    trajectories = make_set()
    draws = [
        sample(trajectories, jax.random.key(seed), 8, 2, 3, "uniform", "length")
        for seed in (0, 0, 1)
    ]
    jax.tree.map(np.testing.assert_array_equal, draws[0], draws[1])
    assert (draws[0].observations != draws[2].observations).any()


def test_data_of_equal_shapes_compile_once():
    traced = 0

    @jax.jit
    def draw(trajectories, key):
        nonlocal traced
        traced += 1
        return sample_segments(trajectories, key, 4, 2, 3)

    for seed in range(3):
        draw(make_set(seed=seed), jax.random.key(seed))
    assert traced == 1


def test_x64_mode_and_vmap(x64):
    trajectories = make_set()

    def one(key):
        return sample_segments(trajectories, key, 4, 2, 3, "uniform", "length")

    segments = jax.vmap(one)(jax.random.split(jax.random.key(0), 3))
    assert segments.observations.shape == (3, 4, 2, 3, 2)
    assert segments.timesteps.dtype == np.int32
    assert segments.returns_to_go.dtype == np.float32


@pytest.mark.parametrize(("num_segments", "unroll"), [(2, 3), (1, 12), (3, 2), (2, 50)])
def test_cut_segments_covers_steps_in_order(num_segments, unroll):
    trajectories = make_set()
    size = num_segments * unroll
    segments = jax.device_get(cut_segments(trajectories, num_segments, unroll))
    expected = [(e, start) for e, n in enumerate(LENGTHS) for start in range(0, n, size)]
    assert len(segments.mask) == len(expected)
    assert segments.mask.sum() == sum(LENGTHS)
    for b, (e, start) in enumerate(expected):
        check_window(segments, b, trajectories, e, start)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 2, 3), ValueError, "batch must be at least 1, got 0"),
        ((4, 0, 3), ValueError, "segments must be at least 1, got 0"),
        ((4, 2, -1), ValueError, "unroll must be at least 1, got -1"),
        ((4, 2, 1.5), TypeError, "unroll must be a whole number, got 1.5"),
        ((True, 2, 3), TypeError, "batch must be a whole number, got True"),
        ((4, 2, 3, "episodes"), ValueError, "unknown start 'episodes': did you mean 'episode'"),
        ((4, 2, 3, "uniform", "lengths"), ValueError, "unknown weight 'lengths'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        sample_segments(make_set(), jax.random.key(0), *arguments)


def test_chosen_episodes_match_set_of_them():
    whole, chosen, key = make_set(), np.array([3, 1]), jax.random.key(0)
    for start in STARTS:
        for weight in WEIGHTS:
            of_all = sample_segments(whole, key, 64, 2, 3, start, weight, chosen)
            of_them = sample_segments(select(whole, chosen), key, 64, 2, 3, start, weight)
            jax.tree.map(np.testing.assert_array_equal, of_all, of_them)


def test_length_weight_with_uneven_episodes():
    length_E = np.array([1] * 7 + [993], np.int32)
    key = jax.random.key(0)
    episode_B, start_B = draw_windows(length_E, key, 5000, 6, "uniform", "length")
    assert (start_B < length_E[episode_B]).all()
    assert abs((episode_B == 7).mean() - 0.993) < 5 * np.sqrt(0.993 * 0.007 / 5000)


@pytest.mark.parametrize("start", ["uniform", "covering"])
def test_how_often_each_step_is_in_a_window(start):
    """Windows of 6 of 40 steps have the first steps seldom, or as often as others."""
    windows, steps, length = 20_000, 6, 40
    _, start_B = draw_windows(np.array([length]), jax.random.key(0), windows, steps, start)
    begun_T = np.bincount(start_B, minlength=length)
    share_T = np.convolve(begun_T, np.ones(steps))[:length] / windows
    places = length if start == "uniform" else length + steps - 1
    expected_T = np.minimum(np.arange(1, length + 1), steps) / places
    if start == "covering":
        expected_T[:steps] += (steps - 1) / places
        assert share_T.min() > 0.9 * share_T[steps:].mean()
    np.testing.assert_allclose(share_T, expected_T, atol=5 * np.sqrt(0.25 / windows))


def test_single_steps_are_covered_by_uniform_starts():
    uniform, covering = (
        draw_windows(np.array([9, 5]), jax.random.key(0), 64, 1, start)
        for start in ("uniform", "covering")
    )
    jax.tree.map(np.testing.assert_array_equal, uniform, covering)
