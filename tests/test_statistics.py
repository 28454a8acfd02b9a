import numpy as np
import pytest
from scipy import stats

from gtrxl_jax.statistics import (
    count_solved,
    difference_and_interval,
    interquartile_mean,
    mean_and_interval,
    stratified_bootstrap,
    wilson_interval,
)

# Two-sided 95 % quantiles of Student's t, from a printed table.
TABLE = {2: 12.706, 3: 4.303, 5: 2.776, 10: 2.262, 31: 2.042}


@pytest.mark.parametrize(("count", "quantile"), TABLE.items())
def test_half_width_matches_tabulated_quantiles(count, quantile):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    mean, half_width = mean_and_interval(values, 0)
    standard_error = np.sqrt(((values - values.mean()) ** 2).sum() / (count - 1) / count)
    np.testing.assert_allclose(mean, values.mean())
    np.testing.assert_allclose(half_width, quantile * standard_error, rtol=3e-4)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_agrees_with_scipy_along_any_axis(axis):
    values = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    mean, half_width = mean_and_interval(values, axis)
    values = values.astype(np.float64)
    low, high = stats.t.interval(
        0.95,
        values.shape[axis] - 1,
        loc=values.mean(axis),
        scale=stats.sem(values, axis=axis),
    )
    np.testing.assert_allclose(mean - half_width, low)
    np.testing.assert_allclose(mean + half_width, high)


def test_interval_has_nominal_coverage():
    values = np.random.default_rng(0).normal(1.0, 3.0, (20_000, 4))
    mean, half_width = mean_and_interval(values, 1)
    assert abs(np.mean(np.abs(mean - 1.0) <= half_width) - 0.95) < 0.006  # four standard errors


def test_interval_of_single_and_equal_values():
    mean, half_width = mean_and_interval([[2.0, 3.0]], 0)
    np.testing.assert_array_equal(mean, [2.0, 3.0])
    assert np.isnan(half_width).all()
    assert mean_and_interval([True, True, True], 0) == (1.0, 0.0)


def test_nan_propagates():
    mean, half_width = mean_and_interval([[1.0, np.nan], [2.0, 3.0]], 0)
    np.testing.assert_array_equal(np.isnan(mean), [False, True])
    np.testing.assert_array_equal(np.isnan(half_width), [False, True])


def test_empty_values_are_rejected():
    with pytest.raises(ValueError, match="no entry along axis 1"):
        mean_and_interval(np.zeros((3, 0)), 1)


def test_wilson_interval_agrees_with_scipy():
    trials = np.array([[1], [3], [10], [256]])
    successes = np.array([[0, 1, 1], [0, 2, 3], [0, 9, 10], [0, 128, 256]])
    low, high = wilson_interval(successes, trials)
    for index, k in np.ndenumerate(successes):
        expected = stats.binomtest(int(k), int(trials[index[0], 0])).proportion_ci(
            0.95, method="wilson"
        )
        np.testing.assert_allclose((low[index], high[index]), (expected.low, expected.high))


def test_wilson_interval_stays_within_zero_and_one():
    low, high = wilson_interval([0, 10], 10)
    assert (low[0], high[1]) == (0.0, 1.0)
    np.testing.assert_allclose((high[0], low[1]), (0.278, 0.722), atol=5e-4)  # from a printed table


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 2), (0, 0), (np.nan, 2)])
def test_wilson_interval_rejects_invalid_counts(successes, trials):
    with pytest.raises(ValueError, match="successes must be in 0 to trials"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
def test_interquartile_mean_agrees_with_scipy(count):
    values = np.random.default_rng(count).normal(size=(3, count, 2))
    for axis in (1, None):
        expected = stats.trim_mean(values, 0.25, axis=axis)
        np.testing.assert_allclose(interquartile_mean(values, axis), expected)


def test_interquartile_mean_ignores_outliers_but_not_nan():
    assert interquartile_mean([1.0, 2.0, 4.0, 1e9]) == 3.0
    assert np.isnan(interquartile_mean([1.0, 2.0, 3.0, np.nan]))
    with pytest.raises(ValueError, match="no entry"):
        interquartile_mean([])


@pytest.mark.parametrize("statistic", [interquartile_mean, np.median, np.mean])
def test_bootstrap_of_one_task_agrees_with_scipy(statistic):
    values = np.random.default_rng(0).normal(1.0, 2.0, 12)
    expected = stats.bootstrap(
        (values,), statistic, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    interval = stratified_bootstrap([values], statistic, resamples=20_000)
    np.testing.assert_allclose(interval, expected, atol=0.06)
    assert interval == stratified_bootstrap([values], statistic, resamples=20_000)


def test_bootstrap_resamples_within_each_task():
    """Two tasks without spread: their runs differ when pooled, but not within a task."""
    assert stratified_bootstrap([[0.0] * 3, [1.0] * 3], np.mean) == (0.5, 0.5)
    low, high = stratified_bootstrap([[0.0] * 3 + [1.0] * 3], np.mean)
    assert low < 0.5 < high


def test_iqm_and_interval_agree_with_rliable():
    """With the figures of rliable 1.2.0, `get_interval_estimates` with 20,000 resamples."""
    scores_ST = [[0.98, 0.31], [1.0, 0.52], [0.47, 0.66], [0.99, 0.12]]
    scores_ST += [[0.5, 0.71], [1.0, 0.33], [0.96, 0.48], [0.83, 0.9]]
    by_task = np.array(scores_ST).T
    assert interquartile_mean(by_task) == pytest.approx(0.695, abs=1e-12)
    interval = stratified_bootstrap(list(by_task), interquartile_mean, resamples=20_000)
    np.testing.assert_allclose(interval, (0.52125, 0.85125), atol=0.01)


def test_bootstrap_rejects_empty_tasks():
    for tasks in ([], [[1.0], []], [[[1.0]]]):
        with pytest.raises(ValueError, match="each task must have runs"):
            stratified_bootstrap(tasks, np.mean)


def test_solved_counts_seeds_at_threshold():
    assert count_solved([0.95, 0.94, 1.0, np.nan]) == 2
    assert count_solved([-90.0, -120.0], threshold=-100) == 1


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 5), (8, 4)])
def test_difference_agrees_with_scipy(first, second):
    rng = np.random.default_rng(first)
    groups = rng.normal(1.0, 3.0, first), rng.normal(0.0, 1.0, second)
    mean, half = difference_and_interval(*groups)
    low, high = stats.ttest_ind(*groups, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose((mean - half, mean + half), (low, high))


def test_difference_from_constant_and_without_spread():
    values = np.array([1.0, 2.0, 4.0])
    expected = mean_and_interval(values, 0)[1]
    np.testing.assert_allclose(
        difference_and_interval(values, [0.5]), (values.mean() - 0.5, expected)
    )
    assert difference_and_interval([1.0] * 3, [0.0] * 3) == (1.0, 0.0)
    assert np.isnan(difference_and_interval([1.0], values)[1])
    assert np.isnan(difference_and_interval([1.0, np.nan], values)).all()
    with pytest.raises(ValueError, match="each group must have values"):
        difference_and_interval(values, [])
