"""Interruption of runs by signals, from a scheduler or from the keyboard."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
"""75 is EX_TEMPFAIL of sysexits.h, try again later; 130 is what shells report for an interrupt."""


class RunInterrupted(Exception):
    """Raised when a run was asked to stop and has been saved.

    Attributes:
      exit_code: exit code of the process.
    """

    def __init__(self, number: signal.Signals, step: int, folder: Any):
        super().__init__(f"stopped by {number.name} at step {step:,}, saved in {folder}")
        self.exit_code = EXIT_CODES[number]


_owns_process = False


def own_process() -> None:
    """Let signals end this process where a run cannot save: nothing but its runs would be lost."""
    global _owns_process
    _owns_process = True


class Interruption:
    """Handle SIGTERM and SIGINT during a run, letting it finish its current iteration.

    The run polls `requested`. Before `defer_signals` is called there is nothing to save, and a
    signal has its usual effect: SIGINT raises KeyboardInterrupt in the main thread as soon as it
    runs Python, and does so again after an earlier request. After `own_process`, these signals end
    the process instead, at once, even while the main thread is busy in a compiled program.

    Outside the main thread, where Python does not allow signal handlers, signals are not handled.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._deferring = self._heard = False
        self._thread: threading.Thread | None = None

    def defer_signals(self) -> None:
        """Handle signals at the end of the iteration from now on: there is something to save."""
        self._deferring = True
        self._intercept()

    def __enter__(self) -> "Interruption":
        if _owns_process:
            self._intercept()
        return self

    def _intercept(self) -> None:
        if self._thread or threading.current_thread() is not threading.main_thread():
            return
        # Python runs handlers only between bytecode instructions, of which a compiled program is
        # just one. It writes the signal's number to the wakeup pipe at once, however.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handlers = {
            number: signal.signal(number, self._handle)
            for number in EXIT_CODES
            if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
        }
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if not self._thread:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _listen(self) -> None:
        while received := os.read(self._reader, 1):
            number = signal.Signals(received[0])
            if number not in EXIT_CODES:
                continue
            is_second = self.requested and number == signal.SIGINT
            if _owns_process and (is_second or not self._deferring):
                if not self._deferring:
                    line = f"{number.name} before the first iteration: nothing to save"
                    print(line, file=sys.stderr, flush=True)
                _exit(EXIT_CODES[number])
            if not self.requested:
                self.requested = number
                line = f"{number.name}: finishing this iteration and saving; Ctrl-C stops at once"
                print(line, file=sys.stderr, flush=True)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt on a second request; the first is left to `_listen`."""
        if self._heard and number == signal.SIGINT and not _owns_process:
            raise KeyboardInterrupt
        self._heard = True


def _exit(code: int) -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the progress bar hides the cursor
    os._exit(code)
