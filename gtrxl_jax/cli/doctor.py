"""The command `gtrxl doctor`: what is installed, in a form to paste into a report."""

import dataclasses
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gtrxl_jax import __version__
from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.extras import extras, install_command, missing
from gtrxl_jax.files import printable
from gtrxl_jax.machine import SET_HERE, available_cpus, available_memory

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "gymnasium", "tyro", "numpy",
)  # fmt: skip
"""The packages whose versions are reported."""
DEVELOPMENT = ("dev", "docs", "test")
"""The extras that only developers of this package need."""
PREFIXES = ("GTRXL_", "JAX_", "XLA_", "CUDA_VISIBLE", "TPU_")
"""The beginnings of variables of the environment that change what runs do."""


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Print versions, devices, extras and what is missing, to paste into a report."""

    json: bool = False
    """Print as JSON."""


def doctor(arguments: Sequence[str]) -> None:
    """Run `gtrxl doctor`."""
    command = parse(Doctor, arguments, prog="gtrxl doctor")
    found = examine()
    if command.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in _rows(found):
        print(printable(f"{name:18}  {value}"))


def examine() -> dict[str, Any]:
    """Return versions, devices, extras, and what is missing, as JSON."""
    set_variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) and name not in SET_HERE
    }
    from gtrxl_jax.runs.results import commit_of_package  # imports JAX, which sets some itself

    needs = missing()
    optional = {} if needs is None else {name: missing(name) for name in extras()}
    memory = available_memory()
    return {
        "gtrxl_jax": __version__,
        "commit": commit_of_package(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        **_devices(),
        "cpus": len(available_cpus()),
        "memory_gib": memory and round(memory / 2**30, 1),
        "environment": set_variables,
        "missing": ["gtrxl_jax: imported from a folder"] if needs is None else needs,
        "extras": [name for name, lacks in optional.items() if not lacks],
        "missing_extras": {name: lacks for name, lacks in optional.items() if lacks},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _devices() -> dict[str, Any]:
    """Return the devices, or why there are none: a broken driver is what this command is for."""
    try:
        import jax

        kinds = [device.device_kind for device in jax.devices()]
        return {"backend": jax.default_backend(), "devices": kinds}
    except Exception as error:
        return {"backend": f"{type(error).__name__}: {' '.join(str(error).split())}", "devices": []}


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "gtrxl_jax", f"{found['gtrxl_jax']}, commit {found['commit']}"
    yield "python", found["python"]
    yield "platform", found["platform"]
    yield from found["packages"].items()
    kinds = found["devices"]
    counted = (f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    yield "devices", ", ".join([found["backend"], *counted])
    memory = found["memory_gib"]
    yield "cpus, memory", f"{found['cpus']}" + (f", {memory} GiB free" if memory else "")
    yield "environment", " ".join(f"{k}={v}" for k, v in found["environment"].items()) or "none set"
    yield "missing", ", ".join(found["missing"]) or "nothing that is required"
    yield "extras", ", ".join(found["extras"]) or "none"
    for name, lacks in found["missing_extras"].items():
        if name not in DEVELOPMENT:
            yield f"no {name}", f"lacks {', '.join(lacks)}: {install_command(name)}"
