"""Addresses, which stand for the folder of an export wherever one of a trained run is taken.

hf://owner/name     on the Hugging Face hub, see `runs.hub`; or hf://owner/name@revision
bundled://name      in this package
"""

import os
import re
from pathlib import Path

from gtrxl_jax.runs import hub
from gtrxl_jax.runs.directory import Folder
from gtrxl_jax.validation import require_choice

BUNDLED = Path(__file__).parents[1] / "agents"
"""The folder of the agents in this package."""


def is_address(folder: Folder) -> bool:
    """Return whether it is an address, even as a path, which has a single slash."""
    return re.match("(hf|bundled):/", os.fspath(folder)) is not None


def local_folder(folder: Folder) -> Path:
    """Return a folder, for an address that of its files, which are downloaded if they are new.

    Raises:
      ValueError: if the address is invalid, or the package has no such agent.
      FileNotFoundError: for the name of a bundled agent where there is no such folder.
      FileNotFoundError, ConnectionError, ModuleNotFoundError: see `runs.hub.download`.
    """
    if not is_address(folder):
        if os.fspath(folder) in bundled() and not Path(folder).exists():
            raise FileNotFoundError(f"there is no folder {folder}: try bundled://{folder}")
        return Path(folder)
    scheme, name = re.split(":/+", os.fspath(folder), maxsplit=1)
    if scheme == "hf":
        return hub.download(name)
    return BUNDLED / require_choice("bundled agent", name, bundled())


def bundled() -> list[str]:
    """Return the names of the agents in this package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))
