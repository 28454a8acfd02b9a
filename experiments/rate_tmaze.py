"""RATE on the T-Maze: success on corridors much longer than in training.

    python experiments/rate_tmaze.py corridors
    python experiments/rate_tmaze.py valves
    python experiments/rate_tmaze.py memory
    python experiments/rate_tmaze.py curriculum

Each study trains models on the oracle's episodes with `OfflineTrainer`:

    corridors    RATE (with memory tokens; once also with a cache of hidden states) and DT (without
                 memory; all N * K steps at once) with N = 3 and 5 segments of 30: success from 30
                 to 360 steps, for RATE up to 9600
    valves       the six Memory Retention Valves, with gradients through the whole trajectory, and
                 with the memory detached at every segment, as in the authors' code, with 500 and
                 with 2,000 updates
    memory       memory tokens and cache, each of them alone, and tokens replaced by noise when
                 acting
    curriculum   starting with one segment, or with all segments

The models have 2 layers of width 64 and train in minutes on two cores; `--preset tmaze` uses the
paper's size. Scores are those of the final parameters, without checkpoint selection. Each study
writes rate_tmaze_<study>.jsonl, .md (a table that includes the published numbers) and .png to
experiments/results/.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tyro

from gtrxl_jax.nn.sequence.valves import VALVES
from gtrxl_jax.offline.config import OfflineConfig, preset
from gtrxl_jax.plots.curves import plot_success_against_horizon, plot_success_panels
from gtrxl_jax.plugins import with_name
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell
from gtrxl_jax.studies.report import ENTRIES, Paragraph, solved_entry, table

SHORT = (30, 60, 90, 150, 360, 600, 900)
LONG = (*SHORT, 1800, 3600, 9600)
SLIDING = (30, 60, 90, 150, 360)
"""Lengths for models that recompute a sliding window at every step, which is slow."""
PAPER = (150, 360, 600, 900)
GRADIENTS: dict[str, dict[str, Any]] = {
    "whole gradient": {},
    "detached": {"bptt": 0},
    "detached, 2,000 updates": {"bptt": 0, "total_updates": 2000},
}


@dataclasses.dataclass(frozen=True)
class Planned:
    """A cell of a study: a config, except its seed, and the published scores."""

    config: OfflineConfig
    published: tuple[float, ...] = ()
    """Success at the lengths `PAPER` (RATE's table 3, N = 5)."""


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What to run, and the preset of the models."""

    study: tyro.conf.Positional[str] = tyro.MISSING
    """corridors, valves, memory or curriculum."""
    preset: str = "default"


def changed(config: OfflineConfig, lengths: tuple[int, ...] = SHORT, **changes: Any) -> Any:
    """Return the config with changed fields, including those of its model and evaluation.

    If not said otherwise, it has at least 100 updates per segment, that is per stage of the
    curriculum.
    """
    model = with_name(config.model, changes.pop("name", config.model.name))
    names = {f.name for f in dataclasses.fields(model)}
    of_model = {k: changes.pop(k) for k in list(changes) if k in names}
    noise = changes.pop("memory_noise", False)
    updates = changes.pop("total_updates", 100 * changes.get("segments", config.segments))
    return dataclasses.replace(
        config,
        total_updates=max(config.total_updates, updates),
        model=dataclasses.replace(model, **of_model),
        evaluation=dataclasses.replace(config.evaluation, lengths=lengths, memory_noise=noise),
        **changes,
    )


def study(name: str, base: OfflineConfig) -> dict[str, Planned]:
    """Return the cells of a study, by label."""
    if name == "corridors":
        rates = {
            f"RATE-{n}": Planned(changed(base, LONG, segments=n), published)
            for n, published in ((3, ()), (5, (1.0, 0.95, 0.90, 0.90)))
        }
        rates["RATE-5, cache of 90"] = Planned(changed(base, LONG, segments=5, cache_size=90))
        return rates | {
            f"DT-{n}": Planned(changed(base, SLIDING, segments=n, name="dt")) for n in (3, 5)
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
            f"{valve}, {label}": Planned(
                changed(base, PAPER, segments=5, valve=valve, **gradient),
                published[valve] if label == "detached" else (),
            )
            for valve in VALVES
            for label, gradient in GRADIENTS.items()
        }
    if name == "memory":
        return {
            "tokens": Planned(changed(base, segments=5, cache_size=0)),
            "cache": Planned(changed(base, segments=5, cache_size=90, memory_tokens=0)),
            "both": Planned(changed(base, segments=5, cache_size=90)),
            "tokens, noise when acting": Planned(
                changed(base, segments=5, cache_size=0, memory_noise=True)
            ),
        }
    if name == "curriculum":
        return {
            label: Planned(changed(base, segments=5, curriculum=curriculum))
            for label, curriculum in (("curriculum", True), ("all segments at once", False))
        }
    raise ValueError(f"unknown study {name!r}: choose corridors, valves, memory or curriculum")


def grid(options: Settings) -> list[Cell]:
    """Return the cells of a study."""
    cells = []
    for label, planned in study(options.study, preset(options.preset)).items():
        config = planned.config
        if options.steps:
            config = dataclasses.replace(config, total_updates=options.steps)
        cells.append(Cell({"model": label}, config, options.seeds or 5))
    return cells


def by_valve(lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Regroup entries of the valves study by valve, then by gradient."""
    panels: dict[str, dict[str, Any]] = {}
    for label, line in lines.items():
        valve, gradient = label.split(", ", 1)
        panels.setdefault(valve, {})[gradient] = line
    return panels


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = study(options.study, preset(options.preset))
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
        successes = zip(lengths, success_SN.T, strict=True)
        rows.append([label, *(solved_entry(x_S) if n in played else "" for n, x_S in successes)])
        if cell.published:
            theirs = dict(zip(PAPER, cell.published, strict=True))
            means = dict(zip(lengths, success_SN.mean(axis=0), strict=True))
            for kind, numbers in (("mean", means), ("published mean", theirs)):
                entries = [f"{numbers[n]:.2f}" if n in theirs else "" for n in lengths]
                rows.append([f"{label}, {kind}", *entries])
            published[label] = (PAPER, cell.published)
    draw: Any = plot_success_against_horizon
    if options.study == "valves":
        # One panel for each valve, since there are too many curves for a single one.
        draw, curves, published = plot_success_panels, by_valve(curves), by_valve(published)
    draw(
        curves,
        lengths,
        options.results / f"{name_of(options)}.png",
        published=published,
        x_label="corridor, steps of an episode",
        chance=0.5,
    )
    missing = [label for label in cells if label not in by_label]
    return f"RATE on the T-Maze: {options.study}", [
        f"Success on {next(iter(cells.values())).config.evaluation.episodes} episodes of each "
        f"length; chance is 0.5. {ENTRIES}",
        table(["model", *lengths], rows),
        f"Not run yet: {'; '.join(missing)}." if missing else "",
    ]


def lengths_of(record: Record) -> set[int]:
    """Return the lengths at which a run was evaluated."""
    return {int(k.split("/")[1]) for k in record["scores"] if k.startswith("success/")}


def name_of(options: Settings) -> str:
    """Return the name of the study."""
    preset = "" if options.preset == "default" else f"_{options.preset}"
    return f"rate_tmaze_{options.study}{preset}"


STUDY = Study(__file__, grid, report, Settings, name_of)

if __name__ == "__main__":
    STUDY.main()
