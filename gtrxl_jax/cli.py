"""The command line: `gtrxl train`, `gtrxl evaluate`, `gtrxl collect`, `gtrxl list`."""

import argparse
import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from gtrxl_jax.names import require_name
from gtrxl_jax.training import config as configs


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent online with V-MPO."""

    config: Annotated[configs.OnlineConfig, tyro.conf.arg(name="")]
    folder: Path | None = None
    """Where the run goes; a new folder under runs/ if not given. If it holds a run of the same
    config, that run is taken up again where it was saved; a run of another config is refused."""
    tensorboard: bool = False
    """Write TensorBoard files, too (needs the extra "log")."""
    pictures: bool = True
    """Draw learning curve, attention and an episode at the end."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluate the trained agent of a run on fresh episodes."""

    folder: tyro.conf.Positional[Path]
    """The run."""
    episodes: int = 1024
    """Episodes for each seed of the run."""
    policy: str = ""
    """mode or sample; the run's own if not given."""
    seed: int = 1
    """Of the episodes."""
    best: bool = False
    """Take the best checkpoint, not the newest (of a run with --checkpoint.best)."""
    pictures: bool = False
    """Draw the pictures of the run again."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    What goes wrong gets one line on standard error. Exit codes: 0 done; 1 the run failed, since it
    diverged or could not be saved; 2 a mistake in what was asked for; 75 stopped by SIGTERM, 130 by
    SIGINT (Ctrl-C): the same command goes on with the run.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="gtrxl",
        description="Transformer memory for reinforcement learning agents.",
        epilog="gtrxl COMMAND --help says what a command takes. Exit codes: 0 done, 1 the run "
        "failed, 2 a mistake in the arguments, 75 stopped by SIGTERM and 130 by Ctrl-C: saved, and "
        "the same command goes on.",
    )
    commands = {"train": _train, "evaluate": _evaluate, "collect": _collect, "list": _list}
    parser.add_argument("command", choices=commands)
    chosen = parser.parse_args(arguments[:1])
    try:
        commands[chosen.command](arguments[1:])
    except (ValueError, TypeError, FileNotFoundError, ImportError, OSError) as error:
        if os.environ.get("GTRXL_TRACEBACK"):
            raise
        message = " ".join(str(error).split())
        print(f"gtrxl {chosen.command}: error: {message}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def parse_train(arguments: Sequence[str]) -> Train:
    """The training command that these arguments ask for.

    `--preset` chooses a whole run, `--core-preset` the size of the core; every other argument
    changes a field of what these give.

    Raises:
      ValueError: an unknown preset, or a config that cannot be.
    """
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--preset", default="default")
    chooser.add_argument("--core-preset")
    chooser.add_argument("--core.name", dest="core")
    chosen, rest = chooser.parse_known_args(arguments)
    base = configs.preset(chosen.preset)
    if chosen.core_preset:
        core = configs.core_config(chosen.core or base.core.name, chosen.core_preset)
        base = dataclasses.replace(base, core=core)
    elif chosen.core:
        base = dataclasses.replace(base, core=dataclasses.replace(base.core, name=chosen.core))
    # The environment's parameters are those of another environment if the name changes.
    params = base.env.params
    default = dataclasses.replace(base, env=dataclasses.replace(base.env, params={}))
    train = tyro.cli(
        Train,
        args=rest,
        default=Train(default),
        prog="gtrxl train",
        description=(
            "Train an agent online with V-MPO.\n\n"
            f"--preset {{{','.join(configs.PRESETS)}}} chooses a whole run, --core-preset "
            "{paper,thin,large,small,debug} the size of the core; what follows changes them."
        ),
    )
    env = train.config.env
    if env.name == base.env.name:
        env = dataclasses.replace(env, params={**params, **env.params})
    train = dataclasses.replace(train, config=dataclasses.replace(train.config, env=env))
    configs.validate(train.config)
    return train


def _train(arguments: Sequence[str]) -> None:
    command = parse_train(arguments)
    # Heavy imports wait until the arguments are known to be good.
    from gtrxl_jax.training import report, run
    from gtrxl_jax.training.checkpoint import SaveError
    from gtrxl_jax.training.divergence import DivergedError
    from gtrxl_jax.training.folder import require_same_run
    from gtrxl_jax.training.interruption import RunInterrupted
    from gtrxl_jax.training.metrics import MetricWriter, TensorBoardWriter
    from gtrxl_jax.training.online import OnlineTrainer
    from gtrxl_jax.training.progress import ConsoleWriter
    from gtrxl_jax.training.results import read_result

    config, folder = command.config, command.folder
    trainer = OnlineTrainer(config)
    trainer.mesh()
    if folder is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path("runs", f"{config.env.name}-{config.core.name}-{now}")
    require_same_run(folder, trainer.config_json)
    if finished := read_result(folder):
        print(f"finished already: {_scores(finished.evaluation)} | {folder}")
        return
    title = f"{config.core.name} on {config.env.name}, in {folder}"
    writers: list[MetricWriter] = [
        ConsoleWriter(trainer.num_visits * trainer.steps_per_visit, title=title)
    ]
    if command.tensorboard:
        writers += [TensorBoardWriter(folder)]
    try:
        trained = run.train(trainer, writers=writers, folder=folder)
    except RunInterrupted as stop:
        again = "the same command" if command.folder else f"the same with --folder {folder}"
        print(f"gtrxl train: {stop}: {again} goes on", file=sys.stderr)
        sys.exit(stop.exit_code)
    except (DivergedError, SaveError, OSError) as failure:
        if os.environ.get("GTRXL_TRACEBACK"):
            raise
        print(f"gtrxl train: error: {failure}", file=sys.stderr)
        sys.exit(1)
    result = trained.result
    for divergence in result.diverged:
        print(f"gtrxl train: {divergence}", file=sys.stderr)
    if len(result.diverged) == config.num_seeds:
        sys.exit(1)
    if command.pictures:
        paths = report.draw_curves(folder, config.core.name)
        paths += _draw_episodes(folder, trainer, trained.networks[0])
        print("pictures: " + ", ".join(map(str, paths)), file=sys.stderr)
    print(
        f"{_scores(result.evaluation)} | {result.steps:,} steps a seed in "
        f"{result.train_seconds:.0f} s after {result.compile_seconds:.0f} s of compilation, "
        f"{result.steps_per_second:,.0f} steps/s | {folder}"
    )


def _evaluate(arguments: Sequence[str]) -> None:
    command = tyro.cli(Evaluate, args=arguments, prog="gtrxl evaluate")
    if command.episodes < 1:
        raise ValueError(f"episodes must be at least 1, not {command.episodes}")
    from gtrxl_jax.training import loading, report
    from gtrxl_jax.training.evaluation import POLICIES

    policy = command.policy and require_name("policy", command.policy, POLICIES)
    scores, loaded = loading.evaluate(
        command.folder, command.episodes, policy, command.seed, best=command.best
    )
    if command.pictures:
        report.draw_curves(command.folder, loaded.trainer.config.core.name)
        _draw_episodes(command.folder, loaded.trainer, loaded.networks[0])
    print(
        f"{_scores(scores)} | {command.episodes} episodes for each of "
        f"{len(loaded.networks)} seed(s)"
    )


def _collect(arguments: Sequence[str]) -> None:
    from gtrxl_jax.training.collection import Collected, CollectionConfig, collect_dataset
    from gtrxl_jax.training.progress import ConsoleWriter

    @dataclasses.dataclass(frozen=True)
    class Collect:
        config: Annotated[CollectionConfig, tyro.conf.arg(name="")]
        folder: tyro.conf.Positional[Path]
        """Where the data set goes: a new folder, in Minari's format."""

    command = tyro.cli(
        Collect,
        args=arguments,
        prog="gtrxl collect",
        description="Collect whole episodes for offline training, as a Minari data set.",
    )
    with ConsoleWriter(command.config.episodes, ("return", "success"), unit="episode") as console:
        console.start(0)

        def show(so_far: Collected) -> None:
            scores = {"return": so_far.mean_return, "success": so_far.success}
            known = {name: value for name, value in scores.items() if value is not None}
            console.write(so_far.episodes, known)

        done = collect_dataset(command.config, command.folder, show)
    success = "" if done.success is None else f"success {done.success:.3f}, "
    print(
        f"{success}return {done.mean_return:.3f} | {done.episodes:,} episodes, {done.steps:,} "
        f"steps | {command.folder}"
    )


def _list(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="gtrxl list", description="Names that may be used.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    import gymnax

    from gtrxl_jax.nn import cores
    from gtrxl_jax.nn.gates import GATES

    names = {
        "presets": list(configs.PRESETS),
        "cores": list(cores.CORES),
        "gates": list(GATES),
        "core presets": sorted({*cores.TRANSFORMER_PRESETS, *cores.RECURRENT_PRESETS}),
        "environments": sorted(gymnax.registered_envs),
    }
    if options.json:
        print(json.dumps(names, indent=2))
    else:
        for kind, values in names.items():
            print(f"{kind}: {', '.join(values)}")


def _draw_episodes(folder: Path, trainer: Any, network: Any) -> list[Path]:
    """Pictures of an episode of each task."""
    from gtrxl_jax.training import report

    return report.draw_episodes(
        folder,
        trainer.agent,
        trainer.stream.tasks,
        network,
        trainer.config.evaluation.policy,
    )


def _scores(evaluation: dict[str, Any]) -> str:
    """`success 0.998 ± 0.004, return 0.97 ± 0.01`: means and 95 % intervals, of all tasks."""
    return ", ".join(
        f"{name} {evaluation[name][0]:.3f} ± {evaluation[name][1]:.3f}"
        for name in ("success", "return", "length")
        if name in evaluation
    )


if __name__ == "__main__":
    main()
