"""An overview of the runs in a folder."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import (
    MAY_GROW,
    Folder,
    available_steps,
    is_export,
    load_config,
    settings,
)
from gtrxl_jax.runs.results import read_record
from gtrxl_jax.runs.scores import main_scores
from gtrxl_jax.runs.status import Status, status_of


@dataclasses.dataclass(frozen=True)
class Overview:
    """What is known of a run from its folder.

    Attributes:
      folder: the folder of the run.
      kind: "online" or "offline".
      what: what is trained, and on what: "gtrxl on TMazePassive-v0".
      state, step, total: see `Status`; the state is "damaged" if the result is.
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
        # Other programs may have files of this name, and runs may be removed in the meantime.
        with contextlib.suppress(ValueError, OSError, LookupError, TypeError, StopIteration):
            if not is_export(path.parent):
                found.append(_overview(path.parent))
    return sorted(found, key=lambda run: run.updated, reverse=True)


def _overview(folder: Path) -> Overview:
    """Raises ValueError if the folder holds no run."""
    kind, config = kind_of(load_config(folder)), settings(folder)
    try:
        status = status_of(folder)
    except ValueError:
        total = next(config[name] for name in MAY_GROW if name in config)
        status = Status("damaged", max(available_steps(folder), default=0), total, None)
    scores = status.result.evaluation if status.result else {}
    record = (read_record(folder) or {}) if status.result else {}
    metrics = folder / "metrics.jsonl"
    latest = metrics if metrics.exists() else folder / "config.json"
    return Overview(
        folder=str(folder),
        kind=kind,
        what=_what(config),
        state=status.state,
        step=status.step,
        total=status.total,
        scores={name: str(scores[name]) for name in main_scores(scores)},
        device=record.get("device", ""),
        updated=latest.stat().st_mtime,
    )


def _what(config: dict[str, Any]) -> str:
    """Return `gtrxl on TMazePassive-v0`."""
    names = [
        next((config[part]["name"] for part in parts if part in config), "")
        for parts in (("core", "model"), ("env", "task"))
    ]
    return " on ".join(filter(None, names))
