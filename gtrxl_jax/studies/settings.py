"""Configs by the dotted names of their settings: `core.memory_size`, as in options."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from flax import traverse_util

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.online.algorithm import ALGORITHMS
from gtrxl_jax.online.config import OnlineConfig, preset, with_parts
from gtrxl_jax.plugins import import_plugins, require_settings
from gtrxl_jax.runs.config import from_fields
from gtrxl_jax.validation import field_names


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of nested tables by their dotted names."""
    return traverse_util.flatten_dict(dict(table), sep=".")


def changes(config: Any) -> dict[str, Any]:
    """Return the settings of a config that differ from the defaults, by their dotted names."""
    default = flatten(dataclasses.asdict(type(config)()))
    found = flatten(dataclasses.asdict(config))
    return {name: value for name, value in found.items() if value != default.get(name)}


def online_config(settings: Mapping[str, Any]) -> OnlineConfig:
    """Return the config of a run from settings by their dotted names, the options of `gtrxl train`.

    `preset` selects a complete config, and `core_preset` the size of the core; the other settings
    override these. Several values of `env.name` are several tasks.

    Raises:
      ValueError: if a name is unknown, a setting is one of another core or algorithm, or the config
        is invalid.
      TypeError: if a value has the wrong type.
    """
    given = {k if ".params." in k else k.replace("-", "_"): v for k, v in settings.items()}
    base = preset(given.pop("preset", "default"))
    names = ("core.name", "core_preset", "algorithm.name")
    base = with_parts(base, *(given.pop(name, None) for name in names))
    require_settings(given, "core", base.core, CORES)
    require_settings(given, "algorithm", base.algorithm, ALGORITHMS)
    fields = dataclasses.asdict(base)
    if isinstance(environments := given.get("env.name"), list) and environments:
        given["env.name"] = environments[0]
        if environments[1:]:
            given["env.tasks"] = [{"name": name} for name in environments]
    if given.get("env.name", base.env.name) != base.env.name:
        fields["env"]["params"] = {}  # the preset's belong to its environment
    kinds = dict(field_names(base))
    for name, value in given.items():
        *groups, field = name.split(".")
        table = fields
        for group in groups:
            if not isinstance(table.get(group), dict):
                table[group] = {}
            table = table[group]
        table[field] = _number(kinds.get(name), value)
    members, agent = [fields["env"], *given.get("env.tasks", ())], fields["agent"]
    import_plugins(member["name"] for member in members if "name" in member)
    import_plugins((agent["encoder"], *agent["encoders"].values()))
    return from_fields(OnlineConfig, fields)


def _number(kind: Any, value: Any) -> Any:
    """Return a number of the type of its field, where it has the same value: 1e6 is a whole one."""
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    return float(value) if type(value) is int and float in (kind, *get_args(kind)) else value
