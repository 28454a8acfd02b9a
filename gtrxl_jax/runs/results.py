"""The scores of an evaluation, and the result of a run with everything required to reproduce it."""

import contextlib
import dataclasses
import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped

from gtrxl_jax.files import write_text
from gtrxl_jax.formatting import format_number, format_numbers
from gtrxl_jax.runs.divergence import Divergence
from gtrxl_jax.runs.logging.writers import json_value
from gtrxl_jax.statistics import (
    count_solved,
    interquartile_mean,
    mean_and_interval,
    stratified_bootstrap,
    wilson_interval,
)

NOT_EVALUATED = "not evaluated, since the run has no environment"


@dataclasses.dataclass(frozen=True)
class Score:
    """One score of an evaluation. Fields that do not apply are None and omitted from result.json.

    Attributes:
      per_seed: mean over the episodes of each seed, `[S]`; NaN for a seed that diverged. The only
        field if the seeds differ in drawn settings: such seeds are never pooled.
      mean: mean of a single seed.
      median: median over several seeds, without those that diverged.
      iqm: interquartile mean over the same seeds; not for success.
      solved: of several seeds, the number with a success of at least 0.95; a diverged seed has not
        solved the task.
      interval: 95 % interval: of `mean` over episodes (Student's t, or Wilson's for successes of 0
        and 1), of `solved / S` (Wilson's), or of `iqm` (bootstrap over seeds).
    """

    per_seed: list[float]
    mean: float | None = None
    median: float | None = None
    iqm: float | None = None
    solved: int | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Score":
        """Create a score from `record` or from its JSON, in which NaN is a string."""
        fields = {name: _numbers(value) for name, value in record.items()}
        if "solved" in fields:
            fields["solved"] = int(fields["solved"])
        if "interval" in fields:
            fields["interval"] = tuple(fields["interval"])
        return cls(**fields)

    @property
    def record(self) -> dict[str, Any]:
        """The fields that apply, by name."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    def __str__(self) -> str:
        interval = self.interval or ()
        if self.solved is not None:
            assert self.median is not None
            count = f"solved by {self.solved} of {len(self.per_seed)} seeds"
            return (
                f"{count}{_interval(format_numbers(interval))}, median {format_number(self.median)}"
            )
        if self.mean is not None:
            mean, *ends = format_numbers([self.mean, *interval])
            return f"{mean}{_interval(ends)}"
        if self.iqm is not None:
            assert self.median is not None
            median, iqm, *ends = format_numbers([self.median, self.iqm, *interval])
            return f"median {median}, IQM {iqm}{_interval(ends)}"
        return "of each seed " + ", ".join(map(format_number, self.per_seed))


def scores_of(
    episodes: Mapping[str, Shaped[np.ndarray, "..."]], *, equal: bool = True
) -> dict[str, Score]:
    """Summarize an evaluation.

    Args:
      episodes: for each score, its value in each episode, `[E]` for one seed or `[S, E]` for
        several; NaN for a seed that diverged.
      equal: whether the seeds have equal settings, so that they can be pooled.
    """
    return {
        name: _score(is_success(name), np.atleast_2d(np.asarray(value, np.float64)), equal)
        for name, value in episodes.items()
    }


def is_success(name: str) -> bool:
    """Return whether a score of this name is a success, from 0 to 1.

    So are `success/90`, of one length or task, and `success_2`, of one episode of a trial.
    """
    return re.fullmatch(r"success(/.+|_\d+)?", name) is not None


def main_scores(names: Iterable[str]) -> list[str]:
    """Return the names of the main scores of an evaluation.

    These are the normalized score, success, return and length over all tasks; or, for several
    lengths, the success at each length in increasing order. There are none without an environment.
    """
    if not (names := list(names)):
        return []
    overall = ("normalized", "success", "return", "length")
    if not set(names).isdisjoint(overall):
        return [str(name) for name in overall if name in names]
    first = names[0].split("/")[0]
    kind = "success" if any(map(is_success, names)) else first
    of_kind = [name for name in names if name.startswith(f"{kind}/")]
    return sorted(of_kind, key=lambda name: int(name.split("/")[1]))


def describe(evaluation: Mapping[str, Score]) -> str:
    """Format the main scores in a line: `success 0.998 [0.986, 1.000]; return 0.97 ...`."""
    shown = (f"{name} {evaluation[name]}" for name in main_scores(evaluation))
    return "; ".join(shown) or NOT_EVALUATED


def _score(success: bool, value_SE: Float[np.ndarray, "S E"], equal: bool) -> Score:
    mean_S = value_SE.mean(axis=-1)
    per_seed = mean_S.tolist()
    if len(per_seed) == 1:
        return Score(per_seed, mean=per_seed[0], interval=_over_episodes(success, value_SE[0]))
    if not equal:
        return Score(per_seed)
    known = mean_S[~np.isnan(mean_S)]
    median = float(np.median(known)) if len(known) else math.nan
    if success:
        count = count_solved(mean_S)
        low, high = wilson_interval(count, len(mean_S))
        return Score(per_seed, median=median, solved=count, interval=(float(low), float(high)))
    over_seeds = math.nan, math.nan
    if len(known) > 1:
        over_seeds = stratified_bootstrap([known], interquartile_mean)
    iqm = float(interquartile_mean(known)) if len(known) else math.nan
    return Score(per_seed, median=median, iqm=iqm, interval=over_seeds)


def _interval(ends: Sequence[str]) -> str:
    return f" [{', '.join(ends)}]" if ends else ""


def _over_episodes(success: bool, value_E: Float[np.ndarray, " E"]) -> tuple[float, float] | None:
    # Successes that are fractions are not binomial.
    if success and np.isin(value_E, (0, 1)).all():
        low, high = wilson_interval(value_E.sum(), len(value_E))
    elif len(value_E) == 1:
        # Of a single episode, or a normalized score: it says nothing about the spread.
        return None
    else:
        mean, half = mean_and_interval(value_E, axis=0)
        low, high = mean - half, mean + half
    return float(low), float(high)


def _numbers(value: Any) -> Any:
    return [float(one) for one in value] if isinstance(value, list | tuple) else float(value)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
      evaluation: return, length, and what the environment reports, such as success, in the final
        evaluation, see `Score`. With several tasks, `return` is over all tasks and `return/task_0`
        over one. Empty for a run without an environment; result.json then has "evaluated": false.
      steps: environment steps of each seed.
      compile_seconds: time from the start to the first update, and of all later compilation.
      train_seconds: time from the first update to the last, including evaluations, without
        compilation.
      steps_per_second: of all seeds together, while training, excluding evaluations. The metric of
        the same name is the speed of the run up to its step.
      diverged: the seeds that diverged.
      sampled: the settings sampled for each seed, by their names under `sweep`, `[S]`.
    """

    evaluation: dict[str, Score]
    steps: int
    compile_seconds: float
    train_seconds: float
    steps_per_second: float
    diverged: list[Divergence] = dataclasses.field(default_factory=list)
    sampled: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def is_final(self, steps: int, num_seeds: int) -> bool:
        """Return whether a run of this many steps and seeds has ended with it."""
        return self.steps >= steps or len(self.diverged) == num_seeds

    @property
    def per_seed(self) -> dict[str, list[float]]:
        """The mean of each score over the episodes of each seed, see `Score`."""
        return {name: score.per_seed for name, score in self.evaluation.items()}


def record_of(config: Any, result: Result) -> dict[str, Any]:
    """Return the result and everything required to reproduce it, as JSON values."""
    record = provenance() | {
        "seeds": list(range(config.seed, config.seed + config.num_seeds)),
        "init_from": config.init_from,
        **dataclasses.asdict(result),
        "evaluation": {name: score.record for name, score in result.evaluation.items()},
        "evaluated": bool(result.evaluation),
        "num_diverged": len(result.diverged),
    }
    return json_value(record)


def write_result(folder: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write the return value of `record_of` to result.json. A run that has it is not rerun."""
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    write_text(Path(folder, "result.json"), text)


def read_result(folder: str | os.PathLike[str]) -> Result | None:
    """Read the result written by `write_result`; None if the run has not ended.

    Raises:
      ValueError: if result.json is damaged.
    """
    record = read_record(folder)
    if record is None:
        return None
    with _name_damage(folder):
        fields = {field.name: record[field.name] for field in dataclasses.fields(Result)}
        fields["evaluation"] = {k: Score.of(score) for k, score in fields["evaluation"].items()}
        fields["diverged"] = [Divergence(**one) for one in fields["diverged"]]
        return Result(**fields)


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the content of result.json, None without it. Raises as `read_result` does."""
    with contextlib.suppress(FileNotFoundError), _name_damage(folder):
        record = json.loads(Path(folder, "result.json").read_text("utf-8"))
        if not isinstance(record, dict):
            raise TypeError
        return record
    return None


@contextlib.contextmanager
def _name_damage(folder: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{Path(folder, 'result.json')} is damaged: delete it, and train again to evaluate the "
            "last checkpoint"
        ) from None


def provenance() -> dict[str, str]:
    """Return command, commit, device and date of this process, for a results file."""
    device = jax.devices()[0]
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit_of_package(),
        "device": f"{jax.device_count()} x {device.device_kind}"
        + (f", {os.cpu_count()} cores" if device.platform == "cpu" else ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit_of_package() -> str:
    """Return the commit of this package's sources, with "+" if they have changed since.

    Return "unknown" if they are in no repository, or in one that does not track them, such as the
    sources of an installed package.
    """
    package = Path(__file__).parents[1]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        return _git(package, "rev-parse", "--short", "HEAD").strip() + (
            "+" if _git(package, "status", "--porcelain", "--", ".") else ""
        )
    return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
