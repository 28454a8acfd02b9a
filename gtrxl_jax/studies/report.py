"""Reports on records: Markdown tables and their entries, provenance, and figures of returns."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.formatting import format_number, format_numbers
from gtrxl_jax.plots.style import (
    GREY,
    assign_styles,
    grid_of,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.statistics import (
    SOLVED,
    count_solved,
    interquartile_mean,
    mean_and_interval,
    stratified_bootstrap,
    wilson_interval,
)
from gtrxl_jax.studies.records import Record

ENTRIES = (
    f"Entries: solved seeds (with a success of at least {SOLVED}) of all seeds, the 95 % Wilson "
    "interval of that fraction, and the median success over seeds."
)
"""The explanation of `solved_entry`."""

Paragraph = str | Sequence[str]
"""A text, or the lines of a table."""
Lines = Sequence[tuple[str, float, str]]
"""Horizontal lines: the label, the value and the style of each."""


def markdown(title: str, paragraphs: Sequence[Paragraph]) -> str:
    """Return a page with a title and those paragraphs that are not empty."""
    blocks = [block if isinstance(block, str) else "\n".join(block) for block in paragraphs]
    return "\n\n".join([f"# {title}", *filter(None, blocks)]) + "\n"


def fill_tables(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Replace the tables of a page, each between `<!-- table: NAME -->` and `<!-- end -->`.

    Raises:
      KeyError: if the page has a table of another name.
    """

    def filled(found: re.Match[str]) -> str:
        return "\n".join([found[1], "", *tables[found[2]], "", "<!-- end -->"])

    pattern = r"^(<!-- table: (\S+) -->)$.*?^<!-- end -->$"
    return re.sub(pattern, filled, page, flags=re.DOTALL | re.MULTILINE)


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def median(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Format the median of the values that are not NaN; empty if there are none."""
    known = _known(values)
    return format_number(float(np.median(known)), digits) if len(known) else ""


def mean_entry(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Format the mean with its 95 % interval (Student's t), omitted for one value: `0.83 ± 0.72`.

    Values that are NaN are left out; empty if there are no others.
    """
    known = _known(values)
    if not len(known):
        return ""
    mean, half = map(float, mean_and_interval(known, axis=0))
    if len(known) == 1:
        return format_number(mean, digits)
    return " ± ".join(format_numbers([mean, half], digits))


def solved_share(scores_S: np.ndarray, threshold: float = SOLVED) -> str:
    """Format the seeds with a score of at least the threshold as `4/5 [0.38, 0.96]`."""
    count, seeds = count_solved(scores_S, threshold), len(scores_S)
    low, high = wilson_interval(count, seeds)
    return f"{count}/{seeds} [{low:.2f}, {high:.2f}]"


def solved_entry(scores_S: np.ndarray) -> str:
    """Format scores as `4/5 [0.38, 0.96], 1.00`, see `ENTRIES`."""
    return f"{solved_share(scores_S)}, {median(scores_S)}"


def iqm_entry(scores_by_task: Sequence[np.ndarray]) -> str:
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
        return format_number(iqm, digits=2)
    ends = map(float, stratified_bootstrap(tasks, interquartile_mean))
    text, low, high = format_numbers([iqm, *ends], digits=2)
    return f"{text} [{low}, {high}]"


def _known(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, np.float64)
    return array[~np.isnan(array)]


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
      curve: the metric to draw, which a run that is shorter than its episodes may lack.
    """
    if not panels:
        return
    rows, columns = grid_of(len(panels))
    figure = new_figure(2.3 * columns + 1.2, 2.5 * rows)
    entries: dict[str, Any] = {}
    axes_RC = figure.subplots(rows, columns, squeeze=False)
    for axes in axes_RC.flat[len(panels) :]:
        axes.remove()
    for task, axes in zip(panels, axes_RC.flat, strict=False):
        for core, look in assign_styles(cores):
            for run in cells.get((task, core), []):
                if points := run["curve"].get(curve):
                    steps, values = np.array(points["step"]) / 1e6, points["value"]
                    line = axes.plot(steps, values, **look | {"marker": ""}, linewidth=1.0)
                    entries[core] = line[0]
        for label, value, style in panels[task]:
            entries[label] = axes.axhline(value, color=GREY, linestyle=style, linewidth=1.0)
        axes.set_title(task.removesuffix("-v0"), fontsize=9)
        axes.set_xlabel("million steps")
        style_axes(axes)
    for axes in axes_RC[:, 0]:
        axes.set_ylabel("return")
    legend_outside(figure, "", entries)
    save_figure(figure, path)
