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
    """Lock `folder` for the run of this config, new or resumed, until the block ends.

    The first of several processes holds the lock for all, and the others wait for it. Nothing is
    written except a missing config.json. The lock of a process that dies is released.

    Args:
      folder: created if missing.
      config_json: the resolved config as a JSON object. Its "version", that of the library, and its
        devices may differ from those in the folder.

    Raises:
      ValueError: if the folder holds another run, or another process is running this one.
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
        except FileExistsError:  # created by another process in the meantime
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
    """Return the config of the run in `folder`, the JSON text passed to `locked`.

    Raises:
      FileNotFoundError: if there is no run.
    """
    try:
        return Path(folder, "config.json").read_text()
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no run: it has no config.json") from None


def require_same_run(folder: Folder, config_json: str) -> None:
    """Raise if the folder holds a run other than that of `config_json`.

    Raises:
      ValueError: if it holds another run, naming the first difference, or a run of a newer version.
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
    """Raise if the run in `folder` was written by a newer version of this library.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if it was written by a newer version.
    """
    there = str(_parsed(folder).get("version", "0"))
    if _numbers(there) > _numbers(__version__):
        raise ValueError(
            f"{folder} was written by gtrxl_jax {there}, and this is {__version__}: "
            "upgrade gtrxl_jax"
        )


def settings(folder: Folder) -> dict[str, Any]:
    """Return the config of the run in `folder`, without what may differ between its processes.

    Raises:
      FileNotFoundError: if there is no run.
      ValueError: if its config.json is not JSON.
    """
    return _settings(_parsed(folder))


def difference(there: Any, here: Any, name: str = "") -> str | None:
    """Describe the first difference between two configs; None if they are equal."""
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
    """Return the leading numbers of a version, [0, 1, 0] for 0.1.0, without any suffix."""
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
