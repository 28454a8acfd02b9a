"""Runs ranked by score, the figure of robustness of GTrXL (Parisotto et al. 2019, figure 5)."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from gtrxl_jax.plots.style import (
    FONT_SIZE,
    assign_styles,
    grid_of,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)


def plot_ranking(
    panels: Mapping[str, Mapping[str, ArrayLike]],
    path: str | os.PathLike[str],
    *,
    y_labels: Mapping[str, str],
) -> None:
    """Draw the scores of each label's runs in descending order, in small panels.

    Labels whose lines are high and flat are robust to what differs between their runs: seeds, and
    settings if these are sampled. Runs whose score is NaN, as they have diverged, have no point, so
    that their label's line ends early.

    Args:
      panels: for each panel title, such as a task, and each label, the scores `[S]` of its S runs.
      path: the PNG file to write.
      y_labels: the name of the scores of each panel.

    Raises:
      ValueError: if there are no panels, or a label's scores are not `[S]`.
    """
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    if not labels:
        raise ValueError("there are no runs to rank: pass at least one label with its scores")
    rows, columns = grid_of(len(panels))
    figure = new_figure(1.6 + 2.1 * columns, 0.5 + 2.0 * rows)
    axes_of_panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    entries: dict[str, Any] = {}
    for (title, lines), axes in zip(panels.items(), axes_of_panels, strict=False):
        for label, look in assign_styles(labels):
            if label not in lines:
                continue
            score_S = np.asarray(lines[label], np.float64)
            if score_S.ndim != 1:
                raise ValueError(f"the scores of {label!r} must be [S]; got {list(score_S.shape)}")
            ranked = np.sort(score_S[~np.isnan(score_S)])[::-1]
            rank = np.arange(1, len(ranked) + 1)
            (entries[label],) = axes.plot(rank, ranked, **look, markersize=4, linewidth=1.5)
        axes.set_title(title, fontsize=FONT_SIZE)
        axes.set_ylabel(y_labels[title])
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        style_axes(axes)
    for axes in axes_of_panels[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel("rank of the run", fontsize=FONT_SIZE)
    legend_outside(figure, "", entries)
    save_figure(figure, path)
