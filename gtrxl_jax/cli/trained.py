"""The commands on trained runs: `gtrxl evaluate`, `play` and `export`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.files import printable
from gtrxl_jax.plugins import import_plugins
from gtrxl_jax.validation import check_choice, number, validate


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """Options of every command on a trained run."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run, or of an exported one."""
    best: bool = False
    """Use the best checkpoint instead of the newest, for a run with --checkpoint.best."""
    modules: tuple[str, ...] = ()
    """Modules of custom parts to import first, since loading a run folder imports none."""

    def import_modules(self) -> None:
        """Import the modules."""
        import_plugins(f"{name}:" for name in self.modules)


@dataclasses.dataclass(frozen=True)
class Evaluate(TrainedRun):
    """Evaluate the trained agent of a run on fresh episodes.

    The scores are printed, and appended to evaluations.jsonl in the folder of the run.
    """

    episodes: int = 1024
    """Number of episodes for each seed of the run."""
    policy: str = ""
    """How actions are chosen: mode or sample; by default as in the run's own evaluations."""
    seed: int = number(1, at_least=0)
    """Seed of the episodes."""
    pictures: bool = False
    """Redraw the plots of the run."""


@dataclasses.dataclass(frozen=True)
class Play(TrainedRun):
    """Play episodes with the trained agent of a run, and write them as a GIF.

    A run with several tasks gets a GIF for each, and its name ends in _task_0, _task_1, ...
    """

    episodes: int = 1
    """Number of episodes, one after another in the GIF."""
    to: Path | None = None
    """The GIF file; by default play.gif in the folder of the run."""
    policy: str = ""
    """How actions are chosen: mode or sample; by default as in the run's own evaluations."""
    seed: int = number(0, at_least=0)
    """Seed of the episodes."""


@dataclasses.dataclass(frozen=True)
class Export(TrainedRun):
    """Export the trained agent of a run to a new folder, without the rest of the run.

    The folder has the parameters (params.safetensors), config.json and the model card; it can be
    loaded, evaluated and played as a run. Requires the extra "export".
    """

    to: Path = Path()
    """The new folder."""
    seed: int | None = None
    """Which of several seeds to export, as numbered in the run; the first by default."""
    stablehlo: bool = False
    """Also write step.stablehlo, one acting step with its parameters, which runs on JAX alone."""


def evaluate(arguments: Sequence[str]) -> None:
    """Run `gtrxl evaluate`."""
    command = parse(Evaluate, arguments, prog="gtrxl evaluate")
    validate(command)
    from gtrxl_jax import loading
    from gtrxl_jax.offline.config import OfflineConfig
    from gtrxl_jax.plots import report
    from gtrxl_jax.runs.scores import describe

    command.import_modules()
    scores, loaded = loading.evaluate(
        command.folder,
        command.episodes,
        _known_policy(command.policy),
        command.seed,
        best=command.best,
    )
    if command.pictures:
        if isinstance(loaded.config, OfflineConfig):
            report.draw_offline(command.folder.parent, [command.folder.name])
        else:
            report.draw_curves(command.folder, loaded.config.core.name)
        trainer = loaded.trainer
        report.draw_episodes(command.folder, trainer.policy, trainer.tasks, loaded.params)
    line = (
        f"{describe(scores)} | {command.episodes} episodes for each of "
        f"{len(loaded.params_per_seed)} seed(s)"
    )
    try:
        kept = loading.keep_evaluation(
            command.folder, scores, loaded, command.seed, best=command.best
        )
        print(printable(f"{line} | {kept}"))
    except OSError as failure:
        print(line)
        print(printable(f"gtrxl evaluate: the scores are not kept: {failure}"), file=sys.stderr)


def play(arguments: Sequence[str]) -> None:
    """Run `gtrxl play`."""
    command = parse(Play, arguments, prog="gtrxl play")
    validate(command)
    path = command.to or command.folder / "play.gif"
    if path.suffix != ".gif":
        raise ValueError(f"to must be the name of a GIF file, {path}.gif, not {path}")
    policy = _known_policy(command.policy)
    from gtrxl_jax.acting.evaluation import record_episodes
    from gtrxl_jax.envs.knowledge import require_picture
    from gtrxl_jax.loading import load, with_evaluation
    from gtrxl_jax.plots.report import draw_gif, of_task

    command.import_modules()
    loaded = load(command.folder, best=command.best)
    if policy:
        loaded = with_evaluation(loaded, policy=policy)
    trainer = loaded.trainer
    if not trainer.tasks:
        raise ValueError(
            f"{command.folder} was trained without an environment: play its episodes yourself with "
            "gtrxl_jax.load"
        )
    for stream in trainer.tasks:
        require_picture(stream.env)
    for task, stream in enumerate(trainer.tasks):
        episodes = record_episodes(
            trainer.policy, stream, loaded.params, command.seed, command.episodes
        )
        drawn = of_task(path, task, len(trainer.tasks))
        draw_gif(stream, episodes, drawn)
        successes = [episode.success for episode in episodes if episode.success is not None]
        success = f"success {sum(successes)} of {len(successes)}; " if successes else ""
        returns = ", ".join(f"{sum(episode.timesteps.reward):.3g}" for episode in episodes)
        print(printable(f"{success}return {returns} | {drawn}"))


def export(arguments: Sequence[str]) -> None:
    """Run `gtrxl export`."""
    command = parse(Export, arguments, prog="gtrxl export")
    if command.to == Path():
        raise ValueError("to must be a new folder: set --to")
    from gtrxl_jax.exporting import export

    command.import_modules()
    export(
        command.folder,
        command.to,
        seed=command.seed,
        best=command.best,
        stablehlo=command.stablehlo,
    )
    for path in sorted(command.to.iterdir()):
        print(printable(f"{path.stat().st_size / 1e6:8.3f} MB  {path}"))


def _known_policy(name: str) -> str:
    from gtrxl_jax.ops.distributions import POLICIES

    return name and check_choice("policy", name, POLICIES)
