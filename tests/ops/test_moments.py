"""Running moments against NumPy on all samples at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gtrxl_jax.ops.moments import Moments, merge, moments_of

NOTHING = Moments(jnp.zeros(()), jnp.full(3, 7.0), jnp.full(3, 5.0))


def batches(offset=0.0):
    rng = np.random.default_rng(0)
    scale = np.array([1.0, 1e-3, 50.0])
    return [offset + scale * rng.standard_normal((n, 2, 3)) for n in (4, 1, 8)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_merged_moments_are_of_all_samples(rank):
    shape = (2, 3)[2 - rank :]
    seen = Moments(jnp.zeros(()), jnp.full(shape, 9.0), jnp.full(shape, 4.0))
    for batch in batches():
        seen = jax.jit(merge)(seen, moments_of(jnp.asarray(batch), rank))
    everything = np.concatenate(batches())
    axes = tuple(range(3 - rank))
    np.testing.assert_allclose(seen.count, everything.size / np.prod(seen.mean.shape))
    np.testing.assert_allclose(seen.mean, everything.mean(axes), rtol=1e-10)
    np.testing.assert_allclose(seen.variance, everything.var(axes), rtol=1e-10)


def test_only_samples_that_count():
    batch = jnp.asarray(batches()[0], jnp.float32)
    where = jnp.asarray(np.random.default_rng(1).random((4, 2)) < 0.5)
    bad = jnp.where(where[..., None], batch, jnp.nan)
    found = moments_of(bad, 1, where)
    samples = np.asarray(batch)[np.asarray(where)]
    assert found.count == len(samples) > 0
    np.testing.assert_allclose(found.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.variance, samples.var(0), rtol=1e-4)


def test_no_samples_change_nothing():
    nothing = moments_of(jnp.ones((4, 2, 3)), 1, jnp.zeros((4, 2), bool))
    jax.tree.map(np.testing.assert_array_equal, merge(NOTHING, nothing), NOTHING)


def test_a_large_mean_does_not_hide_the_deviation_in_float32():
    seen = NOTHING
    for batch in batches(offset=30_000):
        seen = merge(seen, moments_of(jnp.asarray(batch, jnp.float32), 1))
    expected = np.concatenate(batches(offset=30_000)).std(axis=(0, 1))
    np.testing.assert_allclose(seen.deviation[2], expected[2], rtol=1e-4)
    # The second varies by less than float32 resolves: it counts as constant.
    assert seen.deviation[1] == 1


def test_deviation_of_constants_is_1():
    assert np.all(moments_of(jnp.full((5, 2), 1e6), 1).deviation == 1)
    tiny = moments_of(1e-6 * jnp.arange(5.0), 0)
    np.testing.assert_allclose(tiny.deviation, 1e-6 * np.std(np.arange(5)), rtol=1e-5)


def test_sharded_batch_equals_one_device():
    batch = jnp.asarray(np.random.default_rng(2).standard_normal((16, 3)), jnp.float32)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(batch, NamedSharding(mesh, P("data")))
    assert len(sharded.sharding.device_set) == 8
    of_rows = jax.jit(lambda x: moments_of(x, 1))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        of_rows(sharded),
        of_rows(batch),
    )
