"""The common style of all figures. matplotlib's global state is neither read nor changed."""

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gtrxl_jax.files import atomic

# Okabe and Ito, "Color universal design" (2008), without yellow, which is illegible on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Distinguishable without color.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINE_STYLES = ("-", "--", ":", "-.")
GREY = "#666666"
FONT_SIZE = 9.0
LINE_LENGTH = 40
"""Number of characters in a line of a legend."""
COLUMNS = 3
"""The most panels in a row of a figure with at most as many rows; others have one more."""
MARGIN = 0.2
"""Height around a legend, in inches."""


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure, sizes in inches (a paper's text column is about 3.3 or 6.5 wide)."""
    figure = Figure(figsize=(width, height), dpi=200, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def grid_of(panels: int) -> tuple[int, int]:
    """Return the rows and the columns of a figure with a number of panels."""
    columns = min(panels, COLUMNS + (panels > COLUMNS**2))
    return math.ceil(panels / columns), columns


def style_axes(axes: Axes) -> None:
    """Apply the style: two spines, and a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=FONT_SIZE - 1)
    axes.xaxis.label.set_fontsize(FONT_SIZE)
    axes.yaxis.label.set_fontsize(FONT_SIZE)


def legend_outside(figure: Figure, title: str, entries: Mapping[str, Any] | None = None) -> None:
    """Add a legend to the right of the axes, where it hides no data.

    The figure grows if the legend would take more than half of its width, or is higher.

    Args:
      figure: a figure whose axes are drawn.
      title: title of the legend.
      entries: for each label, the matplotlib artist that it describes; all labeled artists if
        None.
    """
    legend = figure.legend(
        **({} if entries is None else {"labels": list(entries), "handles": list(entries.values())}),
        title=title,
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=FONT_SIZE - 1,
        title_fontsize=FONT_SIZE - 1,
    )
    for text in legend.get_texts():
        text.set_text(textwrap.fill(text.get_text(), LINE_LENGTH))
    box, (width, height) = legend.get_window_extent(), figure.get_size_inches()
    width = max(width, 2 * box.width / figure.dpi)
    figure.set_size_inches(width, max(height, box.height / figure.dpi + MARGIN))


def assign_styles(labels: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a color, marker and line style for each label, as arguments of matplotlib's `plot`."""
    for index, label in enumerate(labels):
        turn, place = divmod(index, len(COLORS))
        yield (
            label,
            {
                "color": COLORS[place],
                "marker": MARKERS[place],
                "linestyle": LINE_STYLES[turn % len(LINE_STYLES)],
            },
        )


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a PNG file atomically."""
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
