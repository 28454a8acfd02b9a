"""The environments of an offline run, and the trajectories that their oracles make."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from gtrxl_jax.acting.collecting import OraclePolicy, collect, cue_of
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
"""Environments that exist at any length: from (segments, context) to their parameters."""


def make_stream(config: OfflineConfig, length: int | None = None) -> Stream:
    """The run's environment, of episodes of that many steps if a length is given.

    Raises:
      ValueError: an unknown environment or parameter, a value out of range, or a length for an
        environment that has none.
    """
    task = config.task
    env, params = make_env(task.name, **task.params)
    if length is not None:
        if task.name not in LENGTHS:
            raise ValueError(
                f"evaluation.lengths: {task.name} has none, only {' and '.join(LENGTHS)} do; "
                "leave them out"
            )
        params = LENGTHS[task.name](1, length).replace(**task.params)
    return Stream(env, params, config.evaluation.episodes)


def parameters(config: OfflineConfig) -> dict[str, Any]:
    """What the environment is made with for episodes of the training length; defaults left out."""
    name, given = config.task.name, dict(config.task.params)
    if name not in LENGTHS:
        return given
    of_length = dataclasses.asdict(LENGTHS[name](1, config.length))
    return {k: v for k, v in of_length.items() if v is not None} | given


def evaluation_streams(config: OfflineConfig) -> dict[str, Stream]:
    """What the model plays: an environment for each length, by name; one called "" without any."""
    lengths = config.evaluation.lengths
    if not lengths and config.task.name in LENGTHS:
        lengths = (config.length,)
    if not lengths:
        return {"": make_stream(config)}
    return {str(length): make_stream(config, length) for length in lengths}


def trajectories_of(config: OfflineConfig) -> Trajectories:
    """The data of a run, read from its file or played by the oracle.

    Raises:
      ValueError: the file is not a sound data set, or of other spaces than the environment; the
        environment has no oracle.
      FileNotFoundError: there is no such file.
      ImportError: the extra "offline" is not installed.
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
    """Refuse data of other spaces than the environment's.

    Raises:
      ValueError: they are.
    """
    any_length = config.length if config.task.name in LENGTHS else None
    stream = make_stream(config, any_length)
    expected = dataset_spaces(stream.observation_space, stream.action_space)
    if spaces != expected:
        raise ValueError(
            f"data.path {config.data.path} has {spaces}, and {config.task.name} has {expected}: "
            "choose task.name and data.path to fit"
        )
