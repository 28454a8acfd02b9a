"""Reports on the records of a study (see `study`): tables in Markdown, and where they come from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study import Record

from gtrxl_jax.files import atomic
from gtrxl_jax.ops.statistics import SOLVED, solved, wilson_interval

ENTRIES = (
    f"Entries: seeds solved (a success of at least {SOLVED}) of all, the 95 % interval of that "
    "share (Wilson's), and the median success over seeds."
)
"""What `solved_entry` shows."""


def by_cell(records: Sequence[Record], *names: str) -> dict[Any, list[Record]]:
    """Records by some of their labels: the value of one, or tuples of several."""
    cells: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record["labels"].get(name) for name in names)
        cells.setdefault(values if len(names) > 1 else values[0], []).append(record)
    return cells


def scores(records: Sequence[Record], score: str = "success") -> np.ndarray:
    """One score of each record, `[S]`; NaN where the run diverged."""
    return np.array([float(record["scores"][score]) for record in records])


def solved_entry(scores_S: np.ndarray, threshold: float = SOLVED) -> str:
    """`4/5 [0.38, 0.96], 1.00`: see `ENTRIES`."""
    count, seeds = solved(scores_S, threshold), len(scores_S)
    low, high = wilson_interval(count, seeds)
    return f"{count}/{seeds} [{low:.2f}, {high:.2f}], {median(scores_S)}"


def median(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Of the values that are there (no NaN), or an empty string."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return f"{np.median(known):,.{digits}f}" if len(known) else ""


def to_goal(records: Sequence[Record], field: str) -> np.ndarray:
    """The `steps` or the `seconds` that each record took to its goal, `[S]`; NaN if it did not."""
    return np.array([record["goal"].get(field) or np.nan for record in records], np.float64)


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def origin(records: Sequence[Record]) -> str:
    """A sentence on where the records come from."""

    def each(field: str) -> str:
        return ", ".join(sorted({str(record[field]) for record in records if field in record}))

    seconds = sum(record.get("seconds", 0) for record in records)
    hours = f"{seconds / 3600:.1f} hours in all, " if seconds else ""
    days = sorted(record["date"][:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    programs = sorted({record["command"].split()[0] for record in records})
    cores = f", {each('cores')} of its cores for each run" if "cores" in records[0] else ""
    return (
        f"{len(records)} runs of `{', '.join(programs)}`, {hours}on "
        f"{each('device')}{cores}, {when}, commits {each('commit')}."
    )


def write_report(path: Path, title: str, paragraphs: Sequence[str | Sequence[str]]) -> None:
    """Write and print a report: a title, and paragraphs, which may be tables."""
    blocks = [block if isinstance(block, str) else "\n".join(block) for block in paragraphs]
    text = "\n\n".join([f"# {title}", *(block for block in blocks if block)]) + "\n"
    with atomic(path) as temporary:
        temporary.write_text(text)
    print(text)
