"""Programs of the repository, run in processes of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"


def flags(devices: int) -> str:
    """Return the XLA flags of this process, with another number of virtual devices."""
    count = "xla_force_host_platform_device_count"
    return re.sub(rf"{count}=\d+", f"{count}={devices}", os.environ["XLA_FLAGS"])


def run(*command: object) -> str:
    """Run Python in a process with one device, and return its standard output."""
    paths = f"{ROOT}{os.pathsep}{EXPERIMENTS}"
    return subprocess.run(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        text=True,
        # Tables must not be wrapped.
        env=os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": flags(1), "COLUMNS": "200"},
        check=True,
        timeout=1200,
    ).stdout
