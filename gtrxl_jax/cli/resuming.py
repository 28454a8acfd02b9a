"""The settings of an earlier run, or of a file, as those that the options of a command override."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from gtrxl_jax.files import write_text
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.online import config as online_config
from gtrxl_jax.runs.config import from_fields, parse_json, run_kind
from gtrxl_jax.runs.directory import (
    parse_config,
    read_config,
    read_config_text,
    require_version_of,
)
from gtrxl_jax.runs.logging.loggers import LOGGERS
from gtrxl_jax.runs.logging.writers import Metrics, MetricWriter
from gtrxl_jax.validation import require_choice

COMMANDS = {"online": "train", "offline": "train-offline"}
"""The training command of each kind of run."""
_FROM_JSON = {"online": online_config.from_json, "offline": offline_config.from_json}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a training command that its config lacks, in options.json of its folder."""

    log: tuple[str, ...] = ()
    """Further loggers."""
    plots: bool = True
    """Whether results are plotted."""
    models: tuple[str, ...] = ()
    """Offline, the models that are trained, each in a folder of its own; the first has the config
    that the others derive theirs from."""
    init_from: str = ""
    """Offline, the run or the comparison whose parameters they start from."""


class OptionsWriter(MetricWriter):
    """Writes options.json when a run starts, and no metrics.

    Args:
      folder: the folder of the command.
      options: its options.
    """

    def __init__(self, folder: Path, options: Options):
        self.folder, self._options = folder, options

    @property
    def command(self) -> str:
        """The training command."""
        return COMMANDS["offline" if self._options.models else "online"]

    def start(self, step: int) -> None:
        write_text(_path(self.folder), json.dumps(dataclasses.asdict(self._options)) + "\n")

    def write(self, step: Any, metrics: Metrics) -> None:
        pass


def read_settings(source: Path, kind: str) -> tuple[Any, Options]:
    """Return the config of a run, or of a file, and the other options of the command.

    No module is imported.

    Args:
      source: the folder of a training command or of a run, or a file as its config.json.
      kind: "online" or "offline", the kind of run that it must be of.

    Raises:
      FileNotFoundError: if there is no config.
      ValueError: if it is of another kind or version, or has an unknown or invalid field, or if the
        module of a custom part has not been imported.
    """
    options = _read_options(source)
    place, text, fields = _read_config(source, options)
    if (there := run_kind(fields)) != kind and there in COMMANDS:
        raise ValueError(f"{source} is of an {there} run: use gtrxl {COMMANDS[there]}")
    require_version_of(fields, place)
    for name in options.log:
        LOGGERS.find(name)
    try:
        config: Any = _FROM_JSON[kind](text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from None
    if options.models:
        config = dataclasses.replace(config, init_from=options.init_from)
    return config, options


def command_of(source: Path) -> str:
    """Return the command that trains with the settings of a run or a file; see `read_settings`."""
    _, _, fields = _read_config(source, _read_options(source))
    return COMMANDS[require_choice("kind of run", run_kind(fields), COMMANDS)]


def _read_config(source: Path, options: Options) -> tuple[Path, str, dict[str, Any]]:
    """Return the folder or file of the config, its text, and its fields."""
    if not source.exists():
        raise FileNotFoundError(f"there is no run and no file {source}")
    place = Path(source, *options.models[:1])
    if place.is_file():
        text = place.read_text("utf-8")
        return place, text, parse_config(text, place)
    return place, read_config_text(place), read_config(place)


def require_comparison(folder: Path) -> None:
    """Raise ValueError if a folder holds a run, or options that are not of `train-offline`.

    That command keeps a run of each model in a folder inside.
    """
    if Path(folder, "config.json").exists():
        raise ValueError(f"{folder} holds a run or another config.json: choose another folder")
    if _path(folder).is_file() and not _read_options(folder).models:
        raise ValueError(f"{_path(folder)} is not of gtrxl train-offline: choose another folder")


def without_records(config: Any) -> Any:
    """Return a config of a new run, without what the trainer of a run records in it."""
    if isinstance(config, online_config.OnlineConfig):
        return dataclasses.replace(
            config, env=dataclasses.replace(config.env, reference_returns={})
        )
    return dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, spaces={}),
        data=dataclasses.replace(config.data, fingerprint="", return_scale=None),
    )


def _path(folder: Path) -> Path:
    return Path(folder, "options.json")


def _read_options(folder: Path) -> Options:
    path = _path(folder)
    if not path.is_file():
        return Options()
    fields = parse_json(path.read_text("utf-8"), str(path))
    try:
        return from_fields(Options, fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
