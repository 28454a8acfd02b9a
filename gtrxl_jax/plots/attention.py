"""Plots of attention over memory, by layer and head.

Shapes: L layers, H heads, T time steps, and a window of W = M + 1 entries: the M memories from the
oldest to the newest, then the step itself. Weights are softmax outputs, so the weights of one query
sum to one; unwritten memory has weight zero.
"""

import os
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from gtrxl_jax.plots.style import COLORS, FONT_SIZE, GREY, new_figure, save_figure

_CUE = COLORS[1]
_UNSEEN = "#dddddd"


def plot_attention_map(
    weights: ArrayLike,
    path: str | os.PathLike[str],
    *,
    cue: int | None = None,
) -> None:
    """Draw a decision's attention over memory: a row for each head, a column for each memory.

    Colors scale with the square root of the weight, so that weak attention remains visible.

    Args:
      weights: `[L, H, W]`, the attention of the decision.
      path: the PNG file to write.
      cue: number of steps before the decision at which the cue was seen; marked if given.

    Raises:
      ValueError: if weights are not `[L, H, W]` in [0, 1], or the cue is not in the window.
    """
    weights_LHW = _require_weights(weights, "layers, heads, window")
    layers, heads, window = weights_LHW.shape
    _require_cue(cue, window)
    rows = layers * heads
    figure = new_figure(_length(window, 5.0) + 1.5, min(max(0.18 * rows, 0.8), 6.0) + 1.2)
    axes = figure.add_subplot()
    image = _draw_weights(
        axes,
        weights_LHW.reshape(rows, window),
        extent=(window - 0.5, -0.5, rows - 0.5, -0.5),
        largest=weights_LHW.max(),
    )
    for layer in range(1, layers):
        axes.axhline(layer * heads - 0.5, color="white", linewidth=1.5)
    axes.set_yticks(
        [heads * layer + (heads - 1) / 2 for layer in range(layers)],
        labels=[f"layer {layer + 1}" for layer in range(layers)],
    )
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel(f"{heads} head{'s' * (heads != 1)} in each layer", fontsize=FONT_SIZE)
    axes.set_xlabel("steps before the decision", fontsize=FONT_SIZE)
    if cue is not None:
        _point_at(axes, cue, label="cue")
    _add_scale(figure, image, [axes])
    save_figure(figure, path)


def plot_attention_over_episode(
    weights: ArrayLike,
    path: str | os.PathLike[str],
    *,
    cue: int | None = None,
) -> None:
    """Draw a whole episode's attention: query times (rows) against key times (columns).

    There is one panel for each layer (down) and head (across). Grey marks what a query cannot see:
    the future, and steps further back than its window.

    Args:
      weights: `[L, H, T, W]`, the attention of steps 0 to T - 1 of one episode.
      path: the PNG file to write.
      cue: the time step at which the cue was seen; marked if given.

    Raises:
      ValueError: if weights are not `[L, H, T, W]` in [0, 1], or the cue is out of range.
    """
    weights_LHTW = _require_weights(weights, "layers, heads, steps, window")
    layers, heads, steps, _ = weights_LHTW.shape
    _require_cue(cue, steps)
    side = _length(steps, min(2.6, max(1.1, 6.0 / heads)))
    figure = new_figure(side * heads + 1.6, side * layers + 0.9)
    panels: Any = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
    for row, column in np.ndindex(panels.shape):
        image = _draw_weights(
            panels[row, column],
            _by_time(weights_LHTW[row, column]),
            extent=(-0.5, steps - 0.5, steps - 0.5, -0.5),
            largest=weights_LHTW.max(),
        )
        if cue is not None:
            _point_at(panels[row, column], cue, label="cue" if row == 0 else "")
        panels[row, column].label_outer(remove_inner_ticks=True)
    for layer in range(layers):
        panels[layer, 0].set_ylabel(f"layer {layer + 1}", fontsize=FONT_SIZE)
    for head in range(heads):
        panels[-1, head].set_xlabel(f"head {head + 1}", fontsize=FONT_SIZE)
    figure.supxlabel("time step attended to", fontsize=FONT_SIZE)
    figure.supylabel("time step of the query", fontsize=FONT_SIZE)
    _add_scale(figure, image, list(panels.flat))
    save_figure(figure, path)


def _length(cells: int, least: float) -> float:
    """Return the length in inches at which each of `cells` cells has at least one pixel."""
    return max(least, cells / 150)


def _by_time(weights_TW: Float[np.ndarray, "T W"]) -> Float[np.ndarray, "T T"]:
    """Convert positions in each query's window to time steps; NaN outside the window."""
    steps, window = weights_TW.shape
    queries, keys = np.indices((steps, steps))
    places = keys - queries + window - 1
    seen = (places >= 0) & (places < window)
    return np.where(seen, weights_TW[queries, places.clip(0, window - 1)], np.nan)


def _draw_weights(
    axes: Axes,
    weights_RC: Float[np.ndarray, "R C"],
    extent: tuple[float, float, float, float],
    largest: float,
) -> AxesImage:
    axes.set_facecolor(_UNSEEN)
    image = axes.imshow(
        weights_RC,
        cmap="viridis",
        norm=PowerNorm(0.5, vmin=0, vmax=largest),
        extent=extent,
        aspect="auto",
        interpolation="nearest",
    )
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=FONT_SIZE - 1, color=GREY)
    return image


def _point_at(axes: Axes, x: float, label: str) -> None:
    """Mark a column from above and below, without covering its content."""
    place = axes.get_xaxis_transform()
    common: dict[str, Any] = {"color": _CUE, "clip_on": False, "transform": place, "markersize": 5}
    axes.plot([x], [1.0], marker=7, **common)  # a triangle whose tip is the point
    axes.plot([x], [0.0], marker=6, **common)
    if label:
        axes.annotate(
            label,
            (x, 1.0),
            xycoords=place,
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color=_CUE,
            fontsize=FONT_SIZE,
        )


def _add_scale(figure: Figure, image: AxesImage, panels: list[Axes]) -> None:
    scale = figure.colorbar(
        image, ax=panels, fraction=0.05, pad=0.02, aspect=figure.get_figheight() / 0.12
    )
    scale.outline.set_visible(False)
    scale.set_label("attention weight", fontsize=FONT_SIZE)
    scale.ax.tick_params(labelsize=FONT_SIZE - 1, color=GREY)


def _require_weights(weights: ArrayLike, axes: str) -> Float[np.ndarray, "..."]:
    array = np.asarray(weights, np.float64)
    if array.ndim != axes.count(",") + 1 or 0 in array.shape:
        raise ValueError(f"weights must be [{axes}]; got shape {list(array.shape)}")
    if not (array.min() >= 0 and array.max() <= 1 + 1e-3):  # also rejects NaN
        raise ValueError(
            f"weights must be softmax outputs, in [0, 1]; got {array.min():g} to {array.max():g}"
        )
    return array


def _require_cue(cue: int | None, length: int) -> None:
    if cue is not None and not 0 <= cue < length:
        raise ValueError(f"cue must be in 0 to {length - 1}, the range of the weights; got {cue}")
