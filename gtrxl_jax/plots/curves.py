"""Plots of each seed's scores and their median, during training and against the horizon."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator
from numpy.typing import ArrayLike

from gtrxl_jax.plots.style import (
    FONT_SIZE,
    GREY,
    assign_styles,
    grid_of,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.statistics import interquartile_mean
from gtrxl_jax.validation import require_choice

T = TypeVar("T")

MIDDLES: dict[str, Any] = {"median": np.median, "IQM": interquartile_mean}
"""Aggregates over seeds: the median, or for returns the interquartile mean."""
OF_HORIZONS = "median; hollow: each seed"
X_OF_HORIZONS = "steps between cue and decision"


def plot_learning_curves(
    runs: Mapping[str, ArrayLike],
    x: ArrayLike | Mapping[str, ArrayLike],
    path: str | os.PathLike[str],
    *,
    x_label: str = "environment steps",
    y_label: str = "success rate",
    y_limits: tuple[float, float] | None = None,
    chance: float | None = None,
    middle: str = "median",
) -> None:
    """Draw a thin line for each seed and a thick line for their aggregate, for each label.

    Points at which a seed is NaN are omitted from its line and from the aggregate.

    Args:
      runs: for each label, the curves `[S, N]` of its S seeds.
      x: positions of the points, `[N]`; one array for all labels, or one for each.
      path: the PNG file to write.
      x_label: label of x, with its unit.
      y_label: label of the curves, with their unit.
      y_limits: range of the y axis; fitted to the data if None.
      chance: score of random guessing, drawn as a line if given.
      middle: the aggregate, of `MIDDLES`; empty for none, if the seeds differ in their settings.

    Raises:
      ValueError: if there are no runs, a label's curves are not `[S, N]` for its x `[N]`, or
        `middle` is unknown.
    """
    if middle:
        require_choice("middle", middle, MIDDLES)
    figure = new_figure(6.5, 3.2)
    axes = figure.add_subplot()
    for label, look in assign_styles(_require_any(runs)):
        x_N = np.asarray(x[label] if isinstance(x, Mapping) else x, np.float64)
        y_SN = _require_curves(label, runs[label], x_N)
        # A line of one point, such as that of an evaluation at the end, cannot be seen.
        marker = "" if np.isfinite(y_SN).any(axis=0).sum() > 1 else "o"
        look = look | {"marker": marker, "markersize": 4, "label": _with_seeds(label, y_SN)}
        alone = not middle or len(y_SN) == 1
        for y_N in y_SN:
            known_N = np.isfinite(y_N)
            thin = {} if alone else {"linewidth": 0.6, "alpha": 0.45, "label": ""}
            axes.plot(x_N[known_N], y_N[known_N], **look | {"linewidth": 1.2} | thin)
            if alone:
                look["label"] = ""
        if not alone:
            known_N = np.isfinite(y_SN).all(axis=0)
            middle_N = MIDDLES[middle](y_SN[:, known_N], axis=0)
            axes.plot(x_N[known_N], middle_N, **look, linewidth=1.8)
    if y_limits:
        axes.set_ylim(*y_limits)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _draw_chance(axes, chance)
    _finish(
        figure,
        axes,
        path,
        x_label,
        y_label,
        f"{middle}; thin: each seed" if middle else "each seed",
    )


def plot_success_against_horizon(
    results: Mapping[str, ArrayLike],
    horizons: ArrayLike,
    path: str | os.PathLike[str],
    *,
    published: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    span: float | None = None,
    x_label: str = X_OF_HORIZONS,
    y_label: str = "success rate",
    chance: float | None = None,
) -> None:
    """Draw success against the number of steps between cue and decision.

    For each label, a line joins the medians over seeds, and each seed is a dot. Labels are offset
    horizontally.

    Args:
      results: for each label, the final success rates `[S, H]` of its S seeds, in [0, 1]; NaN
        entries are omitted.
      horizons: the H distances between cue and decision, positive and increasing; drawn on a
        logarithmic axis.
      path: the PNG file to write.
      published: for each label, horizons and published success rates, drawn as points.
      span: number of steps covered by the memory of one layer; shaded, since longer horizons
        require several layers or recurrence.
      x_label: label of the horizons, with their unit.
      y_label: label of the results.
      chance: score of random guessing, drawn as a line if given.

    Raises:
      ValueError: if there are no results, they are not `[S, H]`, or the horizons are not positive
        and increasing.
    """
    horizon_H = _require_horizons(horizons)
    figure = new_figure(6.5, 3.2)
    axes = figure.add_subplot()
    _draw_success(axes, results, horizon_H, published or {}, chance)
    if span is not None:
        left, right = axes.get_xlim()
        axes.axvspan(left, min(span, right), color="#f0f0f0", zorder=0, linewidth=0)
        axes.set_xlim(left, right)
        axes.annotate(
            f"within one layer's memory ({span:g} steps)",
            (0, 1.01),
            xycoords="axes fraction",
            color=GREY,
            fontsize=8,
        )
    _finish(figure, axes, path, x_label, y_label, OF_HORIZONS)


def plot_success_panels(
    results: Mapping[str, Mapping[str, ArrayLike]],
    horizons: ArrayLike,
    path: str | os.PathLike[str],
    *,
    published: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]] | None = None,
    x_label: str = X_OF_HORIZONS,
    chance: float | None = None,
) -> None:
    """Draw `plot_success_against_horizon` in small panels, for results that do not fit into one.

    Args:
      results: for each panel title, `results` of `plot_success_against_horizon`. Lines at the same
        position in several panels have the same style.
      horizons: of all panels.
      path: the PNG file to write.
      published: for panel titles, `published` of `plot_success_against_horizon`.
      x_label: of all panels.
      chance: see `plot_success_against_horizon`.

    Raises:
      ValueError: see `plot_success_against_horizon`.
    """
    horizon_H = _require_horizons(horizons)
    rows, columns = grid_of(len(_require_any(results)))
    figure = new_figure(6.5, 0.6 + 1.7 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    entries: dict[str, Any] = {}
    for (title, lines), axes in zip(results.items(), panels, strict=False):
        _draw_success(axes, lines, horizon_H, (published or {}).get(title, {}), chance)
        axes.set_title(title, fontsize=FONT_SIZE)
        style_axes(axes)
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    for axes in list(panels):
        axes.set_axis_off()
    figure.supxlabel(x_label, fontsize=FONT_SIZE)
    figure.supylabel("success rate", fontsize=FONT_SIZE)
    legend_outside(figure, OF_HORIZONS, entries)
    save_figure(figure, path)


def _require_horizons(horizons: ArrayLike) -> Float[np.ndarray, " H"]:
    horizon_H = np.asarray(horizons, np.float64)
    if horizon_H.ndim != 1 or not (np.diff(horizon_H, prepend=0) > 0).all():
        raise ValueError(f"horizons must be positive and increasing; got {horizon_H.tolist()}")
    return horizon_H


def _draw_success(
    axes: Axes,
    results: Mapping[str, ArrayLike],
    horizon_H: Float[np.ndarray, " H"],
    published: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chance: float | None,
) -> None:
    spread = 0.4 * np.diff(np.log2(horizon_H)).min(initial=1)
    for (label, look), place in zip(
        assign_styles(_require_any(results)),
        np.linspace(-0.5, 0.5, len(results) + 2)[1:-1],
        strict=True,
    ):
        y_SH = _require_curves(label, results[label], horizon_H)
        x_H = horizon_H * 2 ** (spread * place)
        axes.plot(
            np.broadcast_to(x_H, y_SH.shape).ravel(),
            y_SH.ravel(),
            look["marker"],
            color=look["color"],
            markersize=4,
            fillstyle="none",
            markeredgewidth=0.7,
            alpha=0.7,
        )
        known_H = ~np.isnan(y_SH).all(axis=0)
        axes.plot(
            x_H[known_H],
            np.nanmedian(y_SH[:, known_H], axis=0),
            **look,
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.7,
            linewidth=1.5,
            label=_with_seeds(label, y_SH),
        )
    for (label, (x_P, y_P)), marker in zip(published.items(), "oD^vsPX*", strict=False):
        axes.plot(x_P, y_P, marker, color=GREY, fillstyle="none", label=f"{label} (published)")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(horizon_H.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    _draw_chance(axes, chance)


def _require_any(runs: Mapping[str, T]) -> Mapping[str, T]:
    if not runs:
        raise ValueError("there are no runs to draw: pass at least one label with its curves")
    return runs


def _require_curves(
    label: str, values: ArrayLike, x_N: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "S N"]:
    y_SN = np.asarray(values, np.float64)
    if y_SN.ndim != 2 or not len(y_SN) or x_N.shape != y_SN.shape[1:]:
        raise ValueError(
            f"the curves of {label!r} must be [seeds, points] with one x per point; "
            f"got {list(y_SN.shape)} and x {list(x_N.shape)}"
        )
    return y_SN


def _with_seeds(label: str, y_SN: Float[np.ndarray, "S N"]) -> str:
    seeds = len(y_SN)
    return f"{label} ({seeds} seed{'s' * (seeds != 1)})"


def _draw_chance(axes: Axes, chance: float | None) -> None:
    if chance is not None:
        axes.axhline(chance, color=GREY, linestyle=(0, (4, 3)), linewidth=1.0, label="chance")


def _finish(
    figure: Figure,
    axes: Axes,
    path: str | os.PathLike[str],
    x_label: str,
    y_label: str,
    shown: str,
) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    style_axes(axes)
    legend_outside(figure, shown)
    save_figure(figure, path)
