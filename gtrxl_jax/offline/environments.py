"""The environments of an offline run, and the trajectories of their oracles."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from gtrxl_jax.acting.collecting import collect, cue_of
from gtrxl_jax.acting.policy import OraclePolicy
from gtrxl_jax.data import minari
from gtrxl_jax.data.spaces import Spaces, dataset_spaces
from gtrxl_jax.data.trajectories import Trajectories, concatenate
from gtrxl_jax.envs import associative, tmaze
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.offline.config import OfflineConfig

LENGTHS: dict[str, Callable[[int, int], Any]] = {
    "TMazePassive-v0": tmaze.rate_params,
    "AssociativeRetrieval-v0": associative.rate_params,
}
"""Environments of variable length: functions from (segments, context) to their parameters."""


def make_stream(config: OfflineConfig, length: int | None = None) -> Stream:
    """Create the environment of a run, optionally for episodes of a given number of steps.

    Raises:
      ValueError: if the environment or a parameter is unknown, a value is out of range, or a length
        is given for an environment without variable length.
    """
    task = config.task
    env, params = make_env(task.name, **task.params)
    if length is not None:
        if task.name not in LENGTHS:
            raise ValueError(
                f"evaluation.lengths is not supported by {task.name}, only by "
                f"{' and '.join(LENGTHS)}: omit it"
            )
        params = LENGTHS[task.name](1, length).replace(**task.params)
    return Stream(env, params, config.evaluation.episodes)


def parameters(config: OfflineConfig) -> dict[str, Any]:
    """Return the environment's parameters at the training length, without unset ones."""
    name, given = config.task.name, dict(config.task.params)
    if name not in LENGTHS:
        return given
    of_length = dataclasses.asdict(LENGTHS[name](1, config.length))
    return {k: v for k, v in of_length.items() if v is not None} | given


def evaluation_streams(config: OfflineConfig) -> dict[str, Stream]:
    """Return the environment for each evaluation length, by name; without lengths, named ""."""
    lengths = config.evaluation.lengths
    if not lengths and config.task.name in LENGTHS:
        lengths = (config.length,)
    if not lengths:
        return {"": make_stream(config)}
    return {str(length): make_stream(config, length) for length in lengths}


def trajectories_of(config: OfflineConfig) -> Trajectories:
    """Read the dataset of a run, or generate it with the oracle.

    Raises:
      ValueError: if the dataset is damaged or has other spaces than the environment, or the
        environment has no oracle.
      FileNotFoundError: if the dataset does not exist.
      ImportError: if the extra "offline" is not installed.
    """
    any_length = config.task.name in LENGTHS
    if config.data.path:
        trajectories = minari.load(config.data.path)
        require_spaces(config, trajectories.spaces)
        return trajectories
    lengths = [n * config.context for n in config.stages] if any_length else [None]
    sets = []
    for number, length in enumerate(lengths):
        stream = make_stream(config, length)
        sets.append(
            collect(
                stream.env,
                stream.params,
                OraclePolicy(stream.env, stream.params),
                config.data.episodes,
                jax.random.fold_in(jax.random.key(config.data.seed), number),
                num_envs=min(config.data.episodes, 1024),
                cue=cue_of(config.task.name),
            )
        )
    return concatenate(sets)


def require_spaces(config: OfflineConfig, spaces: Spaces) -> None:
    """Raise ValueError if the spaces of the data differ from those of the environment."""
    any_length = config.length if config.task.name in LENGTHS else None
    stream = make_stream(config, any_length)
    expected = dataset_spaces(stream.observation_space, stream.action_space)
    if spaces != expected:
        raise ValueError(
            f"data.path {config.data.path} has {spaces}, but task.name {config.task.name} has "
            f"{expected}: choose a matching pair"
        )
