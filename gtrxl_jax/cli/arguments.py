"""The arguments of the commands, and the parsing of presets and overrides."""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from gtrxl_jax.cli.parsing import Chooser, parse
from gtrxl_jax.cli.resuming import Options, read_settings, require_comparison, without_records
from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.sequence import registry as models
from gtrxl_jax.nn.sequence.model import MODELS
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.algorithm import ALGORITHMS as OFFLINE_ALGORITHMS
from gtrxl_jax.online import config as configs
from gtrxl_jax.online.algorithm import ALGORITHMS
from gtrxl_jax.plugins import import_plugins, with_name
from gtrxl_jax.runs.addresses import local_folder
from gtrxl_jax.runs.directory import require_folder
from gtrxl_jax.runs.logging.loggers import require_loggers
from gtrxl_jax.validation import require_choice, validate


def _one_of(names: Iterable[str]) -> Any:
    """Mark an option as one of the names, for its help."""
    return tyro.conf.arg(metavar=f"{{{','.join(names)}}}")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of every training command, besides its config."""

    folder: Path | None = None
    """Folder of the run; by default a new folder under runs/. If it contains a run with the same
    config, that run is resumed from its last checkpoint; a run with another config is an error."""
    resume: Path | None = None
    """Folder of a run to resume with its own settings, in place of --folder. A larger number of
    steps extends it."""
    from_config: Path | None = None
    """Take the settings of a run, given its folder, or of a file such as its config.json, in place
    of --preset. Other options override them."""
    modules: tuple[str, ...] = ()
    """Modules of custom parts to import first, since --resume and --from-config import none."""
    log: tuple[str, ...] = ()
    """Further loggers, besides metrics.jsonl: csv, mlflow, tensorboard, trackio, wandb (all but the
    first require extras of these names), or your own, as my_module:MyWriter."""
    quiet: bool = False
    """Print only errors and the last line."""
    profile: Path | None = None
    """Folder for a trace of three iterations after compilation, by jax.profiler."""
    plots: bool = True
    """Plot the results at the end."""
    distributed: bool = False
    """Join the other processes that train this run. All must be started with the same command,
    including --folder. TPU pods, SLURM, Open MPI 4 and, with jax[k8s], Kubernetes Jobs are
    detected; elsewhere, set JAX_COORDINATOR_ADDRESS (host:port of the first process),
    JAX_NUM_PROCESSES and JAX_PROCESS_ID."""


@dataclasses.dataclass(frozen=True)
class Train(RunOptions):
    """Train an agent online."""

    preset: Annotated[str, _one_of(configs.PRESETS)] = "default"
    """A complete config, which the other options override."""
    core_preset: str = ""
    """Size of the core, which its other options override; gtrxl list has those of each core."""
    config: Annotated[configs.OnlineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=configs.OnlineConfig
    )


@dataclasses.dataclass(frozen=True)
class TrainOffline(RunOptions):
    """Train RATE, Decision Transformers or behavior cloning on trajectories, and compare them."""

    preset: Annotated[str, _one_of(offline_config.PRESETS)] = "default"
    """A complete config, which the other options override."""
    model_preset: Annotated[str, _one_of(models.PRESETS)] = ""
    """Size of the model, which its other options override."""
    config: Annotated[offline_config.OfflineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=offline_config.OfflineConfig
    )
    baselines: tuple[str, ...] = ("dt",)
    """Further models to train on the same data for comparison."""


@dataclasses.dataclass(frozen=True)
class Repeat(Train):
    """Train again with the settings of a run, of any kind, in a new folder.

    The options are those of its training command, and override the settings.
    """

    run: tyro.conf.Positional[Path] = dataclasses.field(kw_only=True)
    """The folder of the run, offline also that of several models, or a file as its config.json."""


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Options of `gtrxl plan`, besides those of the training command."""

    topology: str = ""
    """The devices: a kind of TPU (v2, v3, v4, v5e, v5p, v6e or tpu7x) and the number of chips along
    each axis, such as v5e:4x4 or v4:2x2x4; or h100 or a100 and how many, such as h100:8."""
    json: bool = False
    """Print as JSON."""


@dataclasses.dataclass(frozen=True)
class PlanTrain(Train, PlanOptions):
    """Compile the program of `gtrxl train` for devices that are not here, and run nothing.

    Prints the memory, communication and compilation of the program and, for TPUs, the compiler's
    estimates of its times. `gtrxl plan train-offline` does so for `gtrxl train-offline`.
    """


@dataclasses.dataclass(frozen=True)
class PlanTrainOffline(TrainOffline, PlanOptions):
    """Compile the program of `gtrxl train-offline` for devices that are not here; see `gtrxl plan`.

    Data are read or generated. Only --model is planned, without the baselines.
    """


def parse_train(
    arguments: Sequence[str], command: type[Train] = Train, prog: str = "gtrxl train"
) -> Train:
    """Parse the arguments of `gtrxl train`, or of another command with its options.

    `--preset`, `--from-config` or `--resume` selects a complete config and `--core-preset` the size
    of the core; every other argument overrides a field of these.

    Raises:
      ValueError: if a preset is unknown, an argument is a setting of another core or algorithm, or
        the config is invalid.
      FileNotFoundError: if there is no run to resume, or no config.
    """
    chooser = _chooser()
    chooser.add_argument("--core-preset", "--core_preset", default="")
    chooser.add_argument("--core.name", dest="core")
    chosen, rest = chooser.parse_known_args(arguments)
    for name in chosen.env if len(chosen.env) > 1 else ():
        rest += ["--env.tasks", "name", name]
    start, options = _start(chosen, "online", configs.preset)
    base = _in_env(start, chosen.env)
    if "--env.tasks" in rest:
        base = dataclasses.replace(base, env=dataclasses.replace(base.env, tasks=()))
    base = configs.with_parts(base, chosen.core, chosen.core_preset, chosen.algorithm)
    if "--sweep" in rest:  # replaces the preset's
        base = dataclasses.replace(base, sweep={})
    train = parse(
        command,
        rest,
        default=command(
            config=_without_entries(base),
            **_given(chosen, options),
            core_preset=chosen.core_preset,
        ),
        kinds={"core": (base.core, CORES), "algorithm": (base.algorithm, ALGORITHMS)},
        prog=prog,
    )
    train = dataclasses.replace(train, config=_with_entries(train.config, base, _emptied(rest)))
    _require_options(train)
    import_plugins(_parts(train.config) - _parts(start))
    validate(train.config)
    return train


def _parts(config: configs.OnlineConfig) -> set[str]:
    """Return the names of encoders and environments, whose modules a command line imports."""
    agent, members = config.agent, config.env.members
    return {agent.encoder, *agent.encoders.values(), *(name for name, _ in members)}


def parse_train_offline(
    arguments: Sequence[str],
    command: type[TrainOffline] = TrainOffline,
    prog: str = "gtrxl train-offline",
) -> TrainOffline:
    """Parse the arguments of `gtrxl train-offline`.

    `--model-preset` selects the size of the model. Raises as `parse_train` does.
    """
    chooser = _chooser()
    chooser.add_argument("--model-preset", "--model_preset", default="")
    chooser.add_argument("--model.name", dest="model")
    chosen, rest = chooser.parse_known_args(arguments)
    start, options = _start(chosen, "offline", offline_config.preset)
    base = _in_env(start, chosen.env)
    import_plugins(filter(None, (chosen.model, chosen.algorithm, *chosen.env)))
    model = with_name(base.model, chosen.model or base.model.name)
    if chosen.model_preset:
        model = models.model_config(model.name, chosen.model_preset)
    algorithm = with_name(base.algorithm, chosen.algorithm or base.algorithm.name)
    base = dataclasses.replace(base, model=model, algorithm=algorithm)
    known: dict[str, Any] = _given(chosen, options)
    if chosen.resume or chosen.from_config:
        known["baselines"] = options.models[1:]
    parsed = parse(
        command,
        rest,
        default=command(config=_without_entries(base), **known, model_preset=chosen.model_preset),
        kinds={"model": (model, MODELS), "algorithm": (algorithm, OFFLINE_ALGORITHMS)},
        prog=prog,
    )
    parsed = dataclasses.replace(parsed, config=_with_entries(parsed.config, base, _emptied(rest)))
    if base.env.name != start.env.name:
        parsed = dataclasses.replace(parsed, config=_of_one_length(parsed.config, rest))
    first = parsed.config.model
    own = {start.model.encoder, *start.model.encoders.values(), *options.models}
    import_plugins({first.encoder, *first.encoders.values(), *parsed.baselines} - own)
    for name in parsed.baselines:
        if ":" not in name:
            require_choice("model in baselines", name, MODELS)
    for name in (first.name, *parsed.baselines):
        validate(with_model(parsed.config, name))
    _require_options(parsed)
    if parsed.folder is not None:
        require_comparison(parsed.folder)
    return parsed


def with_model(config: offline_config.OfflineConfig, name: str) -> offline_config.OfflineConfig:
    """Return the config of a model of a comparison: of a baseline without memory, without noise."""
    model, evaluation = with_name(config.model, name), config.evaluation
    if name != config.model.name and not getattr(model, "memory_tokens", 0):
        evaluation = dataclasses.replace(evaluation, memory_noise=False)
    return dataclasses.replace(config, model=model, evaluation=evaluation)


def _chooser() -> Chooser:
    """Return the parser of the arguments that select the defaults of the others."""
    chooser = Chooser()
    start = chooser.add_mutually_exclusive_group()
    start.add_argument("--preset", default="default")
    start.add_argument("--from-config", "--from_config", type=Path)
    start.add_argument("--resume", type=Path)
    chooser.add_argument("--modules", nargs="*", default=[])
    chooser.add_argument("--algorithm.name", dest="algorithm")
    chooser.add_argument("--env.name", dest="env", nargs="+", default=[])
    return chooser


def _start(
    chosen: argparse.Namespace, kind: str, preset: Callable[[str], Any]
) -> tuple[Any, Options]:
    """Return the config that the arguments override, and the options of its command."""
    import_plugins(f"{name}:" for name in chosen.modules)
    source = chosen.resume
    if chosen.from_config is not None:
        source = local_folder(chosen.from_config)
    if source is None:
        return preset(chosen.preset), Options()
    config, options = read_settings(source, kind)
    if chosen.resume is None:
        return without_records(config), options
    if kind == "offline" and not options.models:
        raise ValueError(
            f"resume {source}: it has no options.json, as the folder of gtrxl train-offline has, "
            "which contains those of its models"
        )
    return config, options


def _given(chosen: argparse.Namespace, options: Options) -> dict[str, Any]:
    """Return the options of a command that are known before the others are parsed."""
    return {
        "preset": chosen.preset,
        "from_config": chosen.from_config,
        "resume": chosen.resume,
        "folder": chosen.resume,
        "modules": tuple(chosen.modules),
        "log": options.log,
        "plots": options.plots,
    }


def _in_env(config: Any, names: Sequence[str]) -> Any:
    """Switch to another environment, if one is named, without what belongs to the one before."""
    env = config.env
    if not names:
        return config
    changes: dict[str, Any] = {"tasks": ()} if hasattr(env, "tasks") else {}
    if names[0] != env.name:
        changes |= {"name": names[0], "params": {}, "wrappers": {}}
    return dataclasses.replace(config, env=dataclasses.replace(env, **changes))


def _of_one_length(config: Any, arguments: Sequence[str]) -> Any:
    """Return a config without lengths and a curriculum that were not given, but for another task.

    They remain if the environment has variable length.
    """
    from gtrxl_jax.offline.environments import has_lengths

    if has_lengths(config):
        return config
    given = {argument.partition("=")[0] for argument in arguments}
    if "--evaluation.lengths" not in given:
        evaluation = dataclasses.replace(config.evaluation, lengths=())
        config = dataclasses.replace(config, evaluation=evaluation)
    if not given & {"--curriculum", "--no-curriculum"}:
        config = dataclasses.replace(config, curriculum=False)
    return config


def _without_entries(config: Any) -> Any:
    """Return a config with its dicts empty, since tyro would make an option of each entry."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changed = {
        name: {} if isinstance(value, dict) else _without_entries(value)
        for name, value in values.items()
        if isinstance(value, dict) or dataclasses.is_dataclass(value)
    }
    return dataclasses.replace(config, **changed)


def _emptied(arguments: Sequence[str]) -> set[str]:
    """Return the names of the options without a value, as fields are written: env.wrappers."""
    pairs = itertools.pairwise((*arguments, "--"))
    return {a[2:].replace("-", "_") for a, b in pairs if a.startswith("--") and b.startswith("--")}


def _with_entries(config: Any, base: Any, emptied: set[str], prefix: str = "") -> Any:
    """Return a config with the entries of the dicts of `base` that its own lack.

    Those that were emptied keep none.
    """
    changed = {}
    for field in dataclasses.fields(config):
        value, before = getattr(config, field.name), getattr(base, field.name)
        name = prefix + field.name
        if isinstance(value, dict):
            changed[field.name] = value if name in emptied else before | value
        elif dataclasses.is_dataclass(value):
            changed[field.name] = _with_entries(value, before, emptied, f"{name}.")
    return dataclasses.replace(config, **changed)


def parse_plan(arguments: Sequence[str]) -> PlanTrain | PlanTrainOffline:
    """Parse the arguments of `gtrxl plan`: those of `gtrxl train`, whose name may come first.

    After the name `train-offline`, they are those of `gtrxl train-offline`.

    Raises:
      ValueError: if an argument is invalid, see `parse_train`.
    """
    name, *rest = arguments or ("",)
    if name == "train-offline":
        offline = parse_train_offline(rest, PlanTrainOffline, "gtrxl plan train-offline")
        assert isinstance(offline, PlanTrainOffline)
        return offline
    online = parse_train(rest if name == "train" else arguments, PlanTrain, "gtrxl plan")
    assert isinstance(online, PlanTrain)
    return online


def _require_options(command: RunOptions) -> None:
    if command.resume not in (None, command.folder):
        raise ValueError(f"resume {command.resume} is the folder of the run: omit --folder")
    require_loggers(command.log)
    if command.distributed and command.folder is None:
        raise ValueError("distributed needs --folder, on a disk that all processes share")
    if command.folder == Path():
        raise ValueError("folder must be a new folder or one with a run, not the current one")
    if command.folder is not None:
        require_folder(command.folder)
    if command.profile is not None:
        require_folder(command.profile, "profile")
