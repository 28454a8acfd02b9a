"""What the commands of the command line take, and how presets and changes to them are parsed."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gtrxl_jax.nn.sequence import registry as models
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.online import config as configs
from gtrxl_jax.validation import validate


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What every training command takes besides its config."""

    folder: Path | None = None
    """Where the run goes; a new folder under runs/ if not given. If it holds a run of the same
    config, that run is taken up again where it was saved; a run of another config is refused."""
    tensorboard: bool = False
    """Write TensorBoard files, too (needs the extra "log")."""
    pictures: bool = True
    """Draw what was learned at the end."""
    distributed: bool = False
    """This is one of several processes that train this run together, all started with the same
    command, --folder among it. TPU pods, SLURM, Open MPI and Kubernetes are recognised; elsewhere
    set JAX_COORDINATOR_ADDRESS (host:port of the first), JAX_NUM_PROCESSES and JAX_PROCESS_ID."""


@dataclasses.dataclass(frozen=True)
class Train(RunOptions):
    """Train an agent online with V-MPO."""

    config: Annotated[configs.OnlineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=configs.OnlineConfig
    )


@dataclasses.dataclass(frozen=True)
class TrainOffline(RunOptions):
    """Train models of trajectories, each in a folder of its own, and compare them."""

    config: Annotated[offline_config.OfflineConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=offline_config.OfflineConfig
    )
    baselines: tuple[str, ...] = ("dt",)
    """Models to train on the same data after the first, for comparison; none if empty."""


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


def parse_train(arguments: Sequence[str]) -> Train:
    """The training command that these arguments ask for.

    `--preset` chooses a whole run, `--core-preset` the size of the core; every other argument
    changes a field of what these give.

    Raises:
      ValueError: an unknown preset, or an invalid config.
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
        default=Train(config=default),
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
    _require_folder(train)
    validate(train.config)
    return train


def parse_train_offline(arguments: Sequence[str]) -> TrainOffline:
    """The offline training command that these arguments ask for.

    `--preset` chooses a whole run, `--model-preset` the size of the model; every other argument
    changes a field of what these give.

    Raises:
      ValueError: an unknown preset, or an invalid config.
    """
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--preset", default="default")
    chooser.add_argument("--model-preset")
    chosen, rest = chooser.parse_known_args(arguments)
    base = offline_config.preset(chosen.preset)
    if chosen.model_preset:
        model = models.model_config(base.model.name, chosen.model_preset)
        base = dataclasses.replace(base, model=model)
    command = tyro.cli(
        TrainOffline,
        args=rest,
        default=TrainOffline(config=base),
        prog="gtrxl train-offline",
        description=(
            "Train RATE, Decision Transformers or behaviour cloning on trajectories, and see how "
            "far they remember.\n\n"
            f"--preset {{{','.join(offline_config.PRESETS)}}} chooses a whole run, --model-preset "
            f"{{{','.join(models.PRESETS)}}} the size of the model; what follows "
            "changes them."
        ),
    )
    for name in (command.config.model.name, *command.baselines):
        model = dataclasses.replace(command.config.model, name=name)
        validate(dataclasses.replace(command.config, model=model))
    _require_folder(command)
    return command


def _require_folder(command: RunOptions) -> None:
    if command.distributed and command.folder is None:
        raise ValueError("distributed needs --folder, one on a disk that all processes share")
