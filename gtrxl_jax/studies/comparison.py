"""Comparison of online runs by their folders: a table, learning curves, and runs ranked by score.

The records of runs in folders have, beside what `studies.records` names,

    labels            "task", the environment and its parameters; "core", with the algorithm if the
                      runs have several; and "agent": that, and the settings in which runs of the
                      same core differ
    folder, settings  the run's folder, and the settings on which the score of a seed depends
    score             "success", or "return" for environments without successes; "normalized" for
                      several tasks with reference returns
    scores            of the final evaluation; before it, of the latest one; NaN if diverged
    curve             all points; of a normalized score only evaluations, as training has none
    steps, total      the steps so far, and the steps of the finished run
    sampled           the settings sampled for the seed; known once the run is finished
    finished, diverged, tasks    whether the run has its result, whether the seed has diverged, and
                      the number of tasks of the agent, over which its scores are means
"""

import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.files import write_text
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.plots.curves import plot_learning_curves
from gtrxl_jax.plots.ranking import plot_ranking
from gtrxl_jax.runs.config import run_kind, with_defaults
from gtrxl_jax.runs.directory import MAY_CHANGE, read_config, status_of
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import main_scores
from gtrxl_jax.statistics import SOLVED
from gtrxl_jax.studies.records import Record, by_cell, curves_of, goal_of, scores, to_goal
from gtrxl_jax.studies.report import iqm_entry, markdown, median, solved_share, table
from gtrxl_jax.studies.settings import flatten

HEAD = ("task", "agent", "solved", "median", "IQM", "steps to the goal", "steps")
OF_SEEDS = ("seed", "num_seeds", *MAY_CHANGE)
NO_VARIANT = ("env.name", "env.params", "env.tasks", "env.trial", "sweep", *OF_SEEDS)
STAGES = {"after a quarter": 0.25, "after half": 0.5, "at the end": 1.0}
"""The parts of training at which runs of a single task are ranked, as in GTrXL's figure 5."""
NAMES = {"success": "success rate", "return": "return", "normalized": "normalized score"}
"""The name of each score on an axis."""


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
      folder: a folder for comparison.md and the plots, created if missing.
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
    records = read_runs(folders, goal)
    if not records:
        raise FileNotFoundError("the runs have no metrics yet: compare them after an iteration")
    folder = Path(folder)
    read = {record["folder"] for record in records}
    records, copies = _distinct(records)
    by_task = by_cell(records, "task")
    waiting = ", ".join(str(run) for run in folders if run not in read)
    text = markdown(
        "Comparison",
        [
            _table(by_task),
            f"Left out, without metrics so far: {waiting}." if waiting else "",
            copies,
            _averaged(by_task),
            _explanation(goal),
            *_section_of_samples(by_task),
        ],
    ).rstrip()
    if show:
        show(text)
    written = [folder / "comparison.md"]
    write_text(written[0], text + "\n")
    for name, of_task in zip(_file_names(by_task), by_task.values(), strict=True):
        suffix = f"_{name}" if len(by_task) > 1 else ""
        written.append(folder / f"comparison_curves{suffix}.png")
        _draw_curves(of_task, written[-1])
    written.append(folder / "comparison_ranking.png")
    _draw_ranking(by_task, written[-1])
    return text, written


def _file_names(tasks: Iterable[str]) -> list[str]:
    """Return a part of a file's name for each task: short, and unlike those of the others."""
    names: list[str] = []
    for task in tasks:
        signed = re.sub(r" -(?=[\d.])", " minus ", task)
        name = re.sub("[^A-Za-z0-9.+]+", "-", signed)[:_MOST_LETTERS].strip("-")
        numbered = (f"{name}-{n}" for n in itertools.count(2))
        names.append(next(n for n in itertools.chain([name], numbered) if n not in names))
    return names


_MOST_LETTERS = 100


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the folders of online runs that have metrics: the paths, or those below them.

    Raises:
      FileNotFoundError: if there is none at or below a path.
      ValueError: if a path is an offline run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"there is no folder {path}")
        if (path / "config.json").exists():
            if run_kind(read_config(path)) != "online":
                raise ValueError(f"{path} is an offline run: compare takes online runs")
            below = [path]
        else:
            below = [c.parent for c in sorted(path.rglob("config.json")) if _is_online(c.parent)]
        started = [run for run in below if (run / "metrics.jsonl").exists()]
        if not started:
            raise FileNotFoundError(f"{path} holds no online run with metrics")
        found |= {run.resolve(): run for run in started}
    return list(found.values())


def _is_online(folder: Path) -> bool:
    try:
        return run_kind(read_config(folder)) == "online"
    except ValueError:  # a file of this name of another program
        return False


def read_runs(folders: Sequence[Path], goal: float | None = None) -> list[Record]:
    """Return a record of each seed of online runs, in the order of the runs, including copies.

    A run without metrics, which is still compiling, has none, and no influence on the others.

    Args:
      folders: of the runs.
      goal: the score to reach, as for `compare`.
    """
    metrics = {folder: read_metrics(folder / "metrics.jsonl") for folder in folders}
    folders = [folder for folder in folders if len(metrics[folder]["step"])]
    configs = [with_defaults(read_config(folder)) for folder in folders]
    common: dict[str, set[str]] = {}  # the scores that all runs of a task have
    for folder, config in zip(folders, configs, strict=True):
        env, task = config["env"], task_of(config["env"])
        names = {"return", "success"} if "episode/success" in metrics[folder] else {"return"}
        # Of a single task, success and return say more than a normalized score.
        names |= {"normalized"} if env["tasks"] and env.get("reference_returns") else set()
        common[task] = common.get(task, names) & names
    records = []
    for folder, config, labels in zip(folders, configs, _labels(configs), strict=True):
        score = main_scores(common[labels["task"]])[0]
        value = SOLVED if goal is None and score == "success" else goal
        of_run = {
            "labels": labels,
            "folder": folder,
            "settings": json.dumps(_without(config, OF_SEEDS), sort_keys=True),
            "score": score,
            "total": config["total_steps"],
            "tasks": max(1, len(config["env"]["tasks"])),
            "steps": int(metrics[folder]["step"][-1]),
        }
        result = status_of(folder).result
        gone = [one.seed for one in result.diverged] if result else []
        for n in range(config["num_seeds"]):
            seed, curve = config["seed"] + n, curves_of(metrics[folder], n)
            stopped = "diverged" in curve and 1 in curve["diverged"]["value"]  # without a result
            kinds = ("evaluation",) if score == "normalized" else ("evaluation", "episode")
            curve = {name: curve[name] for k in kinds if (name := f"{k}/{score}") in curve}
            final = np.nan if stopped else next((c["value"][-1] for c in curve.values()), np.nan)
            if result and score in result.per_seed:
                final = result.per_seed[score][n]
            of_seed = {
                "seed": seed,
                "scores": {score: float(final)},
                "curve": curve,
                "goal": goal_of(curve, score, np.nan if value is None else value),
                "sampled": {k: values[n] for k, values in result.sampled.items()} if result else {},
                "finished": result is not None,
                "diverged": stopped or seed in gone,
            }
            records.append(of_run | of_seed)
    return records


def task_of(env: Mapping[str, Any]) -> str:
    """Return the environment and its parameters: "TMazePassive-v0, corridor_length 30".

    Several tasks are joined by " + ". A task in the environment of the one before is named
    by its parameters only.
    """
    trial = env.get("trial", 1)
    members = EnvConfig(env["name"], env["params"], tuple(env["tasks"]), trial=trial).members
    texts, before = [], None
    for name, params in members:
        parts = [f"{key} {value}" for key, value in params.items()]
        texts.append(", ".join(parts if parts and name == before else [name, *parts]))
        before = name
    return " + ".join(texts)


def _without(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a config except some, and what these contain, by dotted names.

    Wrappers are one setting, since they are applied in their order: "repeat 4, limit 100".
    """
    left_out = tuple(f"{name}." for name in names)
    given = config["env"].get("wrappers", {})
    wrappers = ", ".join(f"{name} {value}" for name, value in given.items())
    flat = flatten({**config, "env": config["env"] | {"wrappers": wrappers}})
    return {k: v for k, v in flat.items() if not f"{k}.".startswith(left_out)}


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the labels of each run; see the top of this file.

    Settings that are drawn for each seed are always named.
    """
    names = [[config["core"]["name"], config["algorithm"]["name"]] for config in configs]
    several = len({algorithm for _, algorithm in names}) > 1
    cores = [", ".join(of_run if several else of_run[:1]) for of_run in names]
    flat = [_without(config, NO_VARIANT) for config in configs]
    labels = []
    for one, config, core in zip(flat, configs, cores, strict=True):
        others = [other for other, name in zip(flat, cores, strict=True) if name == core]
        parts = [core]
        for name in dict.fromkeys(name for other in others for name in other):
            x, differs = one.get(name), len({json.dumps(other.get(name)) for other in others}) > 1
            # What is off is not named: False, null, and what is empty.
            if differs and (x or type(x) in (int, float)):
                parts.append(f"{name.rsplit('.')[-1]} {x}")
        # Of the same name with other bounds, they are other settings.
        parts += [f"sampled {name} in {bounds}" for name, bounds in sorted(config["sweep"].items())]
        labels.append({"task": task_of(config["env"]), "core": core, "agent": ", ".join(parts)})
    return labels


def _table(by_task: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = []
    for task, of_task in by_task.items():
        for agent, group in by_cell(of_task, "agent").items():
            rows.append([task, agent, *_entries([group])])
    # Successes of several tasks are on one scale.
    if len(by_task) > 1 and all(r["score"] == "success" for of in by_task.values() for r in of):
        groups = [by_cell(of_task, "agent") for of_task in by_task.values()]
        for agent in groups[0]:
            if all(agent in group for group in groups):
                of_agent = [group[agent] for group in groups]
                rows.append([f"all {len(groups)}", agent, *_entries(of_agent)])
    return table(HEAD, rows)


def _final(records: Sequence[Record]) -> np.ndarray:
    """Return the score by which each record is compared, `[S]`."""
    return scores(records, records[0]["score"])


def _entries(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Return the entries of a row from its records of each task."""
    records = [record for group in groups for record in group]
    count, goal = len(records), records[0]["goal"]["value"]
    share = f"of {count}" if np.isnan(goal) else solved_share(_final(records), goal)
    steps = sorted({record["steps"] for record in records})
    text = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
    diverged = sum(record["diverged"] for record in records)
    unfinished = sum(not (record["finished"] or record["diverged"]) for record in records)
    for number, state in ((diverged, "diverged"), (unfinished, "unfinished")):
        text += f", {number} of {count} {state}" if number else ""
    return [
        share,
        median(_final(records)),
        iqm_entry([_final(group) for group in groups]),
        median(to_goal(records), digits=0),
        text,
    ]


def _distinct(records: Sequence[Record]) -> tuple[list[Record], str]:
    """Return the records without copies, and a line that names these, if there are any.

    The same seed with the same settings, also drawn ones, is the same sample: of several, the one
    that has come furthest is kept; of those that have come equally far, the first by folder.
    """
    first: dict[tuple[str, int], Record] = {}
    for one in sorted(records, key=lambda r: (-r["steps"], not r["finished"], r["folder"])):
        first.setdefault((one["settings"], one["seed"]), one)
    distinct = []
    copies: dict[tuple[Path, Path], list[str]] = {}
    for one in records:
        if (original := first[one["settings"], one["seed"]]) is one:
            distinct.append(one)
        else:
            places = one["folder"], original["folder"]
            copies.setdefault(places, []).append(str(one["seed"]))
    named = [f"{a} (seed {', '.join(numbers)} of {b})" for (a, b), numbers in copies.items()]
    line = (
        f"Left out, with the settings and the seed of another run: {'; '.join(named)}. "
        "Further runs need another `seed`."
    )
    return distinct, line if copies else ""


def _averaged(by_task: Mapping[str, Sequence[Record]]) -> str:
    """Return a line that names the agents of several tasks that are compared by their return."""
    firsts = {task: of_task[0] for task, of_task in by_task.items()}
    averaged = [t for t, one in firsts.items() if one["tasks"] > 1 and one["score"] == "return"]
    text = (
        f"The return of {'; '.join(averaged)} is a mean over tasks, which need not have a common "
        "unit. Runs with `env.references` are compared by their normalized score instead."
    )
    return text if averaged else ""


def _section_of_samples(by_task: Mapping[str, Sequence[Record]]) -> list[Any]:
    """Return a section with the settings sampled for each seed, and its score; empty if none."""
    records = [one for of_task in by_task.values() for one in _ranked(of_task) if one["sampled"]]
    names = list(dict.fromkeys(name for one in records for name in one["sampled"]))
    rows = []
    for one in records:
        task, _, agent = one["labels"].values()
        values = [f"{one['sampled'][name]:.3g}" if name in one["sampled"] else "" for name in names]
        rows.append([task, agent, one["seed"], *values, median(_final([one]), 3)])
    section = [
        "## Drawn settings",
        table(("task", "agent", "seed", *names, "score"), rows),
        "Of the finished runs: what each seed has drawn, and its final score, the best of a task "
        "first. A seed that diverged has no score.",
    ]
    return section if records else []


def _ranked(records: Sequence[Record]) -> list[Record]:
    """Return the records from the highest score on; those that diverged are last."""
    score_S = np.nan_to_num(_final(records), nan=-np.inf)
    return [records[n] for n in np.argsort(-score_S, kind="stable")]


def _explanation(goal: float | None) -> str:
    value = f"{SOLVED} of success" if goal is None else f"{goal:g}"
    return (
        f"Solved: the seeds whose final score is at least the goal, {value}, of all seeds, and the "
        "95 % Wilson interval of that fraction. IQM: interquartile mean, and its 95 % bootstrap "
        "interval, stratified by task. Steps to the goal: median over the seeds that have reached "
        "it, in training or in an evaluation. An unfinished run counts with its latest score, and "
        "a seed that diverged only as not solved."
    )


def in_training(record: Record) -> dict[str, Any]:
    """Return the steps and values of the score in training; of a normalized one, in evaluations."""
    kind = "evaluation" if record["score"] == "normalized" else "episode"
    empty = {"step": np.zeros(0, np.int64), "value": np.zeros(0)}
    return record["curve"].get(f"{kind}/{record['score']}", empty)


def score_after(record: Record, share: float) -> float:
    """Return the latest score in training after a share of all steps; NaN if not reached.

    After all of them, the score of the last evaluation.
    """
    if share == 1:
        ended = record["finished"] or record["diverged"]
        return float(_final([record])[0]) if ended else np.nan
    points, limit = in_training(record), share * record["total"]
    value_N = points["value"][points["step"] <= limit]
    return float(value_N[-1]) if len(value_N) and record["steps"] >= limit else np.nan


def _scores_after(records: Sequence[Record], share: float) -> np.ndarray:
    return np.array([score_after(record, share) for record in records])


def _draw_curves(records: Sequence[Record], path: Path) -> None:
    """Draw the learning curves of the seeds of one task."""
    curves, steps = {}, {}
    for agent, group in by_cell(records, "agent").items():
        points = [in_training(record) for record in group]
        last = [record["steps"] for record in group]
        step_N = np.unique(np.concatenate([last, *(one["step"] for one in points)]))
        value_SN = np.full((len(group), len(step_N)), np.nan)
        for value_N, one in zip(value_SN, points, strict=True):
            value_N[np.searchsorted(step_N, one["step"])] = one["value"]
        curves[agent], steps[agent] = value_SN, step_N
    score = records[0]["score"]
    success = score == "success"
    plot_learning_curves(
        curves,
        steps,
        path,
        y_label=NAMES[score] + (" in evaluations" if score == "normalized" else " in training"),
        y_limits=(-0.02, 1.02) if success else None,
        middle="median" if success else "IQM",
    )


def _draw_ranking(by_task: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Rank the seeds of each core, in all variants, for each task; for one task, at each stage."""
    if len(by_task) > 1:
        cells = {task: (records, _final) for task, records in by_task.items()}
    else:
        (records,) = by_task.values()
        cells = {
            stage: (records, functools.partial(_scores_after, share=share))
            for stage, share in STAGES.items()
        }
    panels, y_labels = {}, {}
    for title, (of_panel, scores_of) in cells.items():
        cores = by_cell(of_panel, "core")
        panels[title] = {core: scores_of(group) for core, group in cores.items()}
        y_labels[title] = NAMES[of_panel[0]["score"]]
    plot_ranking(panels, path, y_labels=y_labels)
