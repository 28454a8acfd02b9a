"""An overview of the runs in a folder."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import (
    MAY_GROW,
    Folder,
    available_steps,
    is_export,
    is_running,
    load_config,
    settings,
)
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import Result, read_record, read_result
from gtrxl_jax.runs.scores import main_scores


@dataclasses.dataclass(frozen=True)
class Overview:
    """What is known of a run from its folder.

    Attributes:
      folder: the folder of the run.
      kind: "online" or "offline".
      what: what is trained, and on what: "gtrxl on TMazePassive-v0".
      state: "running" in a process of this machine; "finished"; "diverged", if all seeds have;
        "stopped", with a checkpoint from which it can be resumed; "damaged", if its result is; or
        "empty".
      step: step of the newest checkpoint, or of the result; 0 without either.
      total: step at which the run ends.
      scores: the main scores of the final evaluation, by name; empty before.
      device: the device on which it ended; empty before.
      updated: time of its last metrics, in seconds since 1970; that of its start without any.
    """

    folder: str
    kind: str
    what: str
    state: str
    step: int
    total: int
    scores: dict[str, str]
    device: str
    updated: float


def overviews(folder: Folder) -> list[Overview]:
    """Return an overview of each run below a folder, the most recent first.

    Raises:
      FileNotFoundError: if there is no such folder.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = []
    for path in Path(folder).rglob("config.json"):
        # Other programs may have files of this name.
        with contextlib.suppress(ValueError, FileNotFoundError):
            if not is_export(path.parent):
                found.append(_overview(path.parent))
    return sorted(found, key=lambda run: run.updated, reverse=True)


def _overview(folder: Path) -> Overview:
    """Raises ValueError if the folder holds no run."""
    config = settings(folder)
    kind = kind_of(load_config(folder))
    total = next(config[name] for name in MAY_GROW if name in config)
    try:
        result, record = read_result(folder), read_record(folder) or {}
        damaged = False
    except ValueError:
        result, record, damaged = None, {}, True
    steps = [*available_steps(folder), result.steps if result else 0]
    if is_running(folder):
        state = "running"
    elif damaged:
        state = "damaged"
    elif _has_diverged(folder, result, config.get("num_seeds")):
        state = "diverged"
    elif result and result.steps >= total:
        state = "finished"
    else:
        state = "stopped" if any(steps) else "empty"
    scores = result.evaluation if result else {}
    metrics = folder / "metrics.jsonl"
    latest = metrics if metrics.exists() else folder / "config.json"
    return Overview(
        folder=str(folder),
        kind=kind,
        what=_what(config),
        state=state,
        step=max(steps),
        total=total,
        scores={name: str(scores[name]) for name in main_scores(scores)},
        device=record.get("device", ""),
        updated=latest.stat().st_mtime,
    )


def _has_diverged(folder: Path, result: Result | None, num_seeds: int | None) -> bool:
    """Return whether all seeds have: by the result, or where the run stopped, by its metrics."""
    if result:
        return len(result.diverged) == num_seeds
    try:
        diverged = read_metrics(folder / "metrics.jsonl").get("diverged")
    except (FileNotFoundError, ValueError):  # none yet, or damaged
        return False
    return diverged is not None and bool(np.all(diverged[-1] == 1))


def _what(config: dict[str, Any]) -> str:
    """Return `gtrxl on TMazePassive-v0`."""
    names = [
        next((config[part]["name"] for part in parts if part in config), "")
        for parts in (("core", "model"), ("env", "task"))
    ]
    return " on ".join(filter(None, names))
