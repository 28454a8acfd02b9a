"""Compare online runs by their folders: a table, learning curves, and runs ranked by score."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gtrxl_jax.files import atomic
from gtrxl_jax.ops.statistics import SOLVED
from gtrxl_jax.plots.curves import learning_curves
from gtrxl_jax.plots.ranking import ranking
from gtrxl_jax.plots.tables import iqm_entry, median, solved_share, table
from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import MAY_CHANGE, MAY_GROW, load_config, settings
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import Result, read_result

OF_TASK = ("env.name", "env.params", "env.tasks")
OF_SEEDS = ("seed", "num_seeds", "sweep")
HEAD = ("task", "agent", "solved", "median", "IQM", "steps to the goal", "steps")
STAGES = {"after a quarter": 0.25, "after half": 0.5, "at the end": 1.0}
"""The parts of training at which runs of a single task are ranked, as in GTrXL's figure 5."""


@dataclasses.dataclass(frozen=True)
class Seed:
    """One seed of an online run.

    Attributes:
      task: the environment and its parameters, as "TMazePassive-v0, corridor_length 30".
      agent: the core and, if they differ among the runs, the algorithm.
      variant: the settings in which runs of the same agent and task differ; empty if in none.
      score: "success", or "return" for environments without successes.
      final: the score of the final evaluation; before that, the latest one; NaN if diverged.
      step_N: steps at which the score was measured.
      value_N: the score in training at these steps; NaN where no episode ended.
      evaluated_N: the score in evaluations at these steps; NaN without one.
      total: number of steps of a finished run.
      is_finished: whether the run has its result.
    """

    task: str
    agent: str
    variant: str
    score: str
    final: float
    step_N: Int[np.ndarray, " N"]
    value_N: Float[np.ndarray, " N"]
    evaluated_N: Float[np.ndarray, " N"]
    total: int
    is_finished: bool

    @property
    def label(self) -> str:
        """The agent and its variant."""
        return ", ".join(filter(None, (self.agent, self.variant)))

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return int(self.step_N[-1])

    def steps_to(self, goal: float | None) -> float:
        """Return the steps until training or an evaluation first reached a score; NaN if never."""
        if goal is None:
            return np.nan
        reached_N = (self.value_N >= goal) | (self.evaluated_N >= goal)
        return float(self.step_N[np.argmax(reached_N)]) if reached_N.any() else np.nan

    def score_after(self, share: float) -> float:
        """Return the latest score in training after a share of all steps; NaN if not reached."""
        if share == 1:
            return self.final
        limit = share * self.total
        known_N = np.isfinite(self.value_N) & (self.step_N <= limit)
        return float(self.value_N[known_N][-1]) if known_N.any() and self.steps >= limit else np.nan


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the folders of online runs that have metrics: the paths, or those below them.

    Raises:
      FileNotFoundError: if there is none at or below a path.
      ValueError: if a path is an offline run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if (path / "config.json").exists():
            if kind_of(load_config(path)) != "online":
                raise ValueError(f"{path} is an offline run: compare takes online runs")
            below = [path]
        else:
            below = [c.parent for c in sorted(path.rglob("config.json")) if _is_online(c.parent)]
        started = [run for run in below if (run / "metrics.jsonl").exists()]
        if not started:
            raise FileNotFoundError(f"{path} holds no online run with metrics")
        found |= {run.resolve(): run for run in started}
    return list(found.values())


def read_seeds(folders: Sequence[Path]) -> list[Seed]:
    """Return the seeds of online runs, in the order of the runs."""
    configs = [settings(folder) for folder in folders]
    read = [(read_metrics(f / "metrics.jsonl"), read_result(f)) for f in folders]
    tasks = [_task(config["env"]) for config in configs]
    several = len({config["algorithm"]["name"] for config in configs}) > 1
    agents = [
        ", ".join([config["core"]["name"], *([config["algorithm"]["name"]] * several)])
        for config in configs
    ]
    # A score that all runs of a task have.
    have = dict.fromkeys(tasks, True)
    for task, (metrics, _) in zip(tasks, read, strict=True):
        have[task] &= "episode/success" in metrics
    variants = _variants(configs, agents, tasks)
    seeds = []
    for config, task, agent, variant, (metrics, result) in zip(
        configs, tasks, agents, variants, read, strict=True
    ):
        score = "success" if have[task] else "return"
        common: dict[str, Any] = {"task": task, "agent": agent, "variant": variant}
        common |= {"total": config["total_steps"], "is_finished": result is not None}
        if len(metrics["step"]):
            seeds += _seeds(config["num_seeds"], score, metrics, result, common)
    return seeds


def compare(
    paths: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    goal: float | None = None,
) -> tuple[str, list[Path]]:
    """Compare runs, finished or not, by agent and task.

    Args:
      paths: folders of online runs, or folders that contain some.
      folder: an existing folder for comparison.md and the pictures.
      goal: the score from which a seed counts as having solved its task; for successes 0.95 if not
        given, for returns none.

    Returns:
      The Markdown text of comparison.md, and the paths of all files.

    Raises:
      FileNotFoundError: if there is no run with metrics.
      ValueError: if a path is an offline run.
    """
    seeds = read_seeds(find_runs(paths))
    if not seeds:
        raise FileNotFoundError("the runs have no metrics yet: compare them after an iteration")
    folder = Path(folder)
    by_task = _grouped(seeds, lambda seed: seed.task)
    pictures = []
    for task, of_task in by_task.items():
        name = re.sub("[^A-Za-z0-9.]+", "-", task).strip("-")
        suffix = f"_{name}" if len(by_task) > 1 else ""
        pictures.append(folder / f"comparison_curves{suffix}.png")
        _draw_curves(of_task, pictures[-1])
    pictures.append(folder / "comparison_ranking.png")
    _draw_ranking(by_task, pictures[-1])
    text = "\n\n".join(["# Comparison", "\n".join(_table(by_task, goal)), _explanation(goal)])
    path = folder / "comparison.md"
    with atomic(path) as temporary:
        temporary.write_text(text + "\n")
    return text, [path, *pictures]


def _seeds(
    count: int,
    score: str,
    metrics: Mapping[str, np.ndarray],
    result: Result | None,
    common: dict[str, Any],
) -> list[Seed]:
    step_N = metrics["step"]

    def column(name: str, seed: int) -> Float[np.ndarray, " N"]:
        values = metrics.get(name, np.full(len(step_N), np.nan))
        return values if values.ndim == 1 else values[:, seed]

    seeds = []
    for number in range(count):
        value_N = column(f"episode/{score}", number)
        evaluated_N = column(f"evaluation/{score}", number)
        final = result and result.per_seed.get(score)
        latest = next((v for v in (evaluated_N, value_N) if np.isfinite(v).any()), value_N)
        known = latest[np.isfinite(latest)]
        seeds.append(
            Seed(
                score=score,
                final=final[number] if final else float(known[-1]) if len(known) else np.nan,
                step_N=step_N,
                value_N=value_N,
                evaluated_N=evaluated_N,
                **common,
            )
        )
    return seeds


def _is_online(folder: Path) -> bool:
    try:
        return kind_of(load_config(folder)) == "online"
    except ValueError:  # a file of this name of another program
        return False


def _task(env: Mapping[str, Any]) -> str:
    parts = [f"{name} {value}" for name, value in env["params"].items()]
    parts += [" ".join(f"{n} {v}" for n, v in task.items()) for task in env["tasks"]]
    return ", ".join([env["name"], *parts])


def _variants(
    configs: Sequence[Mapping[str, Any]], agents: Sequence[str], tasks: Sequence[str]
) -> list[str]:
    """Return the settings of each run that differ between runs of the same agent and task."""
    flat = [_flat(config) for config in configs]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one, agent, task in zip(flat, agents, tasks, strict=True):
        cells.setdefault((agent, task), []).append(one)
    differ: dict[str, dict[str, None]] = {agent: {} for agent in agents}
    for (agent, _), cell in cells.items():
        names = dict.fromkeys(name for one in cell for name in one)
        differ[agent] |= {
            name: None for name in names if len({json.dumps(one.get(name)) for one in cell}) > 1
        }
    texts = []
    for one, config, agent in zip(flat, configs, agents, strict=True):
        settings = [(name.rsplit(".")[-1], one.get(name)) for name in differ[agent]]
        # What is off is not named: False, null, and what is empty.
        parts = [f"{name} {x}" for name, x in settings if x or type(x) in (int, float)]
        parts += [f"sampled {name}" for name in config["sweep"]]
        texts.append(", ".join(parts))
    return texts


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings that make a variant by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in (*OF_TASK, *OF_SEEDS, *MAY_CHANGE, *MAY_GROW):
            continue
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def _grouped(seeds: Iterable[Seed], key: Any) -> dict[str, list[Seed]]:
    groups: dict[str, list[Seed]] = {}
    for seed in seeds:
        groups.setdefault(key(seed), []).append(seed)
    return groups


def _finals(seeds: Iterable[Seed]) -> Float[np.ndarray, " S"]:
    return np.array([seed.final for seed in seeds])


def _table(by_task: Mapping[str, Sequence[Seed]], goal: float | None) -> list[str]:
    rows = []
    for task, of_task in by_task.items():
        for label, group in _grouped(of_task, lambda seed: seed.label).items():
            rows.append([task, label, *_entries([group], goal)])
    # Successes of several tasks are on one scale.
    if len(by_task) > 1 and all(s.score == "success" for seeds in by_task.values() for s in seeds):
        groups = [_grouped(seeds, lambda seed: seed.label) for seeds in by_task.values()]
        for label in groups[0]:
            if all(label in group for group in groups):
                of_label = [group[label] for group in groups]
                rows.append([f"all {len(groups)}", label, *_entries(of_label, goal)])
    return table(HEAD, rows)


def _entries(groups: Sequence[Sequence[Seed]], goal: float | None) -> list[str]:
    """Return the entries of a row from its seeds of each task."""
    seeds = [seed for group in groups for seed in group]
    if goal is None and seeds[0].score == "success":
        goal = SOLVED
    count = len(seeds)
    share = solved_share(_finals(seeds), goal) if goal is not None else f"of {count}"
    steps = sorted({seed.steps for seed in seeds})
    text = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
    unfinished = sum(not seed.is_finished for seed in seeds)
    return [
        share,
        median(_finals(seeds)),
        iqm_entry([_finals(group) for group in groups]),
        median([seed.steps_to(goal) for seed in seeds], digits=0),
        text + (f", {unfinished} of {count} unfinished" if unfinished else ""),
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


def _draw_curves(seeds: Sequence[Seed], path: Path) -> None:
    curves, steps = {}, {}
    for label, group in _grouped(seeds, lambda seed: seed.label).items():
        step_N = np.unique(np.concatenate([seed.step_N for seed in group]))
        value_SN = np.full((len(group), len(step_N)), np.nan)
        for value_N, seed in zip(value_SN, group, strict=True):
            value_N[np.searchsorted(step_N, seed.step_N)] = seed.value_N
        curves[label], steps[label] = value_SN, step_N
    success = seeds[0].score == "success"
    learning_curves(
        curves,
        steps,
        path,
        y_label="success rate in training" if success else "return in training",
        y_limits=(-0.02, 1.02) if success else None,
        middle="median" if success else "IQM",
    )


def _draw_ranking(by_task: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Rank the seeds of each agent, in all variants, for each task; for one task, at each stage."""
    if len(by_task) > 1:
        cells = {task: (seeds, 1.0) for task, seeds in by_task.items()}
    else:
        (seeds,) = by_task.values()
        cells = {stage: (seeds, share) for stage, share in STAGES.items()}
    panels, y_labels = {}, {}
    for title, (of_panel, share) in cells.items():
        agents = _grouped(of_panel, lambda seed: seed.agent)
        panels[title] = {a: [s.score_after(share) for s in group] for a, group in agents.items()}
        y_labels[title] = "success rate" if of_panel[0].score == "success" else "return"
    ranking(panels, path, y_labels=y_labels)
