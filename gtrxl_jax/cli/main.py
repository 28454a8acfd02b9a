"""The command line: it runs the command that its first argument names."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

from gtrxl_jax import __version__
from gtrxl_jax.cli import datasets, doctor, listing, studies, training
from gtrxl_jax.cli.parsing import SIZES, Parser, UnknownOptionsError, fail
from gtrxl_jax.cli.plan import plan
from gtrxl_jax.cli.trained import evaluate, export, inspect, play, push
from gtrxl_jax.files import is_full
from gtrxl_jax.validation import require_choice

Command = Callable[[Sequence[str]], None]

_PRINT_COMPLETION = "--print-completion"
JOINING = ("train", "train-offline", "repeat")
"""The commands that several processes run together."""
SHELLS = ("bash", "fish", "zsh")
"""The shells for which it prints a script."""


def _collect(arguments: Sequence[str]) -> None:
    from gtrxl_jax.cli.collecting import collect  # imports gymnax, which takes seconds

    collect(arguments)


COMMANDS: dict[str, Command] = {
    "train": training.train,
    "train-offline": training.train_offline,
    "repeat": training.repeat,
    "plan": plan,
    "evaluate": evaluate,
    "play": play,
    "inspect": inspect,
    "export": export,
    "push": push,
    "runs": listing.runs,
    "compare": studies.compare,
    "sweep": studies.sweep,
    "collect": _collect,
    "data": datasets.data,
    "list": listing.names,
    "doctor": doctor.doctor,
}
"""The commands by name. Each takes the arguments that follow its name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Errors are printed to standard error as a single line. Exit codes: 0 success; 1 the run
    diverged, has a faulty environment, could not be saved or needs more memory; 2 invalid
    arguments; 75 stopped by SIGTERM; 130 stopped by SIGINT (Ctrl-C). After the last two, the same
    command resumes the run.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        fail("gtrxl", "name a command: gtrxl --help says what each does", 2)
    name, *rest = arguments
    command: Command = _print_completion
    if name != _PRINT_COMPLETION:
        try:
            name = _parse_name(name)
        except ValueError as error:
            fail("gtrxl", str(error), 2)
        command = COMMANDS[name]
    _run(name, command, rest)


def _parse_name(argument: str) -> str:
    """Return the name of a command, or print the help or the version and exit.

    Raises:
      ValueError: if there is no such command.
    """
    parser = Parser(
        prog="gtrxl",
        description="Transformer memory for reinforcement learning agents.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="gtrxl COMMAND --help lists the options of a command.\n"
        "Exit codes: 0 success, 1 the run failed, 2 invalid arguments, 75 stopped by SIGTERM,\n"
        "130 stopped by Ctrl-C. Stopped runs are saved, and the same command resumes them, or\n"
        "gtrxl train --resume FOLDER.",
    )
    parser.add_argument("--version", action="version", version=f"gtrxl_jax {__version__}")
    parser.add_argument("command", metavar=f"{{{','.join(COMMANDS)}}}")
    parser.add_argument(
        _PRINT_COMPLETION,
        action="store_true",
        help="SHELL: print a script that completes commands and options in bash, fish or zsh",
    )
    if argument in ("-h", "--help"):
        from gtrxl_jax.cli import catalog  # imports all commands, which takes seconds

        parser.description = "\n".join([f"{parser.description}\n", *catalog.lines()])
    return require_choice("command", parser.parse_args([argument]).command, COMMANDS)


def _run(name: str, command: Command, arguments: Sequence[str]) -> None:
    """Run a command; on an error, print it and exit, see `main`."""
    try:
        joins = name in JOINING and not {"-h", "--help"} & {*arguments}
        if joins and "--distributed" in arguments:
            from gtrxl_jax.parallel import hosts

            # Before any import of gymnax, which initializes JAX's backend.
            hosts.join()
        try:
            command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Discard what is flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, TypeError, OverflowError, ImportError, OSError) as error:
        if os.environ.get("GTRXL_TRACEBACK"):
            raise
        fail(f"gtrxl {name}", f"{error}{_commands_with(error)}", 1 if is_full(error) else 2)
    except (MemoryError, RuntimeError) as error:
        reasons = ("RESOURCE_EXHAUSTED", "Out of memory")
        exhausted = isinstance(error, MemoryError) or any(r in str(error) for r in reasons)
        if os.environ.get("GTRXL_TRACEBACK") or not exhausted:
            raise
        message = f"out of memory: reduce {SIZES.get(name, 'its size')}"
        if name == "plan":
            message = str(error)  # about the memory of other devices
        fail(f"gtrxl {name}", message, 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_completion(arguments: Sequence[str]) -> None:
    from gtrxl_jax.cli import catalog

    (shell,) = arguments[:1] or ("",)
    print(catalog.completion(require_choice("shell", shell, SHELLS)))


def _commands_with(error: Exception) -> str:
    """Return a note on the commands that have an unknown option; empty for other errors."""
    if not isinstance(error, UnknownOptionsError):
        return ""
    from gtrxl_jax.cli import catalog

    has = {option: catalog.with_option(option) for option in error.options}
    return "".join(
        f"; {option} is an option of {', '.join(f'gtrxl {name}' for name in names)}"
        for option, names in has.items()
        if names
    )
