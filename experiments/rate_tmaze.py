"""RATE on the T-Maze: success on corridors far longer than those trained on.

    python experiments/rate_tmaze.py corridors
    python experiments/rate_tmaze.py valves
    python experiments/rate_tmaze.py memory
    python experiments/rate_tmaze.py curriculum

One study each, of models that learn from the oracle's episodes by `OfflineTrainer`:

    corridors    RATE (memory tokens; once with a cache of hidden states, too) and DT (no memory;
                 all N * K steps at once) with N = 3 and 5 segments of 30: success from 30 to 360
                 steps, and RATE on to 9600
    valves       the six Memory Retention Valves, with gradients through the whole trajectory, and
                 detached at every segment, as the authors train
    memory       memory tokens and cache, either alone, and tokens replaced by noise when acting
    curriculum   from one segment on, or all segments at once

at 2 layers of width 64, which two cores train in minutes; `--preset tmaze` has the paper's size.
Numbers are of the last parameters: no checkpoint is chosen. Each study writes
experiments/results/rate_tmaze_<study>/ (each run), .md (the table, beside the published numbers)
and .png.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tyro
from study import Options, Record, Run, run_study
from study_report import ENTRIES, by_cell, origin, solved_entry, table, write_report

from gtrxl_jax.nn.sequence.valves import VALVES
from gtrxl_jax.offline.config import OfflineConfig, preset
from gtrxl_jax.plots.curves import panels_of_success, success_against_horizon

SHORT = (30, 60, 90, 150, 360, 600, 900)
LONG = (*SHORT, 1800, 3600, 9600)
SLIDING = (30, 60, 90, 150, 360)
"""For a window that slides and is looked at anew at each step, which takes its time."""
PAPER = (150, 360, 600, 900)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kind of run: a config, changed for each seed, and what the paper has for it."""

    config: OfflineConfig
    published: tuple[float, ...] = ()
    """Success at the lengths `PAPER` (RATE's table 3, N = 5)."""


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What to run."""

    study: tyro.conf.Positional[str] = tyro.MISSING
    """corridors, valves, memory or curriculum."""
    preset: str = "default"


def changed(config: OfflineConfig, lengths: tuple[int, ...] = SHORT, **changes: Any) -> Any:
    """The config with fields of its own, and of its model and evaluation, changed.

    There are 100 updates for each segment, a stage of the curriculum, if the preset has fewer.
    """
    model = {f.name for f in dataclasses.fields(config.model)}
    of_model = {k: changes.pop(k) for k in list(changes) if k in model}
    noise = changes.pop("memory_noise", False)
    updates = 100 * changes.get("segments", config.segments)
    return dataclasses.replace(
        config,
        total_updates=max(config.total_updates, updates),
        model=dataclasses.replace(config.model, **of_model),
        evaluation=dataclasses.replace(config.evaluation, lengths=lengths, memory_noise=noise),
        **changes,
    )


def study(name: str, base: OfflineConfig) -> dict[str, Cell]:
    """The cells of a study, by their labels."""
    if name == "corridors":
        rates = {
            f"RATE-{n}": Cell(changed(base, LONG, segments=n), published)
            for n, published in ((3, ()), (5, (1.0, 0.95, 0.90, 0.90)))
        }
        rates["RATE-5, cache of 90"] = Cell(changed(base, LONG, segments=5, cache_size=90))
        return rates | {
            f"DT-{n}": Cell(changed(base, SLIDING, segments=n, name="dt")) for n in (3, 5)
        }
    if name == "valves":
        published = {
            "none": (1.00, 0.66, 0.65, 0.61),
            "ca-2": (1.00, 0.95, 0.90, 0.90),
            "g": (0.86, 0.77, 0.66, 0.65),
            "gru": (0.99, 0.74, 0.56, 0.55),
            "lstm": (0.85, 0.64, 0.51, 0.47),
            "ca-1": (0.51, 0.51, 0.49, 0.49),
        }
        return {
            f"{valve}, {label}": Cell(
                changed(base, PAPER, segments=5, valve=valve, bptt=bptt),
                published[valve] if bptt == 0 else (),
            )
            for valve in VALVES
            for label, bptt in (("whole gradient", None), ("detached", 0))
        }
    if name == "memory":
        tokens, cache = {"cache_size": 0}, {"memory_tokens": 0, "cache_size": 90}
        return {
            "tokens": Cell(changed(base, segments=5, **tokens)),
            "cache": Cell(changed(base, segments=5, **cache)),
            "both": Cell(changed(base, segments=5, cache_size=90)),
            "tokens, noise when acting": Cell(
                changed(base, segments=5, memory_noise=True, **tokens)
            ),
        }
    if name == "curriculum":
        return {
            label: Cell(changed(base, segments=5, curriculum=curriculum))
            for label, curriculum in (("curriculum", True), ("all segments at once", False))
        }
    raise ValueError(f"no study {name!r}: choose corridors, valves, memory or curriculum")


def by_valve(lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is by the labels of the study of valves, by valve and gradient."""
    panels: dict[str, dict[str, Any]] = {}
    for label, line in lines.items():
        valve, gradient = label.split(", ")
        panels.setdefault(valve, {})[gradient] = line
    return panels


def report(options: Settings, cells: dict[str, Cell], records: Sequence[Record]) -> None:
    """Write the table and the figure of what has been run."""
    by_label = by_cell(records, "model")
    lengths = sorted(set().union(*map(lengths_of, records)))
    rows: list[list[str]] = []
    curves: dict[str, Any] = {}
    published: dict[str, Any] = {}
    for label, cell in cells.items():
        of_cell = by_label.get(label, [])
        if not of_cell:
            continue
        success_SN = np.array(
            [[float(r["scores"].get(f"success/{n}", np.nan)) for n in lengths] for r in of_cell]
        )
        curves[label] = success_SN
        played = set().union(*map(lengths_of, of_cell))
        entries = zip(lengths, success_SN.T, strict=True)
        rows.append([label, *(solved_entry(x_S) if n in played else "" for n, x_S in entries)])
        if cell.published:
            theirs = dict(zip(PAPER, cell.published, strict=True))
            means = dict(zip(lengths, success_SN.mean(axis=0), strict=True))
            for kind, numbers in (("mean", means), ("published mean", theirs)):
                entries = [f"{numbers[n]:.2f}" if n in theirs else "" for n in lengths]
                rows.append([f"{label}, {kind}", *entries])
            published[label] = (PAPER, cell.published)
    name = f"rate_tmaze_{options.study}"
    draw: Any = success_against_horizon
    if options.study == "valves":
        # Too many for one panel: one for each valve.
        draw, curves, published = panels_of_success, by_valve(curves), by_valve(published)
    draw(
        curves,
        lengths,
        options.results / f"{name}.png",
        published=published,
        x_label="corridor, steps of an episode",
        chance=0.5,
    )
    missing = [label for label in cells if label not in by_label]
    write_report(
        options.results / f"{name}.md",
        f"RATE on the T-Maze: {options.study}",
        [
            f"Success on {next(iter(cells.values())).config.evaluation.episodes} episodes of each "
            f"length; chance is 0.5. {ENTRIES}",
            table(["model", *lengths], rows),
            f"Not run yet: {'; '.join(missing)}." if missing else "",
            origin(records),
        ],
    )


def lengths_of(record: Record) -> set[int]:
    """At which a run was evaluated."""
    return {int(k.split("/")[1]) for k in record["scores"] if k.startswith("success/")}


def main(options: Settings) -> None:
    """Run what is missing, and report."""
    cells = study(options.study, preset(options.preset))
    runs = [
        Run({"model": label}, seed, limited(cell.config, options.steps))
        for label, cell in cells.items()
        for seed in range(options.seeds or 5)
    ]
    report(options, cells, run_study(f"rate_tmaze_{options.study}", runs, options))


def limited(config: OfflineConfig, updates: int | None) -> OfflineConfig:
    """The config, with that many updates if they are given."""
    if updates is None:
        return config
    return dataclasses.replace(config, total_updates=updates)


if __name__ == "__main__":
    main(tyro.cli(Settings))
