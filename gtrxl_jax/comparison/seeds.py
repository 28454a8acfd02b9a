"""The seeds of online runs, read from the folders of the runs."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gtrxl_jax.comparison.labels import settings_of, task_of, variants_of
from gtrxl_jax.runs.config import kind_of, with_defaults
from gtrxl_jax.runs.directory import load_config, settings, status_of
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import Result, main_scores


@dataclasses.dataclass(frozen=True)
class Seed:
    """One seed of an online run.

    Attributes:
      folder: that of the run.
      number: the seed itself.
      settings: the settings of the run on which its score depends, beside the seed.
      task: the environment and its parameters, as "TMazePassive-v0, corridor_length 30"; for an
        agent of several tasks, those of all.
      num_tasks: the number of tasks of the agent, over which its scores are means.
      agent: the core and, if they differ among the runs, the algorithm.
      variant: the settings in which runs of the same agent differ; empty if in none.
      score: "success", or "return" for environments without successes; "normalized" for several
        tasks with reference returns.
      final: the score of the final evaluation; before that, the latest one; NaN if diverged.
      step_N: steps at which the score was measured.
      value_N: the score in training at these steps; NaN where no episode ended. A normalized score
        is that of evaluations, as there is none in training.
      evaluated_N: the score in evaluations at these steps; NaN without one.
      drawn: the settings that were drawn for it, by name; known once the run is finished.
      total: number of steps of a finished run.
      is_finished: whether the run has its result.
      has_diverged: whether this seed has.
    """

    folder: Path
    number: int
    settings: str
    task: str
    num_tasks: int
    agent: str
    variant: str
    score: str
    final: float
    step_N: Int[np.ndarray, " N"]
    value_N: Float[np.ndarray, " N"]
    evaluated_N: Float[np.ndarray, " N"]
    drawn: Mapping[str, float]
    total: int
    is_finished: bool
    has_diverged: bool

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
    """Return the seeds of online runs, in the order of the runs, including copies.

    A run without metrics, which is still compiling, has none, and no influence on the others.
    """
    metrics = {folder: read_metrics(folder / "metrics.jsonl") for folder in folders}
    folders = [folder for folder in folders if len(metrics[folder]["step"])]
    configs = [with_defaults(settings(folder)) for folder in folders]
    tasks = [task_of(config["env"]) for config in configs]
    several = len({config["algorithm"]["name"] for config in configs}) > 1
    agents = [
        ", ".join([config["core"]["name"], *([config["algorithm"]["name"]] * several)])
        for config in configs
    ]
    # The scores that all runs of a task have.
    scores: dict[str, set[str]] = {}
    for task, folder, config in zip(tasks, folders, configs, strict=True):
        names = _scores(config["env"], metrics[folder])
        scores[task] = scores.get(task, names) & names
    variants = variants_of(configs, agents)
    seeds = []
    for folder, config, task, agent, variant in zip(
        folders, configs, tasks, agents, variants, strict=True
    ):
        result = status_of(folder).result
        common: dict[str, Any] = {"folder": folder, "settings": settings_of(config)}
        common |= {"task": task, "num_tasks": max(1, len(config["env"]["tasks"]))}
        common |= {"agent": agent, "variant": variant, "score": main_scores(scores[task])[0]}
        common |= {"total": config["total_steps"], "is_finished": result is not None}
        numbers = range(config["seed"], config["seed"] + config["num_seeds"])
        seeds += _seeds(numbers, metrics[folder], result, common)
    return seeds


def grouped(seeds: Iterable[Seed], key: Callable[[Seed], str]) -> dict[str, list[Seed]]:
    """Return the seeds of each value of `key`, in the order in which they occur."""
    groups: dict[str, list[Seed]] = {}
    for seed in seeds:
        groups.setdefault(key(seed), []).append(seed)
    return groups


def _scores(env: Mapping[str, Any], metrics: Mapping[str, np.ndarray]) -> set[str]:
    """Return the scores of a run by which it can be compared.

    Of a single task, success and return say more than a normalized score.
    """
    scores = {"return", "success"} if "episode/success" in metrics else {"return"}
    return scores | ({"normalized"} if env["tasks"] and env.get("reference_returns") else set())


def _seeds(
    numbers: Sequence[int],
    metrics: Mapping[str, np.ndarray],
    result: Result | None,
    common: dict[str, Any],
) -> list[Seed]:
    step_N, score = metrics["step"], common["score"]

    def column(name: str, n: int) -> Float[np.ndarray, " N"]:
        values = metrics.get(name, np.full(len(step_N), np.nan))
        return values if values.ndim == 1 else values[:, n]

    drawn, gone = (result.drawn, result.diverged) if result else ({}, [])
    seeds = []
    for n, number in enumerate(numbers):
        source = "evaluation" if score == "normalized" else "episode"
        value_N = column(f"{source}/{score}", n)
        evaluated_N = column(f"evaluation/{score}", n)
        final = result and result.per_seed.get(score)
        latest = next((v for v in (evaluated_N, value_N) if np.isfinite(v).any()), value_N)
        known = latest[np.isfinite(latest)]
        has_diverged = bool(np.any(column("diverged", n) == 1))
        if has_diverged:  # a run that stopped at it has no result
            known = known[:0]
        seeds.append(
            Seed(
                number=number,
                final=final[n] if final else float(known[-1]) if len(known) else np.nan,
                step_N=step_N,
                value_N=value_N,
                evaluated_N=evaluated_N,
                drawn={name: values[n] for name, values in drawn.items()},
                has_diverged=has_diverged or any(one.seed == number for one in gone),
                **common,
            )
        )
    return seeds


def _is_online(folder: Path) -> bool:
    try:
        return kind_of(load_config(folder)) == "online"
    except ValueError:  # a file of this name of another program
        return False
