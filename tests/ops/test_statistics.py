import numpy as np
import pytest
from scipy import stats

from gtrxl_jax.ops.statistics import mean_and_interval

# Two-sided 95 % quantiles of Student's t, as in any printed table.
TABLE = {2: 12.706, 3: 4.303, 5: 2.776, 10: 2.262, 31: 2.042}


@pytest.mark.parametrize(("count", "quantile"), TABLE.items())
def test_half_width_is_the_printed_quantile_times_the_standard_error(count, quantile):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    mean, half_width = mean_and_interval(values, 0)
    standard_error = np.sqrt(((values - values.mean()) ** 2).sum() / (count - 1) / count)
    np.testing.assert_allclose(mean, values.mean())
    np.testing.assert_allclose(half_width, quantile * standard_error, rtol=3e-4)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_agrees_with_scipy_along_any_axis(axis, confidence):
    values = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    mean, half_width = mean_and_interval(values, axis, confidence)
    values = values.astype(np.float64)
    low, high = stats.t.interval(
        confidence,
        values.shape[axis] - 1,
        loc=values.mean(axis),
        scale=stats.sem(values, axis=axis),
    )
    np.testing.assert_allclose(mean - half_width, low)
    np.testing.assert_allclose(mean + half_width, high)


def test_covers_the_true_mean_as_often_as_it_says():
    values = np.random.default_rng(0).normal(1.0, 3.0, (20_000, 4))
    mean, half_width = mean_and_interval(values, 1)
    assert abs(np.mean(np.abs(mean - 1.0) <= half_width) - 0.95) < 0.006  # four standard errors


def test_one_value_has_no_interval_and_equal_values_have_none_to_speak_of():
    mean, half_width = mean_and_interval([[2.0, 3.0]], 0)
    np.testing.assert_array_equal(mean, [2.0, 3.0])
    assert np.isnan(half_width).all()
    assert mean_and_interval([True, True, True], 0) == (1.0, 0.0)


def test_nan_is_not_hidden():
    mean, half_width = mean_and_interval([[1.0, np.nan], [2.0, 3.0]], 0)
    np.testing.assert_array_equal(np.isnan(mean), [False, True])
    np.testing.assert_array_equal(np.isnan(half_width), [False, True])


def test_refuses_nothing_and_impossible_confidence():
    with pytest.raises(ValueError, match="no entry along axis 1"):
        mean_and_interval(np.zeros((3, 0)), 1)
    with pytest.raises(ValueError, match="confidence must be inside"):
        mean_and_interval([1.0, 2.0], 0, confidence=95)
