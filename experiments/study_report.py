"""Reports on the records of a study (see `study`), and their provenance."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study import Record

from gtrxl_jax.files import atomic
from gtrxl_jax.plots.style import GREY, legend_outside, looks, new_figure, save_figure, style_axes

COLUMNS = 3
"""The most panels in a row of a figure."""


def by_cell(records: Sequence[Record], *names: str) -> dict[Any, list[Record]]:
    """Group records by some of their labels; keys are the values of one, or tuples of several."""
    cells: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record["labels"].get(name) for name in names)
        cells.setdefault(values if len(names) > 1 else values[0], []).append(record)
    return cells


def scores(records: Sequence[Record], score: str = "success") -> np.ndarray:
    """Return one score of each record, `[S]`; NaN for diverged runs."""
    return np.array([float(record["scores"][score]) for record in records])


def to_goal(records: Sequence[Record], field: str) -> np.ndarray:
    """Return the `steps` or `seconds` of each record to its goal, `[S]`; NaN if not reached."""
    return np.array([record["goal"].get(field) or np.nan for record in records], np.float64)


def origin(records: Sequence[Record]) -> str:
    """Return a sentence about the provenance of the records."""

    def each(field: str) -> str:
        return ", ".join(sorted({str(record[field]) for record in records if field in record}))

    seconds = sum(record.get("seconds", 0) for record in records)
    hours = f"{seconds / 3600:.1f} hours in all, " if seconds else ""
    days = sorted(record["date"][:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    programs = sorted({record["command"].split()[0] for record in records})
    cores = f", {each('cores')} of its cores for each run" if "cores" in records[0] else ""
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    return (
        f"{runs} of `{', '.join(programs)}`, {hours}on "
        f"{each('device')}{cores}, {when}, commits {each('commit')}."
    )


def write_report(path: Path, title: str, paragraphs: Sequence[str | Sequence[str]]) -> None:
    """Write and print a report with a title and paragraphs, which may be tables."""
    blocks = [block if isinstance(block, str) else "\n".join(block) for block in paragraphs]
    text = "\n\n".join([f"# {title}", *(block for block in blocks if block)]) + "\n"
    with atomic(path) as temporary:
        temporary.write_text(text)
    print(text)


Lines = Sequence[tuple[str, float, str]]
"""Horizontal lines: the label, the value and the style of each."""


def draw_returns(
    cells: Mapping[Any, Sequence[Record]],
    cores: Sequence[str],
    panels: Mapping[str, Lines],
    path: Path,
    curve: str = "evaluation/return",
) -> None:
    """Draw the return of each seed over training, in a panel for each task, beside other scores.

    Args:
      cells: the records of each pair of a task and a core.
      cores: the cores, in the order of the legend.
      panels: for each task its lines, the scores to compare with.
      path: the PNG file to write; none is written without panels.
      curve: the metric to draw.
    """
    if not panels:
        return
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(2.3 * columns + 1.2, 2.5 * rows)
    entries: dict[str, Any] = {}
    axes_RC = figure.subplots(rows, columns, squeeze=False)
    for axes in axes_RC.flat[len(panels) :]:
        axes.remove()
    for task, axes in zip(panels, axes_RC.flat, strict=False):
        for core, look in looks(cores):
            for run in cells.get((task, core), []):
                steps = np.array(run["curve"][curve]["step"]) / 1e6
                values = run["curve"][curve]["value"]
                entries[core] = axes.plot(steps, values, **look | {"marker": ""}, linewidth=1.0)[0]
        for label, value, style in panels[task]:
            entries[label] = axes.axhline(value, color=GREY, linestyle=style, linewidth=1.0)
        axes.set_title(task.removesuffix("-v0"), fontsize=9)
        axes.set_xlabel("million steps")
        style_axes(axes)
    for axes in axes_RC[:, 0]:
        axes.set_ylabel("return")
    legend_outside(figure, "", entries)
    save_figure(figure, path)
