"""The training commands: `gtrxl train`, `gtrxl train-offline` and `gtrxl repeat`."""

import contextlib
import dataclasses
import datetime
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gtrxl_jax.cli.parsing import fail, parse
from gtrxl_jax.files import printable
from gtrxl_jax.machine import CACHE

if TYPE_CHECKING:
    from gtrxl_jax.cli.arguments import RunOptions
    from gtrxl_jax.cli.resuming import OptionsWriter
    from gtrxl_jax.runs.preemption import RunInterrupted

_MUCH_BETTER = 0.1
"""Difference of successes from which a run says that its samples do better."""


def train(arguments: Sequence[str]) -> None:
    """Run `gtrxl train`."""
    from gtrxl_jax.cli.arguments import parse_train
    from gtrxl_jax.cli.resuming import Options, OptionsWriter

    command = parse_train(arguments)
    _report_cache_folder(command)
    # Slow imports, delayed until the arguments have been validated.
    from gtrxl_jax.online.host import make_trainer
    from gtrxl_jax.plots import report

    config = command.config
    trainer = make_trainer(config)
    with _folder(command, config.env.name, config.core.name) as folder:
        options = Options(command.log, command.plots)
        title = f"{config.core.name} on {config.env.name}"
        trained = _run(trainer, folder, command, title, OptionsWriter(folder, options))
    if trained is not None and command.plots and _is_first():
        with _report_plot_errors():
            paths = report.draw_curves(folder, config.core.name)
            params = trained.params_per_seed[0]
            paths += report.draw_episodes(folder, trainer.policy, trainer.tasks, params)
        _print_plots(command, paths)


def train_offline(arguments: Sequence[str]) -> None:
    """Run `gtrxl train-offline`."""
    from gtrxl_jax.cli.arguments import parse_train_offline, with_model
    from gtrxl_jax.cli.resuming import Options, OptionsWriter

    command = parse_train_offline(arguments)
    _report_cache_folder(command)
    from gtrxl_jax.offline.environments import trajectories_of
    from gtrxl_jax.offline.trainer import OfflineTrainer
    from gtrxl_jax.plots import report
    from gtrxl_jax.runs.params import initial_params
    from gtrxl_jax.runs.preemption import RunInterrupted

    config = command.config
    configs = {
        name: dataclasses.replace(
            with_model(config, name), init_from=_run_of_model(config.init_from, name)
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
        options = Options(command.log, command.plots, tuple(configs), config.init_from)
        kept = OptionsWriter(folder, options)
        for name, model_config in configs.items():
            trainer = OfflineTrainer(model_config, trajectories, generated=not config.data.path)
            trained = _run(trainer, folder / name, command, f"{name} on {config.subject}", kept)
            if trained is not None and command.plots and _is_first():
                params = trained.params_per_seed[0]
                with _report_plot_errors():
                    paths += report.draw_episodes(
                        folder / name, trainer.policy, trainer.tasks, params
                    )
            if trained is not None and trained.stopped_by and name != list(configs)[-1]:
                stop = RunInterrupted(trained.stopped_by, trained.result.steps, folder / name)
                _exit_stopped(stop, command, kept)
    if command.plots and _is_first():
        with _report_plot_errors():
            paths = report.draw_offline(folder, [folder / name for name in configs]) + paths
        _print_plots(command, paths)


def repeat(arguments: Sequence[str]) -> None:
    """Run `gtrxl repeat`."""
    from gtrxl_jax.cli.arguments import Repeat
    from gtrxl_jax.cli.resuming import command_of
    from gtrxl_jax.runs.addresses import local_folder

    if not arguments or arguments[0].startswith("-"):
        parse(Repeat, arguments, prog="gtrxl repeat")
        raise ValueError("the folder of the run comes first: gtrxl repeat RUN [OPTIONS]")
    run, *options = arguments
    command = {"train": train, "train-offline": train_offline}[command_of(local_folder(run))]
    command(["--from-config", run, *options])


@contextlib.contextmanager
def _report_plot_errors() -> Iterator[None]:
    """Exit with an error if a plot of a finished run cannot be written."""
    try:
        yield
    except OSError as failure:
        fail("gtrxl", f"the run is finished, but a plot cannot be written: {failure}", 1)


def _print_plots(command: "RunOptions", paths: list[Path]) -> None:
    if not command.quiet:
        print(printable("plots: " + ", ".join(map(str, paths))), file=sys.stderr)


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
    from gtrxl_jax.envs.faults import FaultError
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
        _exit_stopped(stop, command, options)
    except (DivergedError, FaultError, SaveError, OSError) as failure:
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
        fail("gtrxl", message, 1)
    result = trained.result
    _report_divergence(result, trainer)
    _print(
        f"{describe(result.evaluation)} | {result.steps:,} steps per seed in "
        f"{result.train_seconds:.0f} s after {result.compile_seconds:.0f} s of compilation, "
        f"{result.steps_per_second:,.0f} steps/s | {folder}"
    )
    if not command.quiet and _is_first():  # Only the first process has written metrics.
        _report_sampling_gap(result, trainer.config, folder)
    return trained


def _exit_stopped(
    stop: "RunInterrupted", command: "RunOptions", options: "OptionsWriter"
) -> NoReturn:
    """Say how to resume a run that a signal has stopped, and exit."""
    _print(f"gtrxl: {stop}: resume with {_resume_command(command, options)}", sys.stderr)
    sys.exit(stop.exit_code)


def _report_sampling_gap(result: Any, config: Any, folder: Path) -> None:
    """Print a line if samples succeeded much more often in training than likely actions do now."""
    import numpy as np

    from gtrxl_jax.formatting import format_number
    from gtrxl_jax.runs.logging.writers import read_metrics

    in_training = read_metrics(folder / "metrics.jsonl").get("episode/success")
    evaluated = result.evaluation.get("success")
    if config.evaluation.actions != "mode" or in_training is None or evaluated is None:
        return
    # Means over the seeds; not those of iterations in which no episode ended, or that diverged.
    rows = in_training.reshape(len(in_training), -1)
    rows = rows[np.isfinite(rows).any(axis=-1)]
    if not len(rows) or not np.isfinite(evaluated.per_seed).any():
        return
    of_samples = float(np.nanmean(rows[-1]))
    if of_samples > float(np.nanmean(evaluated.per_seed)) + _MUCH_BETTER:
        _print(
            f"in training, with sampled actions, success was {format_number(of_samples)}: the most "
            "likely actions can repeat themselves where samples do not; compare with gtrxl "
            f"evaluate {shlex.quote(str(folder))} --actions sample",
            sys.stderr,
        )


def _report_cache_folder(command: "RunOptions") -> None:
    """Print a line if the folder of compiled programs is new."""
    folder = os.environ.get(CACHE)
    if folder and not command.quiet and not Path(folder).exists():
        print(
            f"compiled programs are kept in {printable(folder)}, so that the next run starts "
            "sooner; JAX_ENABLE_COMPILATION_CACHE=false disables this",
            file=sys.stderr,
        )


def _resume_command(command: "RunOptions", options: "OptionsWriter") -> str:
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
