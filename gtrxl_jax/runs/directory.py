"""The folder of a run, which belongs to one config and, while it runs, to one process.

Its lock, its config, its status, and the overview of several.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gtrxl_jax import __version__
from gtrxl_jax.files import atomic, is_locked, try_lock
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.config import parse_json, run_kind, with_defaults
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.results import Result, main_scores, read_record, read_result
from gtrxl_jax.runs.trainer import Trainer

Folder = str | os.PathLike[str]

MAY_CHANGE = (
    "version",
    "devices",
    "parameter_shards",
    "on_divergence",
    "checkpoint.interval",
    "checkpoint.keep",
    "evaluation.interval",
    "actors.processes",
    "actors.timeout",
    "actors.restarts",
)
"""Fields of a run's config that may change when it is resumed: they do not affect its state."""
MAY_GROW = ("total_steps", "total_updates")
"""Fields that may increase: the run is then extended. Schedules that are relative to the length of
the run, such as the decay of the learning rate, continue at their place in the longer run."""
WRITTEN = ("metrics.jsonl", "result.json", "options.json", "README.md", "checkpoints")
"""What a run writes into its folder beside its config, except pictures and tables."""
_TRIES = 10
"""Attempts to lock a folder: a status query holds its lock for an instant."""
OLDEST_VERSION = "0.3.0"
"""The oldest version whose runs can be read."""


@contextlib.contextmanager
def new_folder(path: Folder) -> Iterator[Path]:
    """Create a folder for the block; one of this name and a number if another process has it.

    If the block leaves the folder empty, it is removed.
    """
    parent, name = Path(path).parent, Path(path).name
    parents = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            break
        path = parent / f"{name}-{number}"
    try:
        yield Path(path)
    finally:
        with contextlib.suppress(OSError):
            for folder in (path, *parents):
                os.rmdir(folder)


@contextlib.contextmanager
def lock_folder(folder: Folder, config_json: str) -> Iterator[None]:
    """Lock `folder` for the run of this config, new or resumed, until the block ends.

    The first of several processes holds the lock for all, and the others wait for it. Nothing is
    written except config.json. The lock of a process that dies is released.

    Args:
      folder: created if missing. If it holds a run that has neither a checkpoint nor a result, that
        run is replaced.
      config_json: the resolved config as a JSON object, which may differ from the config in the
        folder in `MAY_CHANGE` and `MAY_GROW`.

    Raises:
      ValueError: if the folder holds another run, or another process is running this one.
    """
    require_same_run(folder, config_json)
    path = Path(folder, "config.json")
    if not hosts.is_first():
        hosts.wait_for_all("locked")
        yield
        return
    with contextlib.ExitStack() as resources:
        # Another process may create the file in the meantime, and hold its lock.
        with contextlib.suppress(FileExistsError), atomic(path, replace=False) as temporary:
            temporary.write_text(config_json, "utf-8")
        _lock(path, resources)
        require_same_run(folder, config_json)
        if read_config(folder) != json.loads(config_json):
            with atomic(path) as temporary:
                temporary.write_text(config_json, "utf-8")
                # The new file is locked before it replaces the old one.
                _lock(temporary, resources)
        hosts.wait_for_all("locked")
        yield


def _lock(config: Path, resources: contextlib.ExitStack) -> None:
    """Lock a file until `resources` are closed.

    Raises:
      ValueError: if another process holds its lock.
    """
    file = resources.enter_context(config.open("r+b"))
    for _ in range(_TRIES):
        if try_lock(file):
            return
        time.sleep(0.02)
    raise ValueError(
        f"{config.parent} is in use by a running process: wait for it, or choose another folder"
    )


def is_running(folder: Folder) -> bool:
    """Return whether a process of this machine holds the lock of the run in `folder`."""
    with open(Path(folder, "config.json"), "rb") as file:
        return is_locked(file)


def params_path(folder: Folder) -> Path:
    """Return the path of the parameters in `folder`, if it is an export (see `runs.params`)."""
    return Path(folder, "params.safetensors")


def is_export(folder: Folder) -> bool:
    """Return whether `folder` is an export rather than a run."""
    return params_path(folder).exists()


def has_started(folder: Folder) -> bool:
    """Return whether the run in `folder` has a checkpoint or a result."""
    return bool(available_steps(folder)) or Path(folder, "result.json").exists()


def available_steps(folder: Folder) -> list[int]:
    """Return the sorted steps of the checkpoints; empty if there is no such folder.

    Only folders count.
    """
    path = Path(folder, "checkpoints")
    if not path.is_dir():
        return []
    entries = [entry for entry in path.iterdir() if entry.is_dir()]
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def read_config_text(folder: Folder) -> str:
    """Return the config of the run in `folder`, the JSON text passed to `lock_folder`.

    Raises:
      FileNotFoundError: if there is no run, naming those in folders inside.
      ValueError: if its config.json is not a text.
    """
    path = Path(folder, "config.json")
    if not path.is_file():
        runs = sorted(str(inner.parent) for inner in Path(folder).glob("*/config.json"))
        reason = f"name one of {', '.join(runs)}" if runs else "it has no config.json"
        raise FileNotFoundError(f"{folder} holds no run: {reason}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not the config of a run: {error}") from None


def require_same_run(folder: Folder, config_json: str) -> None:
    """Raise if the folder holds a run of another config than `config_json`, and it has started.

    Raises:
      ValueError: if it holds another run, naming the first difference, a run of a version that
        cannot be read, an export, or files of others that a run would replace, or if there cannot
        be such a folder.
    """
    require_folder(folder)
    require_storable(folder)
    if is_export(folder):
        raise ValueError(
            f"{folder} holds an exported agent: choose another folder, with init_from {folder} to "
            "start from it"
        )
    require_no_other_files(folder)
    if not Path(folder, "config.json").exists() or not has_started(folder):
        return
    require_version(folder)
    there, here = read_config(folder), json.loads(config_json)
    if len({_fingerprint(there), _fingerprint(here)} - {""}) > 1:
        raise ValueError(
            f"{folder} holds a run on other data than {here['data']['path'] or 'these'}, whose "
            "contents differ: restore the data of the run, or choose another folder"
        )
    if found := difference(there, here):
        raise ValueError(
            f"{folder} holds another run ({found}): choose another folder, or leave the setting "
            "as it is there; --resume takes all of them"
        )


def require_no_other_files(folder: Folder) -> None:
    """Raise ValueError if a run in the folder would replace files that no run has written."""
    config = Path(folder, "config.json")
    if config.exists():
        if not isinstance(read_config(folder).get("kind"), str):
            raise ValueError(
                f"{config} is not of a run, which would replace it: choose another folder"
            )
        return
    for name in WRITTEN:
        if Path(folder, name).exists():
            raise ValueError(
                f"{folder} holds {name} but no run, which would replace it: choose another folder"
            )


def require_folder(folder: Folder, field: str = "folder") -> None:
    """Raise ValueError if there cannot be such a folder, since a part of its path is a file."""
    for path in (Path(folder), *Path(folder).parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{field} {folder}: {path} is a file: choose another folder")


def require_storable(folder: Folder) -> None:
    """Raise ValueError if checkpoints cannot be stored below the folder because of its path.

    Orbax takes it as a pattern, and as UTF-8.
    """
    path = str(Path(folder).absolute())
    invalid = [repr(character) for character in "*?[\\" if character in path]
    if path.encode(errors="replace").decode() != path:
        invalid.append("invalid UTF-8")
    if invalid:
        raise ValueError(
            f"checkpoints cannot be stored in {path}: its path contains {invalid[0]}, choose "
            "another folder"
        )


def require_version(folder: Folder) -> None:
    """Raise if this version of the library cannot read the run, or the export, in `folder`.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if it was written by a newer version, or by one before `OLDEST_VERSION`.
    """
    require_version_of(read_config(folder), folder)


def require_version_of(config: Mapping[str, Any], source: Folder) -> None:
    """Raise ValueError if this version cannot read a run of that config, see `require_version`."""
    there = str(config.get("version", __version__))
    written = f"{source} was written by gtrxl_jax {there}, and this is {__version__}"
    if _numbers(there) > _numbers(__version__):
        raise ValueError(f"{written}: upgrade gtrxl_jax")
    if _numbers(there) < _numbers(OLDEST_VERSION):
        raise ValueError(
            f"{written}, which reads runs of {OLDEST_VERSION} and later: install {there}, or train "
            "again in another folder"
        )


def read_config(folder: Folder) -> dict[str, Any]:
    """Return the config of the run in `folder`.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if its config.json is not the JSON of a config.
    """
    return parse_config(read_config_text(folder), Path(folder, "config.json"))


def parse_config(text: str, path: Path) -> dict[str, Any]:
    """Return the config that is the text of a file, see `read_config`."""
    parsed = parse_json(text, str(path))
    if not isinstance(parsed, dict):
        raise ValueError(f"{path} is not the config of a run: it is no JSON object")
    return parsed


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Describe the first difference that makes the config `here` another run than `there`.

    A field that only one of them has was added by a later version, and is at its default in the
    other. Data are compared by their fingerprint, if both have one, and else by their path.

    Returns:
      None if there is none: they are equal except for `MAY_CHANGE`, and `MAY_GROW` is not less.
    """
    there, here = with_defaults(there), with_defaults(here)
    fingerprints = [_fingerprint(config) for config in (there, here)]
    ignored: tuple[str, ...] = MAY_CHANGE
    if "" in fingerprints:
        ignored += ("data.fingerprint",)
    elif fingerprints[0] == fingerprints[1]:
        ignored += ("data.path",)
    return _difference(there, here, ignored)


def _fingerprint(config: Mapping[str, Any]) -> str:
    """Return the fingerprint of a run's data, empty if none was recorded."""
    data = config.get("data")
    return str(data.get("fingerprint", "")) if isinstance(data, dict) else ""


def _difference(there: Any, here: Any, ignored: tuple[str, ...], name: str = "") -> str | None:
    if name in ignored:
        return None
    if name == "env.wrappers":  # Wrappers are compared with their order.
        there, here = ([*(wrappers or {}).items()] for wrappers in (there, here))
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(there.keys() - here)]:
            if key not in there and not here[key]:
                continue  # Defaults of this kind of run are unknown.
            inner = f"{name}.{key}" if name else key
            found = _difference(there.get(key), here.get(key), ignored, inner)
            if found:
                return found
        return None
    if there == here or (name in MAY_GROW and (there or 0) < (here or 0)):
        return None
    shorter = ", and a run cannot be shortened" if name in MAY_GROW else ""
    return f"{name} is {json.dumps(there)} there, {json.dumps(here)} here{shorter}"


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version, [0, 1, 0] for 0.1.0, without any suffix."""
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def final_result(trainer: Trainer, folder: Folder) -> Result | None:
    """Return the result of the run in a folder; None if the run has not ended there.

    Raises:
      ValueError: if the folder belongs to another run.
    """
    steps = trainer.num_iterations * trainer.steps_per_iteration
    return read_final_result(folder, trainer.config_json, steps, trainer.config.num_seeds)


def read_final_result(
    folder: Folder, config_json: str, steps: int, num_seeds: int
) -> Result | None:
    """Return the result of a run that ends after a number of steps, see `final_result`."""
    require_same_run(folder, config_json)
    result = read_result(folder)
    return result if result and result.is_final(steps, num_seeds) else None


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a run is.

    Attributes:
      state: "running" in a process of this machine; "finished"; "diverged", if all seeds have;
        "extended", if it has ended before, with fewer steps than its config has now; "stopped",
        with a checkpoint from which it can be resumed; or "empty".
      step: step of the newest checkpoint, or of the result; 0 without either.
      total: the number of steps in its config; the result's, which are whole iterations, if more.
      result: the result of the whole run; None before, also of an extended one.
    """

    state: str
    step: int
    total: int
    result: Result | None

    def __str__(self) -> str:
        return f"{self.state}, at step {self.step:,} of {self.total:,}"


def status_of(folder: Folder) -> Status:
    """Return the status of the run in a folder.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if its config.json is not the config of a run, or its result.json is damaged.
    """
    config, latest = read_config(folder), read_result(folder)
    run_kind(config)  # raises if it is another program's
    total, num_seeds = (
        next(config[name] for name in MAY_GROW if name in config),
        config["num_seeds"],
    )
    result = latest if latest and latest.is_final(total, num_seeds) else None
    steps = [*available_steps(folder), latest.steps if latest else 0]
    if is_running(folder):
        state = "running"
    elif result:
        state = "diverged" if len(result.diverged) == num_seeds else "finished"
    elif latest is None and _has_diverged(folder):
        state = "diverged"
    elif latest:
        state = "extended"
    else:
        state = "stopped" if any(steps) else "empty"
    return Status(state, max(steps), max(total, *steps), result)


def _has_diverged(folder: Folder) -> bool:
    """Return whether all seeds of a run without a result have diverged, by its metrics."""
    try:
        diverged = read_metrics(Path(folder, "metrics.jsonl")).get("diverged")
    except (FileNotFoundError, ValueError):  # none yet, or damaged
        return False
    return diverged is not None and bool(np.all(diverged[-1] == 1))


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
      updated: time of its last metrics, in seconds since 1970; without any, time of its start.
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


def list_runs(folder: Folder) -> list[Overview]:
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
    config = read_config(folder)
    kind = run_kind(config)
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
        what=_describe(config),
        state=status.state,
        step=status.step,
        total=status.total,
        scores={name: str(scores[name]) for name in main_scores(scores)},
        device=record.get("device", ""),
        updated=latest.stat().st_mtime,
    )


def _describe(config: dict[str, Any]) -> str:
    """Return `gtrxl on TMazePassive-v0`."""
    names = [config[part]["name"] for part in ("core", "model", "env") if part in config]
    return " on ".join(filter(None, names))
