"""The cores of this machine, and their division among processes that run side by side."""

import contextlib
import os
from collections.abc import Iterator


def available_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def share_of_cores(number: int, count: int) -> Iterator[None]:
    """Start processes in the block on the share of process `number` of `count`.

    Processes inherit the cores of the one that starts them, and XLA uses no others. Each share has
    at least one core. Without effect on systems that do not bind processes to cores.
    """
    cores = available_cores()
    _bind(cores[number % len(cores) :: count] if len(cores) > 1 else cores)
    try:
        yield
    finally:
        _bind(cores)


def _bind(cores: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
