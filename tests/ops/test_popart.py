"""PopArt against rlax and a naive moving average in float64."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gtrxl_jax.ops import popart

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from a dependency of rlax
    import rlax

B, T, N = 8, 5, 4


def make_batch(seed=0):
    """Make returns of four tasks of different scales; the last task does not occur."""
    rng = np.random.default_rng(seed)
    task = rng.integers(0, N - 1, (B, T))
    returns = rng.normal(size=(B, T)) * 10.0**task + 5 * task
    return jnp.asarray(returns), jnp.asarray(task, jnp.int32), jnp.asarray(rng.random((B, T)) < 0.8)


def some_statistics(seed=1):
    rng = np.random.default_rng(seed)
    return popart.PopArtStatistics(
        mean_N=jnp.asarray(rng.normal(size=N) * 10),
        variance_N=jnp.asarray(rng.random(N) * 9 + 0.1),
        weight_N=jnp.ones(N),
        range_N2=jnp.zeros((N, 2)),
    )


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.9])
def test_update_equals_a_naive_moving_average(x64, rate):
    returns, task, mask = make_batch()
    old = some_statistics()
    new = jax.jit(popart.update)(old, returns, task, mask, rate)
    for n in range(N):
        samples = np.asarray(returns)[np.asarray((task == n) & mask)]
        mean, second = float(old.mean_N[n]), float(old.variance_N[n] + old.mean_N[n] ** 2)
        for _ in samples:
            mean = (1 - rate) * mean + rate * samples.mean()
            second = (1 - rate) * second + rate * np.square(samples).mean()
        np.testing.assert_allclose(new.mean_N[n], mean, rtol=1e-10)
        np.testing.assert_allclose(new.variance_N[n], second - mean**2, rtol=1e-8)


def test_update_equals_rlax_to_first_order(x64):
    returns, task, mask = make_batch()
    old, rate = some_statistics(), 1e-8
    second = old.variance_N + jnp.square(old.mean_N)
    state = rlax.PopArtState(shift=old.mean_N, scale=old.scale_N, second_moment=second)
    _, update = rlax.popart(N, rate, 1e-4, 1e6)
    head = {"w": jnp.zeros((2, N)), "b": jnp.zeros(N)}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        _, theirs = update(head, state, returns[mask], task[mask])
    ours = popart.update(old, returns, task, mask, rate)
    for new, expected, start in [
        (ours.mean_N, theirs.shift, old.mean_N),
        (ours.scale_N, theirs.scale, old.scale_N),
    ]:
        np.testing.assert_allclose(new - start, expected - start, rtol=1e-4, atol=1e-13)


@pytest.mark.parametrize("rate", [1e-6, 0.1])
def test_initial_values_do_not_bias_first_batches(x64, rate):
    """The statistics are those of the samples alone, with weights from a naive loop."""
    statistics, samples, weights = popart.init(1), [], []
    for seed in range(3):
        returns, _, mask = make_batch(seed)
        task = jnp.zeros_like(mask, jnp.int32)
        statistics = popart.update(statistics, returns, task, mask, rate)
        mine = np.asarray(returns)[np.asarray(mask)]
        weight = 1 - (1 - rate) ** len(mine)
        weights = [(1 - weight) * w for w in weights] + [weight / len(mine)] * len(mine)
        samples += mine.tolist()
    mean = np.average(samples, weights=weights)
    variance = np.average(np.square(np.array(samples) - mean), weights=weights)
    np.testing.assert_allclose(statistics.mean_N[0], mean, rtol=1e-7)
    np.testing.assert_allclose(statistics.variance_N[0], variance, rtol=1e-7)


def test_large_batch_cannot_overshoot():
    """rate * samples is 20 here: a sum of updates would leave the range of the data."""
    returns, task = jnp.full((B, T), 3.0), jnp.zeros((B, T), jnp.int32)
    new = popart.update(popart.init(1), returns, task, jnp.ones((B, T), bool), rate=0.5)
    np.testing.assert_allclose(new.mean_N, 3, rtol=1e-6)
    np.testing.assert_allclose(new.variance_N, 0, atol=1e-6)


def test_task_without_samples_keeps_statistics():
    statistics = jax.tree.map(lambda x: x.astype(jnp.float32), some_statistics())
    returns, task, mask = make_batch()
    mask = mask & (task != 1)
    new = popart.update(statistics, returns, task, mask, rate=1e-3)
    moved = np.asarray(new.mean_N != statistics.mean_N)
    np.testing.assert_array_equal(moved, [True, False, True, False])
    np.testing.assert_array_equal(
        (new.variance_N == statistics.variance_N)[jnp.array([1, 3])], [True, True]
    )
    nothing = jnp.zeros((B, T), bool)
    none = popart.update(statistics, jnp.full((B, T), jnp.nan), task, nothing, rate=1e-3)
    jax.tree.map(np.testing.assert_array_equal, none, statistics)


def test_variance_is_accurate_for_large_mean():
    returns = jnp.asarray(1e5 + np.random.default_rng(0).normal(size=(B, T)), jnp.float32)
    task, mask = jnp.zeros((B, T), jnp.int32), jnp.ones((B, T), bool)
    statistics = popart.init(1)
    for _ in range(3):
        statistics = popart.update(statistics, returns, task, mask, rate=0.9)
    np.testing.assert_allclose(statistics.variance_N[0], np.var(np.float64(returns)), rtol=0.04)


@pytest.mark.parametrize(
    ("mean", "variance", "rewards", "scale"),
    [
        (0.0, 4.0, (-1, 1), 2.0),
        (0.0, 1e20, (-1, 1), 1e10),
        (0.0, 1e-12, (0, 1), 1e-2),
        (0.0, 1e-24, (0, 1e-6), 1e-8),
        (0.0, 0.0, (1, 1), 1.0),
        (0.0, 0.0, (jnp.inf, -jnp.inf), 1.0),
        (100.0, 1e-4, (1, 1), 1.0),
        (-1e-6, 0.0, (-1e-8, -1e-8), 1e-8),
    ],
    ids=[
        *("deviation", "large", "sparse", "sparse and small", "constant", "nothing"),
        *("solved", "solved and small"),
    ],
)
def test_scale_has_a_floor_relative_to_rewards_and_returns(mean, variance, rewards, scale):
    statistics = popart.PopArtStatistics(
        jnp.full(1, mean), jnp.full(1, variance), jnp.ones(1), jnp.array([rewards], jnp.float32)
    )
    np.testing.assert_allclose(statistics.scale_N, scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("rewards", "gamma", "low", "high"),
    [
        ((-1, 3), 0.9, -10, 30),
        ((1, 1), 0.99, 0, 100),
        ((-2, -1), 0.5, -4, 0),
        ((0, 1), 1.0, 0, np.inf),
        ((jnp.inf, -jnp.inf), 0.99, 0, 0),
    ],
    ids=["both signs", "positive", "negative", "undiscounted", "nothing"],
)
def test_values_are_clipped_to_what_rewards_allow(rewards, gamma, low, high):
    """The bounds are the discounted sums of the best rewards forever, and of none."""
    statistics = dataclasses.replace(popart.init(1), range_N2=jnp.array([rewards], jnp.float32))
    values = jnp.array([[-1e9, -3.0, 0.0, 25.0, 1e9]])
    clipped = popart.clip_to_possible(statistics, values, jnp.zeros((1, 5), jnp.int32), gamma)
    np.testing.assert_allclose(clipped, np.clip(values, low, high), rtol=1e-5)


def test_range_of_rewards_of_each_task():
    rewards, task, mask = make_batch()
    statistics = popart.update_range(popart.init(N), rewards, task, mask)
    statistics = popart.update_range(statistics, rewards - 1, task, mask)
    for n in range(N - 1):
        mine = rewards[(task == n) & mask]
        np.testing.assert_allclose(statistics.range_N2[n], [mine.min() - 1, mine.max()])
    np.testing.assert_array_equal(statistics.range_N2[-1], [jnp.inf, -jnp.inf])


def test_units_of_rewards_do_not_matter():
    """Powers of two change no rounding, so normalized returns are equal to the last bit."""

    def normal(unit):
        rewards, task, mask = make_batch()
        statistics = popart.init(N)
        for factor in (1.0, 3.0):
            scaled = unit * factor * rewards
            statistics = popart.update_range(statistics, scaled, task, mask)
            statistics = popart.update(statistics, scaled, task, mask, rate=1e-3)
        return popart.normalize(statistics, unit * rewards, task)

    for unit in (2.0**-20, 2.0**20):
        np.testing.assert_array_equal(normal(unit), normal(1.0))


def test_rescaled_head_preserves_every_value(x64):
    rng = np.random.default_rng(2)
    features, kernel, bias = rng.normal(size=(B, T, 3)), rng.normal(size=(3, N)), rng.normal(size=N)
    task = jnp.asarray(rng.integers(0, N, (B, T)), jnp.int32)
    old = some_statistics(1).replace(variance_N=jnp.array([1e-9, 1.0, 1e15, 4.0]))
    new = some_statistics(2)

    def values(kernel, bias, statistics):
        outputs = np.asarray(features) @ np.asarray(kernel) + np.asarray(bias)
        selected = np.take_along_axis(outputs, np.asarray(task)[..., None], -1)[..., 0]
        return popart.unnormalize(statistics, jnp.asarray(selected), task)

    before = values(kernel, bias, old)
    rescaled = popart.rescale_head(jnp.asarray(kernel), jnp.asarray(bias), old, new)
    np.testing.assert_allclose(values(*rescaled, new), before, rtol=1e-11)
    assert not np.allclose(values(kernel, bias, new), before, rtol=0.1)


def test_first_statistics_of_task_preserve_head(x64):
    """The head starts with its initialized size, whatever the units of the rewards."""
    rng = np.random.default_rng(5)
    kernel, bias = jnp.asarray(rng.normal(size=(3, N))), jnp.asarray(rng.normal(size=N))
    returns, task, mask = make_batch()
    old = some_statistics().replace(weight_N=jnp.array([0.0, 0.3, 1.0, 0.0]))
    new = popart.update(old, 1000 * returns, task, mask, rate=0.1)
    rescaled_kernel, rescaled_bias = popart.rescale_head(kernel, bias, old, new)
    for n, changed in enumerate([False, True, True, False]):
        assert np.any(rescaled_kernel[:, n] != kernel[:, n]) == changed
        assert (rescaled_bias[n] != bias[n]) == changed


def test_normalize_and_unnormalize_use_task_statistics(x64):
    returns, task, _ = make_batch()
    statistics = some_statistics()
    normal = popart.normalize(statistics, returns, task)
    for n in range(N - 1):
        mean, scale = statistics.mean_N[n], statistics.scale_N[n]
        np.testing.assert_allclose(normal[task == n], (returns[task == n] - mean) / scale)
    np.testing.assert_allclose(popart.unnormalize(statistics, normal, task), returns, rtol=1e-12)


def test_repeated_updates_normalize_every_task():
    statistics = popart.init(N)
    for seed in range(200):
        statistics = popart.update(statistics, *make_batch(seed), rate=1e-2)
    mean, scale = np.array([0, 5, 10, 0]), np.array([1, 10, 100, 1])
    np.testing.assert_allclose((np.asarray(statistics.mean_N) - mean) / scale, 0, atol=0.3)
    np.testing.assert_allclose(statistics.scale_N, scale, rtol=0.15)


def test_update_stops_gradients(x64):
    returns, task, mask = make_batch()

    def total(returns):
        new = popart.update(some_statistics(), returns, task, mask, rate=0.1)
        return new.mean_N.sum() + new.variance_N.sum()

    assert np.all(jax.grad(total)(returns) == 0)


def test_sharded_batch_equals_one_device(x64):
    batch, statistics = make_batch(), some_statistics()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(batch, NamedSharding(mesh, P("data")))
    assert len(sharded[0].sharding.device_set) == 8
    update = jax.jit(popart.update)
    one, many = update(statistics, *batch, rate=0.1), update(statistics, *sharded, rate=0.1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), many, one)
