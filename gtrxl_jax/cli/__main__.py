"""The entry point of `gtrxl` and of `python -m gtrxl_jax.cli`."""

import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from gtrxl_jax.machine import enable_compilation_cache
from gtrxl_jax.runs.preemption import EXIT_CODES, own_process


def run() -> None:
    """Run the command line. A signal during the imports, which take seconds, ends the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, in any terminal
    handled = [n for n in EXIT_CODES if signal.getsignal(n) is not signal.SIG_IGN]  # as under nohup
    for number in handled:
        signal.signal(number, _exit_at_once)
    enable_compilation_cache()
    from gtrxl_jax.cli.main import main

    # From here on, the process cleans up when it ends.
    for number in handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _exit)
    own_process()
    sys.unraisablehook = send_again
    main()


def send_again(unraisable: Any) -> None:
    """Send a signal again that arrived where Python cannot raise, and would ignore it.

    That is in a destructor or in a callback of the garbage collector, such as JAX's.
    """
    numbers = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
    if number := numbers.get(unraisable.exc_type):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_CODES[signal.Signals(number)])


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(EXIT_CODES[signal.Signals(number)])


if __name__ == "__main__":
    run()
