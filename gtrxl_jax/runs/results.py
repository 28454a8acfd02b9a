"""The result of a run, with everything required to reproduce it."""

import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from gtrxl_jax.files import atomic
from gtrxl_jax.runs.divergence import Divergence
from gtrxl_jax.runs.logging.writers import json_value
from gtrxl_jax.runs.scores import Score


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
      evaluation: return, length and success (if the environment reports it) of the final
        evaluation, see `Score`. With several tasks, `return` is over all tasks and `return/task_0`
        over one. Empty for a run without an environment; result.json then has "evaluated": false.
      steps: environment steps of each seed.
      compile_seconds: time from the start to the first update, and of all later compilation.
      train_seconds: time from the first update to the last, including evaluations, without
        compilation.
      steps_per_second: of all seeds together, while training, excluding evaluations. The metric of
        the same name is that of the run up to its step.
      diverged: the seeds that diverged.
      drawn: the settings drawn for each seed, by their names under `sweep`, `[S]`.
    """

    evaluation: dict[str, Score]
    steps: int
    compile_seconds: float
    train_seconds: float
    steps_per_second: float
    diverged: list[Divergence] = dataclasses.field(default_factory=list)
    drawn: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def is_final(self, steps: int, num_seeds: int) -> bool:
        """Return whether it is the result of a run of so many steps, not of its beginning only."""
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
    with atomic(Path(folder, "result.json")) as temporary:
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        temporary.write_text(text, "utf-8")


def read_result(folder: str | os.PathLike[str]) -> Result | None:
    """Read the result written by `write_result`; None if the run has not ended.

    Raises:
      ValueError: if result.json is damaged.
    """
    record = read_record(folder)
    if record is None:
        return None
    with _damage_named(folder):
        fields = {field.name: record[field.name] for field in dataclasses.fields(Result)}
        fields["evaluation"] = {k: Score.of(score) for k, score in fields["evaluation"].items()}
        fields["diverged"] = [Divergence(**one) for one in fields["diverged"]]
        return Result(**fields)


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the content of result.json, None without it. Raises as `read_result` does."""
    with contextlib.suppress(FileNotFoundError), _damage_named(folder):
        record = json.loads(Path(folder, "result.json").read_text("utf-8"))
        if not isinstance(record, dict):
            raise TypeError
        return record
    return None


@contextlib.contextmanager
def _damage_named(folder: str | os.PathLike[str]) -> Iterator[None]:
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
        "commit": _commit(),
        "device": f"{jax.device_count()} x {device.device_kind}"
        + (f", {os.cpu_count()} cores" if device.platform == "cpu" else ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
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
