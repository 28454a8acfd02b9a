"""Statistics over seeds and episodes, on the host in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

Floats = Float[np.ndarray | np.float64, "..."]
"""NumPy reduces an array to a scalar, not to an array without axes."""

CONFIDENCE = 0.95
"""The probability that an interval covers the true value."""
_LOW, _HIGH = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


def mean_and_interval(values: ArrayLike, axis: int) -> tuple[Floats, Floats]:
    r"""Compute the mean over one axis and the half-width of its 95 % Student's t interval.

    With S independent values of mean m and standard deviation s (S - 1 degrees of freedom), the
    interval is m ± t_{S-1, 0.975} s / sqrt(S): exact for normal values at any S (Student, "The
    probable error of a mean", 1908).

    Args:
      values: any real numbers, the S values along `axis`. NaN propagates.
      axis: the axis of the independent values: seeds, not the episodes of one seed.

    Returns:
      The mean and the half-width, without that axis. The half-width of a single value is NaN: one
      seed carries no information about the spread.

    Raises:
      ValueError: if there is no value along the axis.
    """
    values = np.asarray(values, np.float64)
    count = values.shape[axis]
    if count == 0:
        raise ValueError(
            f"values has no entry along axis {axis} (shape {values.shape}): pass at least 1"
        )
    mean = values.mean(axis)
    if count == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, stdtrit(count - 1, _HIGH) * values.std(axis, ddof=1) / np.sqrt(count)


def difference_and_interval(first_S: ArrayLike, second_S: ArrayLike) -> tuple[Floats, Floats]:
    r"""Compute the difference of two means and the half-width of its 95 % interval (Welch).

    With v the squared standard error of a mean and S the number of its values, the half-width is
    t_{d, 0.975} sqrt(v_1 + v_2) with d = (v_1 + v_2)^2 / (v_1^2 / (S_1 - 1) + v_2^2 / (S_2 - 1))
    degrees of freedom: for normal values of unequal variances (Welch, "The generalization of
    'Student's' problem when several different population variances are involved", 1947).

    Args:
      first_S: independent values, such as of seeds. NaN propagates.
      second_S: values that are independent of them; a single one is a constant.

    Returns:
      The mean of the first minus that of the second, and the half-width: 0 if no value differs
      within a group, NaN if the first has a single value.

    Raises:
      ValueError: if there is no value.
    """
    groups = [np.asarray(values, np.float64) for values in (first_S, second_S)]
    if any(values.ndim != 1 or not len(values) for values in groups):
        raise ValueError(f"each group must have values [S]; got {[v.shape for v in groups]}")
    first_S, second_S = groups
    if len(second_S) == 1:
        mean, half = mean_and_interval(first_S - second_S, 0)
        return mean, half
    difference = first_S.mean() - second_S.mean()
    if len(first_S) == 1:
        return difference, np.float64(np.nan)
    squares = np.array([values.var(ddof=1) / len(values) for values in groups])
    if not squares.sum():
        return difference, np.float64(0)
    freedom = squares.sum() ** 2 / sum(squares**2 / [len(values) - 1 for values in groups])
    return difference, stdtrit(freedom, _HIGH) * np.sqrt(squares.sum())


def wilson_interval(successes: ArrayLike, trials: ArrayLike) -> tuple[Floats, Floats]:
    r"""Compute Wilson's 95 % interval of a probability from k successes in n independent trials.

    With p = k / n and the normal quantile z = z_{0.975}, it has the midpoint
    (p + z^2 / 2n) / (1 + z^2 / n) and the half-width z sqrt(p (1 - p) / n + z^2 / 4n^2) /
    (1 + z^2 / n). It lies within [0, 1] and has a positive width even at p = 0 and p = 1 (Wilson,
    "Probable inference, the law of succession, and statistical inference", 1927).

    Args:
      successes: k, any shape that broadcasts with `trials`.
      trials: n, at least 1.

    Returns:
      The lower and the upper bound.

    Raises:
      ValueError: if k is not in 0 to n, or n is below 1.
    """
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    if not (np.all(n >= 1) and np.all((k >= 0) & (k <= n))):
        raise ValueError(f"successes must be in 0 to trials, and trials at least 1; got {k} of {n}")
    square = ndtri(_HIGH) ** 2
    middle = (k + square / 2) / (n + square)
    half = np.sqrt(square) / (n + square) * np.sqrt(k * (n - k) / n + square / 4)
    # Avoid rounding errors: the lower bound is exactly 0 at k = 0, the upper one 1 at k = n.
    low = np.where(k == 0, 0.0, middle - half)
    high = np.where(k == n, 1.0, middle + half)
    return low, high


def interquartile_mean(values: ArrayLike, axis: int | None = None) -> Floats:
    """Compute the interquartile mean (IQM), the mean of the middle half of the values.

    The lowest and the highest quarter, floor(n / 4) values each, are left out. The IQM is less
    sensitive to outliers than the mean and more efficient with few seeds than the median (Agarwal
    et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice").

    Args:
      values: the scores of runs, pooled over tasks. NaN propagates.
      axis: the axis of the n values; None to pool all axes.

    Raises:
      ValueError: if there is no value along the axis.
    """
    values = np.asarray(values, np.float64)
    values = values.ravel() if axis is None else np.moveaxis(values, axis, -1)
    count = values.shape[-1]
    if count == 0:
        raise ValueError(f"values has no entry (shape {values.shape}): pass at least 1")
    cut = count // 4
    mean = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return np.where(np.isnan(values).any(axis=-1), np.nan, mean)


def stratified_bootstrap(
    values_by_task: Sequence[ArrayLike],
    statistic: Callable[..., Any],
    *,
    resamples: int = 5000,
) -> tuple[float, float]:
    """Compute a 95 % percentile bootstrap interval of a statistic of runs pooled over tasks.

    Each resample draws, with replacement, as many runs of each task as it has; the bounds are
    quantiles of the statistic over resamples (Agarwal et al. 2021, section 4.1). The interval is
    useful from about five runs on, and never leaves the range of the values. It is the same in
    every call.

    Args:
      values_by_task: for each task the scores of its S runs; S may differ. NaN propagates.
      statistic: a function of (values `[R, N]`, axis=-1) to `[R]`, such as `np.median` or
        `interquartile_mean`.
      resamples: R, the number of resamples.

    Returns:
      The lower and the upper bound.

    Raises:
      ValueError: if a task has no run.
    """
    tasks = [np.asarray(values, np.float64) for values in values_by_task]
    if not tasks or any(values.ndim != 1 or not len(values) for values in tasks):
        raise ValueError(f"each task must have runs [S]; got {[v.shape for v in tasks]}")
    rng = np.random.default_rng(0)
    samples = [values[rng.integers(len(values), size=(resamples, len(values)))] for values in tasks]
    statistics_R = statistic(np.concatenate(samples, axis=1), axis=-1)
    low, high = np.quantile(statistics_R, [_LOW, _HIGH])
    return float(low), float(high)


SOLVED = 0.95
"""The success rate from which a seed counts as having solved its task."""


def count_solved(scores_S: ArrayLike, threshold: float = SOLVED) -> int:
    """Count the seeds with a score of at least `threshold`; missing scores (NaN) do not count."""
    return int(np.sum(np.asarray(scores_S, np.float64) >= threshold))
