"""The report of a comparison: its tables, and the files with them and the figures."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gtrxl_jax.comparison.figures import draw_curves, draw_ranking
from gtrxl_jax.comparison.seeds import Seed, find_runs, grouped, read_seeds
from gtrxl_jax.files import atomic
from gtrxl_jax.ops.statistics import SOLVED
from gtrxl_jax.plots.tables import iqm_entry, median, solved_share, table

HEAD = ("task", "agent", "solved", "median", "IQM", "steps to the goal", "steps")


def compare(
    paths: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    goal: float | None = None,
    show: Callable[[str], None] | None = None,
) -> tuple[str, list[Path]]:
    """Compare runs, finished or not, by agent and task.

    Args:
      paths: folders of online runs, or folders that contain some.
      folder: a folder for comparison.md and the pictures, created if missing.
      goal: the score from which a seed counts as having solved its task; for successes 0.95 if not
        given, for returns none.
      show: called with the text before any file is written.

    Returns:
      The Markdown text of comparison.md, and the paths of all files.

    Raises:
      FileNotFoundError: if there is no run with metrics.
      ValueError: if a path is an offline run.
      OSError: if a file cannot be written.
    """
    folders = find_runs(paths)
    seeds = read_seeds(folders)
    if not seeds:
        raise FileNotFoundError("the runs have no metrics yet: compare them after an iteration")
    folder = Path(folder)
    waiting = _waiting(folders, seeds)
    seeds, copies = _distinct(seeds)
    by_task = grouped(seeds, lambda seed: seed.task)
    lines = "\n".join(_table(by_task, goal))
    notes = [*waiting, *copies, *_averaged(by_task), _explanation(goal)]
    text = "\n\n".join(["# Comparison", lines, *notes, *_drawn(by_task)])
    if show:
        show(text)
    pictures = []
    for task, of_task in by_task.items():
        name = re.sub("[^A-Za-z0-9.+]+", "-", task).strip("-")
        suffix = f"_{name}" if len(by_task) > 1 else ""
        pictures.append(folder / f"comparison_curves{suffix}.png")
        draw_curves(of_task, pictures[-1])
    pictures.append(folder / "comparison_ranking.png")
    draw_ranking(by_task, pictures[-1])
    path = folder / "comparison.md"
    with atomic(path) as temporary:
        temporary.write_text(text + "\n", "utf-8", errors="backslashreplace")
    return text, [path, *pictures]


def _table(by_task: Mapping[str, Sequence[Seed]], goal: float | None) -> list[str]:
    rows = []
    for task, of_task in by_task.items():
        for label, group in grouped(of_task, lambda seed: seed.label).items():
            rows.append([task, label, *_entries([group], goal)])
    # Successes of several tasks are on one scale.
    if len(by_task) > 1 and all(s.score == "success" for seeds in by_task.values() for s in seeds):
        groups = [grouped(seeds, lambda seed: seed.label) for seeds in by_task.values()]
        for label in groups[0]:
            if all(label in group for group in groups):
                of_label = [group[label] for group in groups]
                rows.append([f"all {len(groups)}", label, *_entries(of_label, goal)])
    return table(HEAD, rows)


def _finals(seeds: Iterable[Seed]) -> Float[np.ndarray, " S"]:
    return np.array([seed.final for seed in seeds])


def _entries(groups: Sequence[Sequence[Seed]], goal: float | None) -> list[str]:
    """Return the entries of a row from its seeds of each task."""
    seeds = [seed for group in groups for seed in group]
    if goal is None and seeds[0].score == "success":
        goal = SOLVED
    count = len(seeds)
    share = solved_share(_finals(seeds), goal) if goal is not None else f"of {count}"
    steps = sorted({seed.steps for seed in seeds})
    text = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
    diverged = sum(seed.has_diverged for seed in seeds)
    unfinished = sum(not (seed.is_finished or seed.has_diverged) for seed in seeds)
    for number, state in ((diverged, "diverged"), (unfinished, "unfinished")):
        text += f", {number} of {count} {state}" if number else ""
    return [
        share,
        median(_finals(seeds)),
        iqm_entry([_finals(group) for group in groups]),
        median([seed.steps_to(goal) for seed in seeds], digits=0),
        text,
    ]


def _waiting(folders: Sequence[Path], seeds: Sequence[Seed]) -> list[str]:
    """Return a line that names the runs without seeds, if there are any."""
    read = {seed.folder for seed in seeds}
    waiting = [str(folder) for folder in folders if folder not in read]
    return [f"Left out, without metrics so far: {', '.join(waiting)}."] if waiting else []


def _distinct(seeds: Sequence[Seed]) -> tuple[list[Seed], list[str]]:
    """Return the seeds without copies, and a line that names these, if there are any.

    The same seed with the same settings, also drawn ones, is the same sample: of several, the one
    that has come furthest is kept; of those that have come equally far, the first by folder.
    """
    first: dict[tuple[str, int], Seed] = {}
    for seed in sorted(seeds, key=lambda seed: (-seed.steps, not seed.is_finished, seed.folder)):
        first.setdefault((seed.settings, seed.number), seed)
    distinct: list[Seed] = []
    copies: dict[tuple[Path, Path], list[str]] = {}
    for seed in seeds:
        original = first[seed.settings, seed.number]
        if seed is original:
            distinct.append(seed)
        else:
            copies.setdefault((seed.folder, original.folder), []).append(str(seed.number))
    if not copies:
        return distinct, []
    named = [f"{a} (seed {', '.join(numbers)} of {b})" for (a, b), numbers in copies.items()]
    line = f"Left out, with the settings and the seed of another run: {'; '.join(named)}."
    return distinct, [f"{line} Further runs need another `seed`."]


def _averaged(by_task: Mapping[str, Sequence[Seed]]) -> list[str]:
    """Return a line that names the agents of several tasks that are compared by their return."""
    averaged = [
        task
        for task, (seed, *_) in by_task.items()
        if seed.num_tasks > 1 and seed.score == "return"
    ]
    if not averaged:
        return []
    return [
        f"The return of {'; '.join(averaged)} is a mean over tasks, which need not have a common "
        "unit. Runs with `env.references` are compared by their normalized score instead."
    ]


def _drawn(by_task: Mapping[str, Sequence[Seed]]) -> list[str]:
    """Return a section with what each seed has drawn and its score; empty if none has drawn."""
    drawn = [
        seed
        for of_task in by_task.values()
        for seed in sorted(of_task, key=lambda seed: -np.nan_to_num(seed.final, nan=-np.inf))
        if seed.drawn
    ]
    if not drawn:
        return []
    names = list(dict.fromkeys(name for seed in drawn for name in seed.drawn))
    rows = []
    for seed in drawn:
        values = [f"{seed.drawn[name]:.3g}" if name in seed.drawn else "" for name in names]
        rows.append([seed.task, seed.label, seed.number, *values, median([seed.final], 3)])
    return [
        "## Drawn settings",
        "\n".join(table(("task", "agent", "seed", *names, "score"), rows)),
        "Of the finished runs: what each seed has drawn, and its final score, the best of a task "
        "first. A seed that diverged has no score.",
    ]


def _explanation(goal: float | None) -> str:
    value = f"{SOLVED} of success" if goal is None else f"{goal:g}"
    return (
        f"Solved: the seeds whose final score is at least the goal, {value}, of all seeds, and the "
        "95 % Wilson interval of that fraction. IQM: interquartile mean, and its 95 % bootstrap "
        "interval, stratified by task. Steps to the goal: median over the seeds that have reached "
        "it, in training or in an evaluation. An unfinished run counts with its latest score, and "
        "a seed that diverged only as not solved."
    )
