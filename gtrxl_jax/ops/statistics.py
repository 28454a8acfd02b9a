"""Statistics over seeds, on the host in float64."""

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def mean_and_interval(
    values: Shaped[ArrayLike, "..."], axis: int, confidence: float = 0.95
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    r"""Mean over one axis, and the half-width of its confidence interval by Student's t.

    With S independent values of mean m and standard deviation s (S - 1 degrees of freedom), the
    interval is m ± t_{S-1, (1 + confidence) / 2} s / sqrt(S): exact for normal values at any S
    (Student, "The probable error of a mean", 1908).

    Args:
      values: any real numbers, the S values along `axis`. NaN gives NaN.
      axis: the axis of the independent values: seeds, not the episodes of one seed.
      confidence: the probability that the interval covers the true mean, in (0, 1).

    Returns:
      mean and half-width, without that axis. The half-width of a single value is NaN: one seed says
      nothing of the spread.

    Raises:
      ValueError: there is no value along the axis, or `confidence` is not inside (0, 1).
    """
    values = np.asarray(values, np.float64)
    count = values.shape[axis]
    if count == 0:
        raise ValueError(f"values has no entry along axis {axis} (shape {values.shape}): give some")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be inside (0, 1), for example 0.95; got {confidence}")
    mean = values.mean(axis)
    if count == 1:
        return mean, np.full_like(mean, np.nan)
    quantile = stdtrit(count - 1, (1 + confidence) / 2)
    return mean, quantile * values.std(axis, ddof=1) / np.sqrt(count)
