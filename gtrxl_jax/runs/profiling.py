"""A trace of a few iterations of a run, for TensorBoard, XProf and Perfetto."""

import os
import sys

import jax

BEGIN, END = 2, 5
"""The trace is of the iterations from `BEGIN` to before `END`: the first is slower than others."""


class Profile:
    """Traces iterations of a process by jax.profiler. A context manager, which ends the trace.

    Args:
      folder: where the trace is written; nothing is traced if None.

    Raises:
      OSError: if the folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str] | None):
        self._folder = folder
        self._next = 1
        self._tracing = False
        if folder is not None:
            os.makedirs(folder, exist_ok=True)

    @property
    def waits(self) -> bool:
        """Whether the iteration in progress must end before the next one begins."""
        return self._folder is not None and self._next in (BEGIN, END)

    def begin_iteration(self) -> None:
        """Begin the trace, or end it, if it is time."""
        if self._folder is not None and self._next == BEGIN:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        elif self._next == END:
            self._stop()
        self._next += 1

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop()
        if self._folder is not None and self._next <= BEGIN and error is None:
            print("profile: the run has no second iteration to trace", file=sys.stderr)

    def _stop(self) -> None:
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
            last = min(self._next, END) - 1
            print(f"profile: iterations {BEGIN} to {last} in {self._folder}", file=sys.stderr)
