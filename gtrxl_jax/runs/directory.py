"""The folder of a run, which belongs to one config and, while it runs, to one process."""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gtrxl_jax import __version__
from gtrxl_jax.files import atomic
from gtrxl_jax.parallel import hosts

Folder = str | os.PathLike[str]

_OF_A_PROCESS = ("version", "devices", "parameter_shards")


@contextlib.contextmanager
def locked(folder: Folder, config_json: str) -> Iterator[None]:
    """Hold `folder` as the run of this config, new or taken up again, until the block ends.

    The first process of several holds it for all, which then go on together. Nothing is written but
    config.json in a folder that has none. A process that dies lets go.

    Args:
      folder: made if missing.
      config_json: the resolved config as a JSON object; its "version", the library's, and the
        devices that it asks for may differ from what is there.

    Raises:
      ValueError: the folder holds another run, or another process runs this one.
    """
    require_same_run(folder, config_json)
    path = Path(folder, "config.json")
    if not hosts.is_first():
        hosts.wait_for_all("locked")
        yield
        return
    if not path.exists():
        try:
            with atomic(path, replace=False) as temporary:
                temporary.write_text(config_json)
        except FileExistsError:  # since we looked
            require_same_run(folder, config_json)
    with open(path, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by a running process: wait for it, or choose another folder"
            ) from None
        hosts.wait_for_all("locked")
        yield


def load_config(folder: Folder) -> str:
    """The config of the run in `folder`, the JSON text that it was claimed with.

    Raises:
      FileNotFoundError: there is no run.
    """
    try:
        return Path(folder, "config.json").read_text()
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no run: it has no config.json") from None


def require_same_run(folder: Folder, config_json: str) -> None:
    """Check that the folder holds this run, or none.

    Raises:
      ValueError: it holds another, whose first difference is named, or one of a newer version.
    """
    try:
        require_version(folder)
        there = settings(folder)
    except FileNotFoundError:
        return
    found = difference(there, _settings(json.loads(config_json)))
    if found:
        raise ValueError(f"{folder} holds another run ({found}): choose another folder")


def require_version(folder: Folder) -> None:
    """Check that the run in `folder` was not written by a newer version of this library.

    Raises:
      FileNotFoundError: there is no run.
      ValueError: it was.
    """
    there = str(_parsed(folder).get("version", "0"))
    if _numbers(there) > _numbers(__version__):
        raise ValueError(
            f"{folder} was written by gtrxl_jax {there}, and this is {__version__}: upgrade it"
        )


def settings(folder: Folder) -> dict[str, Any]:
    """The config of the run in `folder`, without what may differ between processes of one run.

    Raises:
      FileNotFoundError: there is no run.
      ValueError: its config.json is not JSON.
    """
    return _settings(_parsed(folder))


def difference(there: Any, here: Any, name: str = "") -> str | None:
    """Where two configs differ first, in words; None if they are equal."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(there.keys() - here)]:
            inner = f"{name}.{key}" if name else key
            found = difference(there.get(key), here.get(key), inner)
            if found:
                return found
        return None
    if there == here:
        return None
    return f"{name} is {json.dumps(there)} there, {json.dumps(here)} here"


def _parsed(folder: Folder) -> dict[str, Any]:
    path = Path(folder, "config.json")
    try:
        parsed = json.loads(load_config(folder))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{path} is not the config of a run")
    return parsed


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _OF_A_PROCESS}


def _numbers(version: str) -> list[int]:
    """[0, 1, 0] of 0.1.0, whatever else is said of it."""
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
