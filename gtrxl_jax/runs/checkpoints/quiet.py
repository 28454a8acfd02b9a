"""Suppress what orbax writes about its work; its errors are raised and reported by `checkpoint`."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress orbax's log messages, on each phase of its work and on errors that it raises."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def ignore_orphans() -> Callable[[], None]:
    """Suppress reports of threads whose save or read has failed; return a function that ends this.

    When one array cannot be written or read, orbax stops waiting, and the threads of the others
    find their event loop closed.
    """
    report = sys.unraisablehook

    def unraisable(failure: Any) -> None:
        if str(failure.exc_value) != "Event loop is closed":
            report(failure)

    def heed() -> None:
        sys.unraisablehook = report

    sys.unraisablehook = unraisable
    return heed
