"""The memory of the host that is left."""

import contextlib
import re
from pathlib import Path

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
