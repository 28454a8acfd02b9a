"""The loggers that `--log` selects, by name or as `my_module:MyWriter`."""

import json
from collections.abc import Iterable
from pathlib import Path

from gtrxl_jax.plugins import Registry, import_plugins
from gtrxl_jax.runs.logging.tables import CsvWriter
from gtrxl_jax.runs.logging.trackers import TensorBoardWriter, TrackioWriter, WandbWriter
from gtrxl_jax.runs.logging.writers import MetricWriter

LOGGERS = Registry("log", MetricWriter)
LOGGERS.register("csv", CsvWriter)
LOGGERS.register("tensorboard", TensorBoardWriter)
LOGGERS.register("trackio", TrackioWriter)
LOGGERS.register("wandb", WandbWriter)


def require_loggers(names: Iterable[str]) -> None:
    """Raise if a logger cannot be used; import the modules that the names name.

    Raises:
      ValueError: if a name is unknown.
      ImportError: if a package is missing, with the command that installs it.
    """
    names = list(names)
    import_plugins(names)
    for name in names:
        LOGGERS.find(name).require()


def make_loggers(names: Iterable[str], folder: Path, config_json: str) -> list[MetricWriter]:
    """Return the writers of a run, each once.

    Args:
      names: see `require_loggers`, which raises what this raises.
      folder: the folder of the run.
      config_json: the config of the run.
    """
    return [LOGGERS.find(name)(folder, json.loads(config_json)) for name in dict.fromkeys(names)]
