"""The arguments of the commands, and the parsing of presets and overrides."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gtrxl_jax.cli.parsing import Chooser, parse
from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.cores.registry import PRESETS
from gtrxl_jax.nn.sequence import registry as models
from gtrxl_jax.nn.sequence.model import MODELS
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.algorithm import ALGORITHMS as OFFLINE_ALGORITHMS
from gtrxl_jax.online import config as configs
from gtrxl_jax.online.algorithm import ALGORITHMS
from gtrxl_jax.plugins import import_plugins, with_name
from gtrxl_jax.runs.directory import require_folder
from gtrxl_jax.runs.logging.loggers import require_loggers
from gtrxl_jax.validation import validate


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of every training command, besides its config."""

    folder: Path | None = None
    """Folder of the run; by default a new folder under runs/. If it contains a run with the same
    config, that run is resumed from its last checkpoint; a run with another config is an error."""
    log: tuple[str, ...] = ()
    """Further loggers, besides metrics.jsonl: csv, tensorboard, trackio, wandb (the last three
    require extras of these names), or your own, as my_module:MyWriter."""
    quiet: bool = False
    """Print only errors and the last line."""
    profile: Path | None = None
    """Folder for a trace of three iterations after compilation, by jax.profiler."""
    pictures: bool = True
    """Plot the results at the end."""
    distributed: bool = False
    """Join the other processes that train this run. All must be started with the same command,
    including --folder. TPU pods, SLURM, Open MPI and Kubernetes are detected; elsewhere, set
    JAX_COORDINATOR_ADDRESS (host:port of the first process), JAX_NUM_PROCESSES and
    JAX_PROCESS_ID."""


@dataclasses.dataclass(frozen=True)
class Train(RunOptions):
    """Train an agent online."""

    config: Annotated[configs.OnlineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=configs.OnlineConfig
    )


@dataclasses.dataclass(frozen=True)
class TrainOffline(RunOptions):
    """Train RATE, Decision Transformers or behavior cloning on trajectories, and compare them."""

    config: Annotated[offline_config.OfflineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=offline_config.OfflineConfig
    )
    baselines: tuple[str, ...] = ("dt",)
    """Further models to train on the same data for comparison."""


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

    `--preset` selects a complete config and `--core-preset` the size of the core; every other
    argument overrides a field of these.

    Raises:
      ValueError: if a preset is unknown, an argument is a setting of another core or algorithm, or
        the config is invalid.
    """
    chooser = Chooser()
    chooser.add_argument("--preset", default="default")
    chooser.add_argument("--core-preset")
    chooser.add_argument("--core.name", dest="core")
    chooser.add_argument("--algorithm.name", dest="algorithm")
    chooser.add_argument("--env.name", dest="environments", nargs="+", default=[])
    chosen, rest = chooser.parse_known_args(arguments)
    rest += ["--env.name", *chosen.environments[:1]] if chosen.environments else []
    for name in chosen.environments if len(chosen.environments) > 1 else ():
        rest += ["--env.tasks", "name", name]
    base = configs.with_parts(
        configs.preset(chosen.preset), chosen.core, chosen.core_preset, chosen.algorithm
    )
    if "--sweep" in rest:  # replaces the preset's
        base = dataclasses.replace(base, sweep={})
    # The preset's environment parameters apply only if the environment is not changed.
    params = base.env.params
    sizes = ",".join(PRESETS.get(type(base.core), ("small",)))
    default = dataclasses.replace(base, env=dataclasses.replace(base.env, params={}))
    train = parse(
        command,
        rest,
        default=command(config=default),
        kinds={"core": (base.core, CORES), "algorithm": (base.algorithm, ALGORITHMS)},
        prog=prog,
        description=(
            f"{inspect.getdoc(command)}\n\n"
            f"--preset {{{','.join(configs.PRESETS)}}} selects a complete config, --core-preset "
            f"{{{sizes}}} the size of the core; the options below override them."
        ),
    )
    env = train.config.env
    if env.name == base.env.name:
        env = dataclasses.replace(env, params={**params, **env.params})
    train = dataclasses.replace(train, config=dataclasses.replace(train.config, env=env))
    _require_options(train)
    agent = train.config.agent
    import_plugins((agent.encoder, *agent.encoders.values()))
    validate(train.config)
    import_plugins(name for name, _ in train.config.env.members)
    return train


def parse_train_offline(
    arguments: Sequence[str],
    command: type[TrainOffline] = TrainOffline,
    prog: str = "gtrxl train-offline",
) -> TrainOffline:
    """Parse the arguments of `gtrxl train-offline`, as `parse_train` does; see there for errors.

    `--model-preset` selects the size of the model.
    """
    chooser = Chooser()
    chooser.add_argument("--preset", default="default")
    chooser.add_argument("--model-preset")
    chooser.add_argument("--model.name", dest="model")
    chooser.add_argument("--algorithm.name", dest="algorithm")
    chooser.add_argument("--env.name", dest="env")
    chosen, rest = chooser.parse_known_args(arguments)
    base = offline_config.preset(chosen.preset)
    # The preset's environment parameters apply only if the environment is not changed.
    params = base.env.params if chosen.env in (None, base.env.name) else {}
    env = dataclasses.replace(base.env, params={})
    if chosen.env is not None:
        env = dataclasses.replace(env, name=chosen.env)
    base = dataclasses.replace(base, env=env)
    if chosen.env == "":
        # The presets' lengths and curriculum belong to an environment.
        evaluation = dataclasses.replace(base.evaluation, lengths=())
        base = dataclasses.replace(base, evaluation=evaluation, curriculum=False)
    import_plugins(filter(None, (chosen.model, chosen.algorithm, chosen.env)))
    model = with_name(base.model, chosen.model or base.model.name)
    if chosen.model_preset:
        model = models.model_config(model.name, chosen.model_preset)
    algorithm = with_name(base.algorithm, chosen.algorithm or base.algorithm.name)
    base = dataclasses.replace(base, model=model, algorithm=algorithm)
    parsed = parse(
        command,
        rest,
        default=command(config=base),
        kinds={"model": (model, MODELS), "algorithm": (algorithm, OFFLINE_ALGORITHMS)},
        prog=prog,
        description=(
            f"{inspect.getdoc(command)}\n\n"
            f"--preset {{{','.join(offline_config.PRESETS)}}} selects a complete config, "
            f"--model-preset {{{','.join(models.PRESETS)}}} the size of the model; the options "
            "below override them."
        ),
    )
    config = parsed.config
    env = dataclasses.replace(config.env, params={**params, **config.env.params})
    parsed = dataclasses.replace(parsed, config=dataclasses.replace(config, env=env))
    first = parsed.config.model
    import_plugins((first.encoder, *first.encoders.values(), *parsed.baselines))
    for name in (first.name, *parsed.baselines):
        model = with_name(first, name)
        validate(dataclasses.replace(parsed.config, model=model))
    _require_options(parsed)
    return parsed


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
    require_loggers(command.log)
    if command.distributed and command.folder is None:
        raise ValueError("distributed needs --folder, on a disk that all processes share")
    if command.folder == Path():
        raise ValueError("folder must be a new folder or one with a run, not the current one")
    if command.folder is not None:
        require_folder(command.folder)
    if command.profile is not None:
        require_folder(command.profile, "profile")
