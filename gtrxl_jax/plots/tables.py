"""Markdown tables of results, and their entries."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gtrxl_jax.formatting import number, numbers
from gtrxl_jax.ops.statistics import (
    SOLVED,
    interquartile_mean,
    mean_and_interval,
    solved,
    stratified_bootstrap,
    wilson_interval,
)

ENTRIES = (
    f"Entries: solved seeds (with a success of at least {SOLVED}) of all seeds, the 95 % Wilson "
    "interval of that fraction, and the median success over seeds."
)
"""The explanation of `solved_entry`."""


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def median(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Format the median of the values that are not NaN; empty if there are none."""
    known = _known(values)
    return number(float(np.median(known)), digits) if len(known) else ""


def mean_entry(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Format the mean with its 95 % interval (Student's t), omitted for one value: `0.83 ± 0.72`.

    Values that are NaN are left out; empty if there are no others.
    """
    known = _known(values)
    if not len(known):
        return ""
    mean, half = map(float, mean_and_interval(known, axis=0))
    if len(known) == 1:
        return number(mean, digits)
    return " ± ".join(numbers([mean, half], digits))


def solved_share(scores_S: np.ndarray, threshold: float = SOLVED) -> str:
    """Format the seeds with a score of at least the threshold as `4/5 [0.38, 0.96]`."""
    count, seeds = solved(scores_S, threshold), len(scores_S)
    low, high = wilson_interval(count, seeds)
    return f"{count}/{seeds} [{low:.2f}, {high:.2f}]"


def solved_entry(scores_S: np.ndarray, threshold: float = SOLVED) -> str:
    """Format scores as `4/5 [0.38, 0.96], 1.00`, see `ENTRIES`."""
    return f"{solved_share(scores_S, threshold)}, {median(scores_S)}"


def iqm_entry(scores_by_task: Sequence[np.ndarray], digits: int = 2) -> str:
    """Format the interquartile mean of runs pooled over tasks as `0.98 [0.91, 1.00]`.

    The interval is a 95 % stratified bootstrap interval, omitted for a single run. Scores that are
    NaN are left out; empty if there are no others.
    """
    tasks = [known for known in map(_known, scores_by_task) if len(known)]
    if not tasks:
        return ""
    pooled = np.concatenate(tasks)
    iqm = float(interquartile_mean(pooled))
    if len(pooled) == 1:
        return number(iqm, digits)
    ends = map(float, stratified_bootstrap(tasks, interquartile_mean))
    text, low, high = numbers([iqm, *ends], digits)
    return f"{text} [{low}, {high}]"


def _known(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, np.float64)
    return array[~np.isnan(array)]
