"""The entry point of `gtrxl` and of `python -m gtrxl_jax.cli`."""

import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from gtrxl_jax.machine import has_tpu, keep_programs, set_no_tpu
from gtrxl_jax.runs.preemption import EXIT_CODES


def run() -> None:
    """Run the command line. A signal during the imports, which take seconds, ends the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, in any terminal
    handled = [n for n in EXIT_CODES if signal.getsignal(n) is not signal.SIG_IGN]  # as under nohup
    for number in handled:
        signal.signal(number, _exit_at_once)
    if not has_tpu():
        set_no_tpu()
    keep_programs()
    from gtrxl_jax.cli.main import main

    # From here on, the process cleans up when it ends.
    for number in handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _exit)
    main()


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_CODES[signal.Signals(number)])


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(EXIT_CODES[signal.Signals(number)])


if __name__ == "__main__":
    run()
