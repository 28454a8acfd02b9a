"""The names of tasks, agents and variants in a comparison, from the configs of its runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.runs.directory import MAY_CHANGE

OF_TASK = ("env.name", "env.params", "env.tasks")
OF_SEEDS = ("seed", "num_seeds")
NO_VARIANT = (*OF_TASK, *OF_SEEDS, "sweep", *MAY_CHANGE)


def task_of(env: Mapping[str, Any]) -> str:
    """Return the environment and its parameters: "TMazePassive-v0, corridor_length 30".

    Several tasks are joined by " + ". A task whose environment is that of the one before is named
    by its parameters only.
    """
    members = EnvConfig(env["name"], env["params"], tuple(env["tasks"])).members
    texts, before = [], None
    for name, params in members:
        parts = [f"{key} {value}" for key, value in params.items()]
        texts.append(", ".join(parts if parts and name == before else [name, *parts]))
        before = name
    return " + ".join(texts)


def settings_of(config: Mapping[str, Any]) -> str:
    """Return all settings of a run on which the scores of a seed depend, as JSON."""
    return json.dumps(_flat(config, (*OF_SEEDS, *MAY_CHANGE)), sort_keys=True)


def variants_of(configs: Sequence[Mapping[str, Any]], agents: Sequence[str]) -> list[str]:
    """Return the settings of each run that differ between runs of the same agent, in any task.

    Settings that are drawn for each seed are always named.
    """
    flat = [_flat(config, NO_VARIANT) for config in configs]
    runs: dict[str, list[dict[str, Any]]] = {}
    for one, agent in zip(flat, agents, strict=True):
        runs.setdefault(agent, []).append(one)
    differ = {
        agent: [
            name
            for name in dict.fromkeys(name for one in of_agent for name in one)
            if len({json.dumps(one.get(name)) for one in of_agent}) > 1
        ]
        for agent, of_agent in runs.items()
    }
    texts = []
    for one, config, agent in zip(flat, configs, agents, strict=True):
        settings = [(name.rsplit(".")[-1], one.get(name)) for name in differ[agent]]
        # What is off is not named: False, null, and what is empty.
        parts = [f"{name} {x}" for name, x in settings if x or type(x) in (int, float)]
        # Of the same name with other bounds, they are other settings.
        parts += [f"sampled {name} in {bounds}" for name, bounds in sorted(config["sweep"].items())]
        texts.append(", ".join(parts))
    return texts


def _flat(config: Mapping[str, Any], left_out: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Return settings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in left_out:
            continue
        nested = isinstance(value, dict)
        found |= _flat(value, left_out, f"{name}.") if nested else {name: value}
    return found
