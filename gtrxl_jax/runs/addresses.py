"""Addresses of exported agents, accepted wherever the folder of a trained run is.

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
    """Return whether a string or path is an address; `Path` collapses the double slash."""
    return re.match("(hf|bundled):/", os.fspath(folder)) is not None


def local_folder(folder: Folder) -> Path:
    """Return the local folder of a run; the files of an address on the hub are downloaded first.

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
