"""The commands that list: `gtrxl runs` and `gtrxl list`."""

import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.files import printable


@dataclasses.dataclass(frozen=True)
class Runs:
    """List runs, the latest first: state, steps, scores."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder that contains them."""
    json: bool = False
    """Print as JSON."""


def runs(arguments: Sequence[str]) -> None:
    """Run `gtrxl runs`."""
    command = parse(Runs, arguments, prog="gtrxl runs")
    from gtrxl_jax.runs.directory import list_runs

    found = list_runs(command.folder)
    if command.json:
        print(json.dumps([dataclasses.asdict(run) for run in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "what", "state", "steps", "scores", "device", "updated", box=None)
    for run in found:
        age = datetime.timedelta(seconds=round(time.time() - run.updated))
        scores = "; ".join(f"{name} {score}" for name, score in run.scores.items())
        steps = f"{run.step:,} of {run.total:,}"
        row = run.folder, run.what, run.state, steps, scores, run.device, f"{age} ago"
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # so that a closed pipe is handled as everywhere


@dataclasses.dataclass(frozen=True)
class Names:
    """List all valid names: presets, cores, gates, algorithms, models, environments, agents."""

    json: bool = False
    """Print as JSON."""


def names(arguments: Sequence[str]) -> None:
    """Run `gtrxl list`."""
    command = parse(Names, arguments, prog="gtrxl list")
    import gymnax

    import gtrxl_jax.envs.registry  # noqa: F401, registers the environments of the package
    from gtrxl_jax.envs.adapters.suites import missing_extra
    from gtrxl_jax.nn.core import CORES
    from gtrxl_jax.nn.cores import registry as cores
    from gtrxl_jax.nn.cores.gtrxl import GATES
    from gtrxl_jax.nn.encoders import ENCODERS
    from gtrxl_jax.nn.sequence import registry as models
    from gtrxl_jax.nn.sequence.model import MODELS
    from gtrxl_jax.nn.sequence.valves import VALVES
    from gtrxl_jax.offline import config as offline_config
    from gtrxl_jax.offline.algorithm import ALGORITHMS as OFFLINE_ALGORITHMS
    from gtrxl_jax.online import config as configs
    from gtrxl_jax.online.algorithm import ALGORITHMS
    from gtrxl_jax.runs.addresses import bundled

    found: dict[str, Any] = {
        "presets": list(configs.PRESETS),
        "offline presets": list(offline_config.PRESETS),
        "models": list(MODELS),
        "model presets": list(models.PRESETS),
        "valves": list(VALVES),
        "algorithms": list(ALGORITHMS),
        "offline algorithms": list(OFFLINE_ALGORITHMS),
        "cores": list(CORES),
        "gates": list(GATES),
        "core presets": {
            name: list(cores.PRESETS.get(kind, ["small"])) for name, kind in CORES.items()
        },
        "encoders": ["auto", *ENCODERS],
        "environments": sorted(gymnax.registered_envs),
        "bundled agents": [f"bundled://{name}" for name in bundled()],
    }
    if command.json:
        print(json.dumps(found, indent=2))
        return
    found["core presets"] = [
        f"{core} ({', '.join(presets)})" for core, presets in found["core presets"].items()
    ]
    found["environments"] = [
        f"{name} (needs the extra {extra})" if (extra := missing_extra(name)) else name
        for name in found["environments"]
    ]
    for kind, values in found.items():
        print(f"{kind}: {', '.join(values)}")
