"""The commands on trained runs: `gtrxl evaluate`, `play`, `inspect`, `export` and `push`."""

import dataclasses
import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.files import printable
from gtrxl_jax.formatting import format_number
from gtrxl_jax.plugins import import_plugins
from gtrxl_jax.validation import number, require_choice, validate


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """Options of every command on a trained run."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run, or of an exported one; or hf://OWNER/NAME, which is downloaded; or
    bundled://NAME, one that gtrxl list shows."""
    best: bool = False
    """Use the best checkpoint instead of the newest, for a run with --checkpoint.best."""
    modules: tuple[str, ...] = ()
    """Modules of custom parts to import first, since loading a run folder imports none."""

    def import_modules(self) -> None:
        """Import the modules."""
        import_plugins(f"{name}:" for name in self.modules)

    @functools.cached_property
    def run(self) -> Path:
        """The folder of the run, on this machine."""
        from gtrxl_jax.runs.addresses import local_folder

        return local_folder(self.folder)

    def beside(self, name: str) -> Path:
        """Return the default path of a file that the command writes."""
        from gtrxl_jax.runs.addresses import is_address

        return Path(name) if is_address(self.folder) else self.folder / name


@dataclasses.dataclass(frozen=True)
class Env:
    """The environment, if it is another one than in the run."""

    name: str = ""
    """Name of an environment with the same observations and actions."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Environment parameters as name value pairs; the rest are as in the run."""


@dataclasses.dataclass(frozen=True)
class Core:
    """The core, if it is not as in the run."""

    memory_size: int | None = number(None, at_least=0)
    """Number of memories, for cores whose parameters do not depend on it."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of offline runs, if it is not as in the run."""

    target_return: float | None = number(None, at_least=-math.inf)
    """Return on which the model is conditioned."""


@dataclasses.dataclass(frozen=True)
class ActingRun(TrainedRun):
    """Options of the commands in which the agent of a run acts."""

    env: Env = dataclasses.field(default_factory=Env)
    core: Core = dataclasses.field(default_factory=Core)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `loading.with_settings`."""
        return {
            "env": self.env.name,
            "params": self.env.params,
            "memory_size": self.core.memory_size,
            "target_return": self.evaluation.target_return,
        }

    def import_modules(self) -> None:
        super().import_modules()
        import_plugins([self.env.name])

    def describe(self, environment: str) -> str:
        """Return the given settings, behind a bar; empty if all are as in the run."""
        given = [f"in {environment}"] if self.env.name or self.env.params else []
        given += [f"{name} {value}" for name, value in self.env.params.items()]
        given += [
            f"{name} {value:g}"
            for name in ("memory_size", "target_return")
            if (value := self.settings[name]) is not None
        ]
        return f" | {', '.join(given)}" if given else ""


@dataclasses.dataclass(frozen=True)
class Evaluate(ActingRun):
    """Evaluate the trained agent of a run on fresh episodes.

    The scores are printed, and appended to evaluations.jsonl in the folder of the run.
    """

    episodes: int = 1024
    """Number of episodes for each seed of the run."""
    actions: str = ""
    """How actions are chosen: mode or sample; by default as in the run's own evaluations."""
    seed: int = number(1, at_least=0)
    """Seed of the episodes."""
    forget: int = number(0, at_least=0)
    """Make an online agent forget everything after each so many steps of an episode, to see what
    its memory is for: if the scores stay, nothing older counts. 0: never."""
    plots: bool = False
    """Redraw the plots of the run."""

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"forget": self.forget}

    def describe(self, environment: str) -> str:
        given = super().describe(environment)
        if not self.forget:
            return given
        return f"{given + ', ' if given else ' | '}forgetting after {self.forget} steps"


@dataclasses.dataclass(frozen=True)
class Play(ActingRun):
    """Play episodes with the trained agent of a run, and write them as a GIF or an MP4.

    A run with several tasks gets a file for each, and its name ends in _task_0, _task_1, ... Of an
    episode of more than 1,000 steps, these are shown, and a line says so.
    """

    episodes: int = 1
    """Number of episodes, one after another in the file."""
    to: Path | None = None
    """The file, in .gif, or in .mp4, which requires the extra "hub"; by default play.gif in the
    folder of the run, or here for an address."""
    actions: str = ""
    """How actions are chosen: mode or sample; by default as in the run's own evaluations."""
    seed: int = number(0, at_least=0)
    """Seed of the episodes."""


@dataclasses.dataclass(frozen=True)
class Inspect(ActingRun):
    """Look into the memory of a run's agent, and of others beside it, in an episode of one seed.

    The page has the episode's frames; the attention of each layer and head at each step to the
    past; how much each past step counts for the action, for any core; the gates, the value and the
    return; what memory tokens hold. It is one HTML file, which loads nothing from elsewhere.
    """

    others: tyro.conf.Positional[tuple[Path, ...]] = ()
    """The folders of further runs."""
    to: Path | None = None
    """The file; by default inspect.html in the folder of the first run, or here for an address.
    With a name in .gif, an animation of a single run with attention instead."""
    actions: str = ""
    """How actions are chosen: mode or sample; by default as in the run's own evaluations."""
    seed: int = number(0, at_least=0)
    """Seed of the episode."""
    episode_steps: int = 400
    """The most steps that are shown; the rest of a longer episode is left out."""
    task: int = number(0, at_least=0)
    """Which task of a run with several."""


@dataclasses.dataclass(frozen=True)
class Export(TrainedRun):
    """Export the trained agent of a run to a new folder, without the rest of the run.

    The folder has the parameters (params.safetensors), config.json and the model card; it can be
    loaded, evaluated and played as a run.
    """

    to: Path = Path()
    """The new folder."""
    seed: int | None = None
    """Which of several seeds to export, as numbered in the run; the first by default."""
    stablehlo: bool = False
    """Also write step.stablehlo, one acting step with its parameters, which runs on JAX alone;
    requires the extra "export"."""


@dataclasses.dataclass(frozen=True)
class Push(TrainedRun):
    """Upload the trained agent of a run to the Hugging Face hub, for others to load.

    The repository gets the parameters (params.safetensors), config.json, the model card and a
    replay, if the environment can be drawn. Requires the extra "hub", and a token.
    """

    repository: tyro.conf.Positional[str] = ""
    """OWNER/NAME, created if missing."""
    seed: int | None = None
    """Which of several seeds to upload, as numbered in the run; the first by default."""
    private: bool = False
    """Make a new repository private."""


def evaluate(arguments: Sequence[str]) -> None:
    """Run `gtrxl evaluate`."""
    command = parse(Evaluate, arguments, prog="gtrxl evaluate")
    validate(command)
    if command.plots and command.describe(""):
        raise ValueError("plots are of the run's own settings: omit it for others")
    from gtrxl_jax import loading
    from gtrxl_jax.offline.config import OfflineConfig
    from gtrxl_jax.plots import report
    from gtrxl_jax.runs.addresses import is_address
    from gtrxl_jax.runs.directory import is_export, status_of
    from gtrxl_jax.runs.results import describe

    if command.plots and is_export(command.run):
        raise ValueError("plots are of the metrics of a run, which an export lacks: omit it")
    command.import_modules()
    scores, loaded = loading.evaluate(
        command.run,
        command.episodes,
        _known_selection(command.actions),
        command.seed,
        best=command.best,
        **command.settings,
    )
    changed = command.describe(loaded.environment[0])
    if command.plots:
        if isinstance(loaded.config, OfflineConfig):
            # Its own figures: those in the folder above compare all models.
            report.draw_offline(command.run, [command.run.resolve()])  # "." has no name
        else:
            report.draw_curves(command.run, loaded.config.core.name)
        report.draw_episodes(command.run, loaded.policy, loaded.tasks, loaded.params)
    line = (
        f"{describe(scores)}{changed} | {command.episodes} episodes for each of "
        f"{len(loaded.params_per_seed)} seed(s) | step {loaded.step:,}"
    )
    if not is_export(command.run):
        status = status_of(command.run)
        if status.result is None:
            line += f" of a run that is {status}"
    if is_address(command.folder):
        print(line)
        return
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
    path = command.to or command.beside("play.gif")
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"to must be the name of a GIF or an MP4 file, as play.gif, not {path}")
    actions = _known_selection(command.actions)
    from gtrxl_jax.acting.evaluation import MAX_FRAMES, record_episodes
    from gtrxl_jax.envs.extensions import require_renderer
    from gtrxl_jax.plots.report import draw_animation, task_path

    command.import_modules()
    loaded = _load(command.run, command, actions)
    for stream in loaded.tasks:
        require_renderer(stream.env)
    for task, stream in enumerate(loaded.tasks):
        episodes = record_episodes(
            loaded.policy, stream, loaded.params, command.seed, command.episodes
        )
        drawn = task_path(path, task, len(loaded.tasks))
        draw_animation(stream, episodes, drawn)
        successes = [episode.success for episode in episodes if episode.success is not None]
        success = f"success {sum(successes):g} of {len(successes)}; " if successes else ""
        sums = [float(episode.timesteps.reward.sum()) for episode in episodes]
        returns = ", ".join(map(format_number, sums))
        print(printable(f"{success}return {returns} | {drawn}"))
        for count, episode in enumerate(episodes, 1):
            if (steps := len(episode.timesteps.first)) > MAX_FRAMES:
                print(f"episode {count}: the first {MAX_FRAMES:,} of {steps:,} steps are shown")


def inspect(arguments: Sequence[str]) -> None:
    """Run `gtrxl inspect`."""
    command = parse(Inspect, arguments, prog="gtrxl inspect")
    validate(command)
    folders = [command.folder, *command.others]
    path = command.to or command.beside("inspect.html")
    if path.suffix not in (".html", ".gif"):
        raise ValueError(
            f"to must be the name of an HTML or a GIF file, as inspect.html, not {path}"
        )
    if path.suffix == ".gif" and command.others:
        raise ValueError("a GIF shows a single run: name one, or set --to to a name in .html")
    actions = _known_selection(command.actions)
    from gtrxl_jax.inspection.animation import save_memory_gif
    from gtrxl_jax.inspection.episode import inspect_episode
    from gtrxl_jax.inspection.page import save_page
    from gtrxl_jax.runs.addresses import is_address

    command.import_modules()
    runs = [_load(folder, command, actions) for folder in folders]
    episodes = [
        inspect_episode(run, command.seed, command.episode_steps, command.task) for run in runs
    ]
    if path.suffix == ".gif":
        save_memory_gif(episodes[0], path)
    else:
        names = [folder.name if is_address(folder) else folder.resolve().name for folder in folders]
        save_page(episodes, path, names)
    for episode in episodes:
        success = "" if episode.success is None else f"success {episode.success:g}; "
        print(printable(f"{success}return {format_number(episode.episode_return)} | {path}"))


def export(arguments: Sequence[str]) -> None:
    """Run `gtrxl export`."""
    command = parse(Export, arguments, prog="gtrxl export")
    if command.to == Path():
        raise ValueError("to must be a new folder: set --to")
    from gtrxl_jax.exporting import export

    command.import_modules()
    export(
        command.run,
        command.to,
        seed=command.seed,
        best=command.best,
        stablehlo=command.stablehlo,
    )
    for path in sorted(command.to.iterdir()):
        print(printable(f"{path.stat().st_size / 1e6:8.3f} MB  {path}"))


def push(arguments: Sequence[str]) -> None:
    """Run `gtrxl push`."""
    command = parse(Push, arguments, prog="gtrxl push")
    from gtrxl_jax.exporting import push

    command.import_modules()
    commit = push(
        command.run,
        command.repository,
        seed=command.seed,
        best=command.best,
        private=command.private,
    )
    print(printable(f"gtrxl play hf://{command.repository} | {commit}"))


def _load(folder: Path, command: ActingRun, actions: str) -> Any:
    """Load a run with the settings of a command, to play episodes."""
    from gtrxl_jax.loading import load, with_evaluation, with_settings

    loaded = with_settings(load(folder, best=command.best), **command.settings)
    if actions:
        loaded = with_evaluation(loaded, actions=actions)
    if not loaded.tasks:
        raise ValueError(
            f"{folder} was trained without an environment: name one with --env.name, or play its "
            "episodes yourself with gtrxl_jax.load"
        )
    return loaded


def _known_selection(name: str) -> str:
    from gtrxl_jax.ops.distributions import SELECTIONS

    return name and require_choice("actions", name, SELECTIONS)
