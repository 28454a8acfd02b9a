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
experiments/results/rate_tmaze_<study>.json (every run with its command, commit, device, date and
seeds), .md (the table, beside the published numbers) and .png. Seeds that are in the JSON already
are not run again.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from gtrxl_jax.files import atomic
from gtrxl_jax.names import require_name
from gtrxl_jax.nn.valves import VALVES
from gtrxl_jax.ops.statistics import mean_and_interval
from gtrxl_jax.pictures.curves import panels_of_success, success_against_horizon
from gtrxl_jax.training.offline import OfflineTrainer
from gtrxl_jax.training.offline_config import OfflineConfig, preset
from gtrxl_jax.training.progress import ConsoleWriter
from gtrxl_jax.training.results import provenance
from gtrxl_jax.training.run import train

RESULTS = Path(__file__).parent / "results"
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
class Settings:
    """What to run."""

    study: tyro.conf.Positional[str]
    """corridors, valves, memory or curriculum."""
    num_seeds: int = 5
    preset: str = "default"
    only: tuple[str, ...] = ()
    """Labels of the cells to run; all if none is given."""
    again: bool = False
    """Run also what is in the results already."""


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


def run(label: str, cell: Cell, seeds: list[int]) -> dict[str, Any]:
    """Train and evaluate one cell, seed after seed."""
    results = []
    for seed in seeds:
        trainer = OfflineTrainer(dataclasses.replace(cell.config, seed=seed))
        console = ConsoleWriter(
            trainer.num_visits * trainer.steps_per_visit, ("loss", "accuracy/last_step")
        )
        results.append(train(trainer, writers=[console]).result)
        scores = {k: v[0] for k, v in results[-1].evaluation.items() if k.startswith("success")}
        print(f"  {label}, seed {seed}: {scores}", flush=True)
    lengths = cell.config.evaluation.lengths
    return provenance() | {
        "label": label,
        "config": dataclasses.asdict(cell.config),
        "lengths": list(lengths),
        "seeds": seeds,
        "success": [[r.evaluation[f"success/{n}"][0] for n in lengths] for r in results],
        "seconds": [r.compile_seconds + r.train_seconds for r in results],
    }


def by_valve(lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is by the labels of the study of valves, by valve and gradient."""
    panels: dict[str, dict[str, Any]] = {}
    for label, line in lines.items():
        valve, gradient = label.split(", ")
        panels.setdefault(valve, {})[gradient] = line
    return panels


def report(name: str, cells: dict[str, Cell], records: list[dict[str, Any]]) -> str:
    """Write the table and the figure of what has been run."""
    by_label = {r["label"]: [s for s in records if s["label"] == r["label"]] for r in records}
    lengths = sorted({n for r in records for n in r["lengths"]})
    rows = [
        "| model | " + " | ".join(map(str, lengths)) + " |",
        "|---" * (len(lengths) + 1) + "|",
    ]
    curves: dict[str, Any] = {}
    published: dict[str, Any] = {}
    for label, cell in cells.items():
        if label not in by_label:
            continue
        of_cell = by_label[label]
        played = of_cell[0]["lengths"]
        success_SN = np.concatenate([record["success"] for record in of_cell])
        means, halves = mean_and_interval(success_SN, axis=0)
        ours = dict(zip(played, zip(means, halves, strict=True), strict=True))
        entries = [f"{ours[n][0]:.2f} ± {ours[n][1]:.2f}" if n in ours else "" for n in lengths]
        rows.append(f"| {label} | " + " | ".join(entries) + " |")
        nowhere = np.full(len(success_SN), np.nan)
        curves[label] = np.stack(
            [success_SN[:, played.index(n)] if n in ours else nowhere for n in lengths], axis=1
        )
        if cell.published:
            theirs = dict(zip(PAPER, cell.published, strict=True))
            entries = [f"{theirs[n]:.2f}" if n in theirs else "" for n in lengths]
            rows.append(f"| {label}, published | " + " | ".join(entries) + " |")
            published[label] = (PAPER, cell.published)
    path = RESULTS / f"rate_tmaze_{name}"
    draw: Any = success_against_horizon
    if name == "valves":
        # Too many for one panel: one for each valve.
        draw, curves, published = panels_of_success, by_valve(curves), by_valve(published)
    draw(
        curves,
        lengths,
        path.with_suffix(".png"),
        published=published,
        x_label="corridor, steps of an episode",
        chance=0.5,
    )
    some = records[-1]
    minutes = sum(sum(record["seconds"]) for record in records) / 60
    commands, commits = (
        ", ".join(dict.fromkeys(record[field] for record in records))
        for field in ("command", "commit")
    )
    missing = [label for label in cells if label not in by_label]
    counts = {sum(len(record["seeds"]) for record in of_cell) for of_cell in by_label.values()}
    seeds = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
    text = [
        f"# RATE on the T-Maze: {name}",
        "",
        f"Success on {some['config']['evaluation']['episodes']} episodes of each length, mean and "
        f"95 % interval over {seeds} seeds. Chance is 0.5.",
        "",
        *rows,
        "",
        *([f"Not run yet: {'; '.join(missing)}.", ""] * bool(missing)),
        f"`{commands}`, {minutes:.0f} minutes in all, on "
        f"{some['device']}, {some['date'][:10]}, commits {commits}.",
        "",
    ]
    with atomic(path.with_suffix(".md")) as temporary:
        temporary.write_text("\n".join(text))
    return "\n".join(text)


def main(settings: Settings) -> None:
    """Run what is missing, one cell at a time, keeping each as soon as it is done."""
    cells = study(settings.study, preset(settings.preset))
    for label in settings.only:
        require_name("cell", label, cells)
    path = RESULTS / f"rate_tmaze_{settings.study}.json"
    records = json.loads(path.read_text()) if path.exists() and not settings.again else []
    with tempfile.TemporaryDirectory() as cache:
        # The seeds of a cell are one program, compiled once.
        jax.config.update("jax_compilation_cache_dir", cache)
        for label, cell in cells.items():
            done = {n for record in records if record["label"] == label for n in record["seeds"]}
            seeds = [n for n in range(settings.num_seeds) if n not in done]
            if not seeds or label not in (settings.only or cells):
                continue
            print(label, flush=True)
            records.append(run(label, cell, seeds))
            with atomic(path) as temporary:
                temporary.write_text(json.dumps(records, indent=1) + "\n")
    print(report(settings.study, cells, records))


if __name__ == "__main__":
    main(tyro.cli(Settings))
