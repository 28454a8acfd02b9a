"""The command line: `gtrxl train`, `runs`, `collect`; others in `cli.trained`, `cli.studies`."""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import tyro

from gtrxl_jax.cli import studies
from gtrxl_jax.cli.parsing import SIZES, Parser, parse
from gtrxl_jax.cli.plan import plan
from gtrxl_jax.cli.trained import evaluate, export, inspect, play
from gtrxl_jax.files import is_full, printable
from gtrxl_jax.formatting import number
from gtrxl_jax.plugins import import_plugins, with_name
from gtrxl_jax.validation import require_choice

if TYPE_CHECKING:
    from gtrxl_jax.cli.arguments import RunOptions
    from gtrxl_jax.cli.resuming import OptionsWriter


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Errors are printed to standard error as a single line. Exit codes: 0 success; 1 the run
    diverged, could not be saved or needs more memory; 2 invalid arguments; 75 stopped by SIGTERM;
    130 stopped by SIGINT (Ctrl-C). After the last two, the same command resumes the run.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(
        prog="gtrxl",
        description="Transformer memory for reinforcement learning agents.",
        epilog="gtrxl COMMAND --help lists the options of a command. Exit codes: 0 success, 1 the "
        "run failed, 2 invalid arguments, 75 stopped by SIGTERM, 130 stopped by Ctrl-C. Stopped "
        "runs are saved, and the same command resumes them, or gtrxl train --resume FOLDER.",
    )
    commands = {
        "train": _train,
        "train-offline": _train_offline,
        "repeat": _repeat,
        "plan": plan,
        "evaluate": evaluate,
        "play": play,
        "inspect": inspect,
        "export": export,
        "runs": _runs,
        "compare": studies.compare,
        "sweep": studies.sweep,
        "collect": _collect,
        "list": _list,
    }
    parser.add_argument("command", metavar=f"{{{','.join(commands)}}}")
    try:
        chosen = parser.parse_args(arguments[:1])
        require_choice("command", chosen.command, commands)
    except ValueError as error:
        _fail("gtrxl", str(error), 2)
    try:
        if "--distributed" in arguments and chosen.command != "plan":
            from gtrxl_jax.parallel import hosts

            # Before any import of gymnax, which initializes JAX's backend.
            hosts.join()
        try:
            commands[chosen.command](arguments[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Discard what is flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, TypeError, OverflowError, ImportError, OSError) as error:
        if os.environ.get("GTRXL_TRACEBACK"):
            raise
        _fail(f"gtrxl {chosen.command}", str(error), 1 if is_full(error) else 2)
    except (MemoryError, RuntimeError) as error:
        reasons = ("RESOURCE_EXHAUSTED", "Out of memory")
        exhausted = isinstance(error, MemoryError) or any(r in str(error) for r in reasons)
        if os.environ.get("GTRXL_TRACEBACK") or not exhausted:
            raise
        message = f"out of memory: reduce {SIZES.get(chosen.command, 'its size')}"
        if chosen.command == "plan" and exhausted:
            message = str(error)  # about the memory of other devices
        _fail(f"gtrxl {chosen.command}", message, 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(program: str, message: str, code: int) -> NoReturn:
    print(f"{program}: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _train(arguments: Sequence[str]) -> None:
    from gtrxl_jax.cli.arguments import parse_train
    from gtrxl_jax.cli.resuming import Options, OptionsWriter

    command = parse_train(arguments)
    # Slow imports, delayed until the arguments have been validated.
    from gtrxl_jax.online.trainer import OnlineTrainer
    from gtrxl_jax.plots import report

    config = command.config
    trainer = OnlineTrainer(config)
    with _folder(command, config.env.name, config.core.name) as folder:
        options = Options(command.log, command.pictures)
        title = f"{config.core.name} on {config.env.name}"
        trained = _run(trainer, folder, command, title, OptionsWriter(folder, options))
    if trained is not None and command.pictures and _is_first():
        with _report_plot_errors():
            paths = report.draw_curves(folder, config.core.name)
            params = trained.params_per_seed[0]
            paths += report.draw_episodes(folder, trainer.policy, trainer.tasks, params)
        _print_plots(command, paths)


def _train_offline(arguments: Sequence[str]) -> None:
    from gtrxl_jax.cli.arguments import parse_train_offline
    from gtrxl_jax.cli.resuming import Options, OptionsWriter

    command = parse_train_offline(arguments)
    from gtrxl_jax.offline.environments import trajectories_of
    from gtrxl_jax.offline.trainer import OfflineTrainer
    from gtrxl_jax.plots import report
    from gtrxl_jax.runs.params import initial_params

    config = command.config
    configs = {
        name: dataclasses.replace(
            config,
            model=with_name(config.model, name),
            init_from=_run_of_model(config.init_from, name),
        )
        for name in dict.fromkeys((config.model.name, *command.baselines))
    }
    paths: list[Path] = []
    with _folder(command, config.subject, config.model.name) as folder:
        for name, model_config in configs.items():
            # All models are checked before data are generated and the first is trained.
            trainer = OfflineTrainer(model_config)
            trainer.mesh()
            initial_params(trainer, folder / name)
        trajectories = None if config.data.stream else trajectories_of(config)
        options = Options(command.log, command.pictures, tuple(configs), config.init_from)
        kept = OptionsWriter(folder, options)
        for name, model_config in configs.items():
            trainer = OfflineTrainer(model_config, trajectories)
            trained = _run(trainer, folder / name, command, f"{name} on {config.subject}", kept)
            if trained is not None and command.pictures and _is_first():
                params = trained.params_per_seed[0]
                with _report_plot_errors():
                    paths += report.draw_episodes(
                        folder / name, trainer.policy, trainer.tasks, params
                    )
    if command.pictures and _is_first():
        with _report_plot_errors():
            paths = report.draw_offline(folder, list(configs)) + paths
        _print_plots(command, paths)


def _repeat(arguments: Sequence[str]) -> None:
    from gtrxl_jax.cli.arguments import Repeat
    from gtrxl_jax.cli.resuming import command_of

    if not arguments or arguments[0].startswith("-"):
        parse(Repeat, arguments, prog="gtrxl repeat")
        raise ValueError("the folder of the run comes first: gtrxl repeat RUN [OPTIONS]")
    run, *options = arguments
    train = {"train": _train, "train-offline": _train_offline}[command_of(Path(run))]
    train(["--from-config", run, *options])


@contextlib.contextmanager
def _report_plot_errors() -> Iterator[None]:
    """Exit with an error if a plot of a finished run cannot be written."""
    try:
        yield
    except OSError as failure:
        _fail("gtrxl", f"the run is finished, but a plot cannot be written: {failure}", 1)


def _print_plots(command: "RunOptions", paths: list[Path]) -> None:
    if not command.quiet:
        print(printable("pictures: " + ", ".join(map(str, paths))), file=sys.stderr)


def _run_of_model(folder: str, name: str) -> str:
    """Return the run of a model in the folder of a comparison; `folder` if it is a run itself."""
    inner = Path(folder, name)
    return str(inner) if folder and (inner / "config.json").exists() else folder


def _folder(command: "RunOptions", *names: str) -> contextlib.AbstractContextManager[Path]:
    """Return the folder of the command, or a new one that is named after its parts and the time."""
    from gtrxl_jax.runs.directory import new_folder

    if command.folder:
        return contextlib.nullcontext(command.folder)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return new_folder(Path("runs", re.sub("[^A-Za-z0-9._+-]+", "-", "-".join([*names, now]))))


def _run(
    trainer: Any, folder: Path, command: "RunOptions", title: str, options: "OptionsWriter"
) -> Any:
    """Train and print the scores, or exit on failure. Returns None if it was already finished."""
    from gtrxl_jax.runs import loop
    from gtrxl_jax.runs.checkpoint import SaveError
    from gtrxl_jax.runs.directory import available_steps, final_result
    from gtrxl_jax.runs.divergence import DivergedError
    from gtrxl_jax.runs.logging.console import ConsoleWriter
    from gtrxl_jax.runs.logging.loggers import make_loggers
    from gtrxl_jax.runs.preemption import RunInterrupted
    from gtrxl_jax.runs.results import describe

    trainer.mesh()
    if done := final_result(trainer, folder):
        _print(f"finished already: {describe(done.evaluation)} | {folder}")
        _report_divergence(done, trainer)
        return None
    steps = trainer.num_iterations * trainer.steps_per_iteration
    writers = [*make_loggers(command.log, folder, trainer.config_json), options]
    if not command.quiet:
        # First, since loggers of services may take seconds to start.
        writers.insert(
            0, ConsoleWriter(steps, trainer.progress_metrics, title=f"{title}, in {folder}")
        )
        for note in trainer.notes:
            _print(note, sys.stderr)
    try:
        trained = loop.train(trainer, writers=writers, folder=folder, profile=command.profile)
    except RunInterrupted as stop:
        _print(f"gtrxl: {stop}: resume with {_resuming(command, options)}", sys.stderr)
        sys.exit(stop.exit_code)
    except (DivergedError, SaveError, OSError) as failure:
        if os.environ.get("GTRXL_TRACEBACK"):
            raise
        message = str(failure)
        if isinstance(failure, OSError):
            steps_saved = available_steps(folder)
            message += "; " + (
                f"the checkpoint of step {steps_saved[-1]} is intact"
                if steps_saved
                else "nothing is saved"
            )
        _fail("gtrxl", message, 1)
    result = trained.result
    _report_divergence(result, trainer)
    _print(
        f"{describe(result.evaluation)} | {result.steps:,} steps per seed in "
        f"{result.train_seconds:.0f} s after {result.compile_seconds:.0f} s of compilation, "
        f"{result.steps_per_second:,.0f} steps/s | {folder}"
    )
    return trained


def _resuming(command: "RunOptions", options: "OptionsWriter") -> str:
    """Return the command that resumes the run."""
    if command.folder:
        return "the same command"
    return f"gtrxl {options.command} --resume {shlex.quote(str(options.folder))}"


def _report_divergence(result: Any, trainer: Any) -> None:
    """Print what has diverged, and exit if all seeds have."""
    for divergence in result.diverged:
        _print(f"gtrxl: {divergence}", sys.stderr)
    if len(result.diverged) == trainer.config.num_seeds:
        sys.exit(1)


def _is_first() -> bool:
    """Return whether this is the only or the first process."""
    from gtrxl_jax.parallel import hosts  # imports JAX, which takes a second

    return hosts.is_first()


def _print(line: str, file: Any = None) -> None:
    """Print a line in the first process only."""
    if _is_first():
        print(printable(line), file=file)


def _runs(arguments: Sequence[str]) -> None:
    parser = Parser(prog="gtrxl runs", description="List runs, the latest first.")
    parser.add_argument("folder", nargs="?", default="runs", type=Path, help="default: runs")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    options = parser.parse_args(arguments)
    from gtrxl_jax.runs.directory import list_runs

    found = list_runs(options.folder)
    if options.json:
        print(json.dumps([dataclasses.asdict(run) for run in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "what", "state", "steps", "scores", "device", "updated", box=None)
    for run in found:
        age = datetime.timedelta(seconds=round(time.time() - run.updated))
        scores = "; ".join(f"{name} {score}" for name, score in run.scores.items())
        steps = f"{run.step:,} of {run.total:,}"
        row = run.folder, run.what, run.state, steps, scores, run.device, f"{age} ago"
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # so that a closed pipe is handled as everywhere


def _collect(arguments: Sequence[str]) -> None:
    from rich.console import Console

    from gtrxl_jax.collection import Collected, CollectionConfig, collect_dataset
    from gtrxl_jax.runs.logging.console import ConsoleWriter

    @dataclasses.dataclass(frozen=True)
    class Collect:
        config: Annotated[CollectionConfig, tyro.conf.arg(name="")]
        folder: tyro.conf.Positional[Path]
        """A new folder for the dataset."""
        modules: tuple[str, ...] = ()
        """Modules of custom parts of the run in --policy, to import first."""
        quiet: bool = False
        """Print only errors and the last line."""

    command = parse(
        Collect,
        arguments,
        prog="gtrxl collect",
        description="Collect complete episodes for offline training, as a Minari dataset.",
    )
    import_plugins([command.config.env.name, *(f"{name}:" for name in command.modules)])
    with ConsoleWriter(
        command.config.episodes,
        ("return", "success"),
        console=Console(stderr=True, quiet=command.quiet),
        unit="episode",
    ) as console:
        console.start(0)

        def show(so_far: Collected) -> None:
            scores = {"return": so_far.mean_return, "success": so_far.success}
            known = {name: value for name, value in scores.items() if value is not None}
            console.write(so_far.episodes, known)

        done = collect_dataset(command.config, command.folder, show)
    success = "" if done.success is None else f"success {number(done.success)}, "
    print(
        f"{success}return {number(done.mean_return)} | {done.episodes:,} episodes, {done.steps:,} "
        f"steps | {printable(str(command.folder))}"
    )


def _list(arguments: Sequence[str]) -> None:
    parser = Parser(prog="gtrxl list", description="List all valid names.")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    options = parser.parse_args(arguments)
    import gymnax

    import gtrxl_jax.envs.registry  # noqa: F401, registers the environments of the package
    from gtrxl_jax.envs.adapters.suites import missing_extra
    from gtrxl_jax.nn.core import CORES
    from gtrxl_jax.nn.cores import registry as cores
    from gtrxl_jax.nn.cores.gtrxl import GATES
    from gtrxl_jax.nn.encoders import ENCODERS
    from gtrxl_jax.nn.sequence import registry as models
    from gtrxl_jax.nn.sequence.model import MODELS
    from gtrxl_jax.nn.sequence.valves import VALVES
    from gtrxl_jax.offline import config as offline_config
    from gtrxl_jax.offline.algorithm import ALGORITHMS as OFFLINE_ALGORITHMS
    from gtrxl_jax.online import config as configs
    from gtrxl_jax.online.algorithm import ALGORITHMS

    names: dict[str, Any] = {
        "presets": list(configs.PRESETS),
        "offline presets": list(offline_config.PRESETS),
        "models": list(MODELS),
        "model presets": list(models.PRESETS),
        "valves": list(VALVES),
        "algorithms": list(ALGORITHMS),
        "offline algorithms": list(OFFLINE_ALGORITHMS),
        "cores": list(CORES),
        "gates": list(GATES),
        "core presets": {
            name: list(cores.PRESETS.get(kind, ["small"])) for name, kind in CORES.items()
        },
        "encoders": ["auto", *ENCODERS],
        "environments": sorted(gymnax.registered_envs),
    }
    if options.json:
        print(json.dumps(names, indent=2))
        return
    names["core presets"] = [
        f"{core} ({', '.join(presets)})" for core, presets in names["core presets"].items()
    ]
    names["environments"] = [
        f"{name} (needs the extra {extra})" if (extra := missing_extra(name)) else name
        for name in names["environments"]
    ]
    for kind, values in names.items():
        print(f"{kind}: {', '.join(values)}")
