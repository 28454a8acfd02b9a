"""Memory, CPUs and TPUs that this process may use, and JAX's environment variables."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

CACHE = "JAX_COMPILATION_CACHE_DIR"
"""The variable that names the folder in which JAX keeps compiled programs."""
SET_HERE: set[str] = set()
"""The variables of the environment that this package has set itself."""

_GROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""The files with the limit of a container, what it uses, and how much of that are unused files."""


def available_memory() -> int | None:
    """Return the bytes of memory that this process may still use; None where this is unknown.

    It is what Linux estimates to be available, or less if a container's limit leaves less.
    """
    sizes = []
    with contextlib.suppress(OSError):
        sizes.append(1024 * _entry(Path("/proc/meminfo"), "MemAvailable:"))
    for limit, used, statistics in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            most, taken = (int((_GROUP / name).read_text("utf-8")) for name in (limit, used))
            sizes.append(most - taken + _entry(_GROUP / statistics, "inactive_file"))
    return min(sizes, default=None)


def _entry(path: Path, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", path.read_text("utf-8"), re.MULTILINE)
    return int(found[1]) if found else 0


def available_cpus() -> list[int]:
    """Return the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def share_of_cpus(number: int, count: int) -> Iterator[None]:
    """Start processes in the block on the share of process `number` of `count`.

    Processes inherit the CPUs of the one that starts them, and XLA uses no others. Each share has
    at least one CPU. Without effect on systems that do not bind processes to CPUs.
    """
    cpus = available_cpus()
    _bind(cpus[number % len(cpus) :: count] if len(cpus) > 1 else cpus)
    try:
        yield
    finally:
        _bind(cpus)


def _bind(cpus: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def has_tpu() -> bool:
    """Return whether this machine has a TPU, as its devices tell."""
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def set_no_tpu() -> None:
    """Tell libtpu, XLA's compiler for TPUs, that it will not find a TPU. Call this before JAX runs.

    Otherwise it looks for one over the network, writes warnings that it has not found any, and
    allows one process at a time.
    """
    for variable, value in {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_LOG_DIR": "disabled",
    }.items():
        _set_variable(variable, value)


def _set_variable(name: str, value: str) -> None:
    if name not in os.environ:
        os.environ[name] = value
        SET_HERE.add(name)


def enable_compilation_cache() -> None:
    """Have JAX keep compiled programs in a folder of the user's. Call this before JAX is imported.

    Without effect if the user names a folder, or has disabled the cache, by JAX's variables. Each
    kind of CPU has a folder of its own, since programs for one may not run on another.
    """
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower() not in ("false", "0"):
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        _set_variable(CACHE, str(Path(base, "gtrxl_jax", f"programs-{_kind_of_cpu()}")))


def _kind_of_cpu() -> str:
    text = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0].splitlines()
        names = ("model name", "flags", "Features", "CPU part")
        text = "".join(line for line in lines if line.startswith(names))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
