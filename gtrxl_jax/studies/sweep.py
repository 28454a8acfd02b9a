"""Grids of cells, from Python or from the TOML file of a sweep:

    seeds = 5
    goal = 0.95                              # optional, see `gtrxl compare`

    [settings]                               # of every run
    total_steps = 1_000_000
    env.params.penalty = "behind"

    [grid]                                   # a cell for every combination
    core = [{name = "gtrxl", memory_size = 104}, {name = "lstm"}]
    algorithm.name = ["vmpo", "ppo"]
    env.params.corridor_length = [50, 100]

    [draw]                                   # a value for each seed, see --sweep of `gtrxl train`
    learning_rate = [1e-4, 1e-2]

The names are the options of `gtrxl train`. An entry of a list in `grid` may be a table,
which sets several options at once.
"""

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.studies.cells import Cell
from gtrxl_jax.studies.settings import flatten, online_config
from gtrxl_jax.validation import require_choice, require_count

FIELDS = ("seeds", "goal", "settings", "grid", "draw")
INSTEAD = {
    "num_seeds": "use `seeds = 3` at the top of the file",
    "sweep": "use the table [draw]",
    "folder": "cells have folders of their own: use the command's --folder",
    "log": "use the command's --log",
    "plots": "cells draw none: omit it",
    "help": "it is no option of a run: omit it",
}
"""What to write instead of the options that neither [settings] nor [grid] may set."""


def grid(
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    draw: Mapping[str, Any] | None = None,
    seeds: int = 1,
) -> list[Cell]:
    """Return a cell for every combination of options, whose labels are these options.

    Args:
      settings: the settings of every run, nested or by their dotted names, see `online_config`.
      options: for each name a list of values. A table in a list sets all of its entries; named
        `core`, for example, settings of the core.
      draw: the bounds of hyperparameters that each seed samples, `OnlineConfig.sweep`.
      seeds: number of seeds of each cell.

    Raises:
      ValueError: if an option may not be set, a value is invalid, or two cells have the same name.
    """
    common = flatten(settings)
    _check_options("settings", common)
    drawn = _ranges(draw or {})
    cells: dict[str, Cell] = {}
    for chosen in _combinations(flatten(options)):
        _check_options("grid", chosen)
        name = cell_name(chosen)
        if name in cells:
            raise ValueError(f"two cells of the grid have the same name, {name}")
        given = {option.replace("-", "_") for option in common | chosen}
        for hyperparameter in drawn:
            if (fixed := f"algorithm.{hyperparameter}") in given:
                raise ValueError(
                    f"{hyperparameter} in [draw] and {fixed} are both set: omit one of them"
                )
        of_cell = common | chosen | {"num_seeds": seeds} | ({"sweep": drawn} if drawn else {})
        try:
            config = online_config(of_cell)
        except (ValueError, TypeError) as error:
            raise ValueError(f"cell {name}: {error}") from None
        cells[name] = Cell(chosen, config, seeds=seeds, name=name)
    return list(cells.values())


def read_sweep(path: Path) -> tuple[list[Cell], float | None]:
    """Read and check all cells of a sweep.

    Returns:
      The cells, and the score that they should reach; None for the default of `compare`.

    Raises:
      OSError: if it cannot be read.
      TypeError: if a field has a value of the wrong type.
      ValueError: if it is not TOML, has an unknown field, or a cell's config is invalid.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OSError(f"a sweep needs a TOML file: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    for name in content:
        require_choice(f"field in {path}", name, FIELDS)
    require_count(f"seeds in {path}", seeds := content.get("seeds", 1))
    goal = content.get("goal")
    if isinstance(goal, bool) or not isinstance(goal, int | float | None):
        raise TypeError(f"goal in {path} must be a number, not {goal!r}")
    settings, options, draw = (content.get(name, {}) for name in ("settings", "grid", "draw"))
    for name, table in (("settings", settings), ("grid", options), ("draw", draw)):
        if not isinstance(table, dict):
            raise TypeError(f"{name} in {path} must be a table, such as [{name}]")
    return grid(settings, options, draw=draw, seeds=seeds), goal


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return `gtrxl-ppo-corridor_length-50` for a cell; `run` for one without settings."""
    parts = []
    for name, value in cell.items():
        field = name.rsplit(".")[-1]
        parts.append(str(value) if field == "name" else f"{field}-{value}")
    return re.sub("[^A-Za-z0-9._+-]+", "-", "-".join(parts)).strip("-") or "run"


def _check_options(table: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for names that may not be set, or that stand for a group of options."""
    config = OnlineConfig()
    for name in settings:
        option = name.replace("-", "_")
        if option in INSTEAD:
            raise ValueError(f"{name} in [{table}]: {INSTEAD[option]}")
        group = getattr(config, option, None)
        if dataclasses.is_dataclass(group):
            first = f"{name}.{dataclasses.fields(group)[0].name}"
            value = "[...]" if table == "grid" else "..."
            raise ValueError(f"{name} in [{table}] is a group of options: use {first} = {value}")


def _ranges(draw: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the ranges in [draw] by hyperparameter, which may be named as an option is.

    Raises:
      ValueError: if a range is not a pair of numbers, or a hyperparameter has two.
    """
    found: dict[str, list[float]] = {}
    for option, bounds in flatten(draw).items():
        is_pair = isinstance(bounds, list | tuple) and len(bounds) == 2
        if not is_pair or not all(type(bound) in (int, float) for bound in bounds):
            raise ValueError(f"{option} in [draw] must be [low, high], not {bounds!r}")
        name = option.removeprefix("algorithm.").removeprefix("optimizer.")
        if name in found:
            raise ValueError(f"{name} is twice in [draw]: omit one of the two")
        found[name] = list(bounds)
    return found


def _combinations(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each cell; raise ValueError for an entry that is no list, or empty."""
    for name, values in options.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{name} must be a list of values, not {values!r}")
    for values in itertools.product(*options.values()):
        yield flatten(dict(zip(options, values, strict=True)))
