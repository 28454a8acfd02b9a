"""The environment of an offline run, if any, its spaces, and the trajectories of its oracle."""

import contextlib
import dataclasses
import sys
from collections.abc import Collection, Iterator
from typing import Any

import jax

from gtrxl_jax.acting.collecting import collect
from gtrxl_jax.acting.evaluation import AnyTask
from gtrxl_jax.acting.host import HostOraclePolicy
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.scripted import OraclePolicy
from gtrxl_jax.data.datasets import (
    BadEpisodeError,
    DatasetReader,
    Selection,
    checked_episodes,
)
from gtrxl_jax.data.format import Metadata
from gtrxl_jax.data.spaces import Spaces, dataset_spaces, from_record, same_spaces
from gtrxl_jax.data.trajectories import Trajectories, concatenate
from gtrxl_jax.data.windows import Sampling
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.extensions import cue_at_start, cue_of, params_of_length
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.envs.host.wrappers import require_wrappers
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.parallel import hosts


def make_stream(config: OfflineConfig, length: int | None = None) -> AnyTask:
    """Create the environment of a run.

    Args:
      config: the config of the run, which names an environment.
      length: number of steps of an episode if the environment has variable length; by default that
        of the longest training trajectories.

    Raises:
      ValueError: if the environment or a parameter is unknown, a value is out of range, no episode
        is that short, or there are wrappers and the environment is not on the host.
    """
    given, name = config.env.params, config.env.name
    require_wrappers(config.env.wrappers)
    if is_host_env(name):
        env = HostEnv(name, given, config.env.wrappers)
        return HostStream((env,), config.evaluation.episodes)
    if config.env.wrappers:
        raise ValueError(f"env.wrappers are of environments on the host, unlike {name}: omit them")
    env, params = make_env(name, **given)
    steps = length or config.length
    try:
        of_length = params_of_length(env, steps)
    except ValueError as error:
        raise ValueError(
            f"env.name {name} has no episodes of {steps} steps, {error}: increase unroll, segments "
            "or evaluation.lengths"
        ) from None
    if of_length is not None:
        params = of_length.replace(**{k: v for k, v in given.items() if hasattr(of_length, k)})
    return require_consistent_env(Stream(env, params, config.evaluation.episodes))


def has_lengths(config: OfflineConfig) -> bool:
    """Return whether the environment has variable length."""
    if not config.env.name or is_host_env(config.env.name):
        return False
    env, _ = make_env(config.env.name, **config.env.params)
    return hasattr(env, "params_of_length")


def parameters(config: OfflineConfig) -> dict[str, Any]:
    """Return the environment's parameters at the training length, without unset ones."""
    if not has_lengths(config):
        return dict(config.env.params)
    params: Any = make_stream(config).params
    of_length = dataclasses.asdict(params)
    return {k: v for k, v in of_length.items() if v is not None} | config.env.params


def evaluation_streams(config: OfflineConfig) -> dict[str, AnyTask]:
    """Return the environment for each evaluation length, by name; without lengths, named "".

    Empty for a run without an environment.

    Raises:
      ValueError: if there are lengths, but the environment has no variable length, or a parameter
        that was given sets it; see also `make_stream`.
    """
    name, lengths = config.env.name, config.evaluation.lengths
    if not name:
        return {}
    if not has_lengths(config):
        if lengths:
            raise ValueError(
                f"evaluation.lengths is not supported by {name}, which has no params_of_length: "
                "omit it"
            )
        return {"": make_stream(config)}
    if lengths:
        _require_free_length(config)
    return {str(n): make_stream(config, n) for n in lengths or (config.length,)}


def _require_free_length(config: OfflineConfig) -> None:
    """Raise ValueError if a parameter that was given decides the length, instead of the lengths."""
    given, longest = config.env.params, max(config.evaluation.lengths)
    env, _ = make_env(config.env.name, **given)
    one, other = (params_of_length(env, n) for n in (longest, longest + 1))
    for name in given:
        # A time limit cuts an episode, but leaves its task as it is.
        is_of_length = getattr(one, name, None) != getattr(other, name, None)
        if is_of_length and name != "max_steps_in_episode":
            raise ValueError(
                f"env.params {name} {given[name]} gives all episodes the same length, and "
                "evaluation.lengths names some: omit the parameter, or pass evaluation.lengths "
                "without a value"
            )


def sampling_of(config: OfflineConfig) -> Sampling:
    """Return how windows are sampled: as the config says, or as suits the environment."""
    name, params = config.env.name, config.env.params
    at_start = name and not is_host_env(name) and cue_at_start(make_env(name, **params)[0])
    suitable = Sampling() if at_start else Sampling(start="covering", weight="length")
    data = config.data
    return Sampling(data.start or suitable.start, data.weight or suitable.weight)


def trajectories_of(config: OfflineConfig) -> Trajectories:
    """Read the dataset of a run, or generate it with the oracle.

    Raises:
      ValueError: if the dataset is damaged or has other spaces than the run, or there is neither a
        dataset nor an environment with an oracle.
      FileNotFoundError: if the dataset does not exist.
      ImportError: if the extra "offline" is not installed.
    """
    if config.data.path:
        with open_dataset(config) as reader:
            require_spaces(config, reader.spaces)
            with sound_episodes(config, reader) as episodes:
                trajectories = concatenate([episode for _, episode in episodes])
            warn_of_other_environment(config, reader.metadata)
        return trajectories
    _require_source(config)
    sets = []
    # Of an environment without variable length, all episodes are alike.
    for number, segments in enumerate(config.stages if has_lengths(config) else (1,)):
        stream = make_stream(config, segments * config.unroll)
        policy, most_envs = _oracle(stream)
        sets.append(
            collect(
                stream.env,
                stream.params,
                policy,
                config.data.episodes,
                jax.random.fold_in(jax.random.key(config.data.seed), number),
                num_envs=min(config.data.episodes, most_envs),
                cue=cue_of(stream.env),
            )
        )
    return concatenate(sets)


def _oracle(stream: AnyTask) -> tuple[Policy, int]:
    """Return the oracle of an environment, and in how many of them it acts at most.

    Raises:
      ValueError: if there is none.
    """
    env: Any = stream.env
    if not isinstance(env, HostEnv):
        return OraclePolicy(env, stream.params), 1024
    if not env.facts.has_oracle:
        raise ValueError(
            f"env.name {env.name} is on the host and has no oracle_action that generates data: set "
            "data.path, for example to a dataset of gtrxl collect"
        )
    return HostOraclePolicy(env), 16


def data_spaces(config: OfflineConfig) -> Spaces:
    """Return the spaces of a run without an environment: as recorded, or else of its dataset.

    Raises:
      ValueError, FileNotFoundError, ImportError: see `trajectories_of`.
    """
    if config.env.spaces:
        return from_record(config.env.spaces)
    _require_source(config)
    with open_dataset(config) as reader:
        return reader.spaces


def open_dataset(config: OfflineConfig, leave_out: Collection[int] = ()) -> DatasetReader:
    """Open the dataset of a run, without the episodes of the given numbers.

    Raises:
      ValueError: if it is damaged, or cannot be streamed, see also `trajectories_of`.
    """
    data = config.data
    reader = DatasetReader(
        data.path,
        leave_out=leave_out,
        selection=Selection(data.keys, data.drop, data.clip_actions),
        spaces=_known_spaces(config),
    )
    if data.stream and not reader.format.is_seekable:
        reader.close()
        raise ValueError(
            f"data.stream cannot read parts of {reader.path}, since {reader.format.name} are "
            "compressed as a whole: convert them with gtrxl data convert, or disable data.stream"
        )
    return reader


def _known_spaces(config: OfflineConfig) -> Spaces | None:
    """Return the spaces of a run, unless they are those of its data."""
    if config.env.name:
        stream = make_stream(config)
        return dataset_spaces(stream.observation_space, stream.action_space)
    return from_record(config.env.spaces) if config.env.spaces else None


def require_spaces(config: OfflineConfig, spaces: Spaces) -> None:
    """Raise ValueError if the spaces of the data differ from the run's spaces."""
    expected = _known_spaces(config) or data_spaces(config)
    of = f"env.name {config.env.name}" if config.env.name else "the run"
    if not same_spaces(spaces, expected):
        found = f"data.path {config.data.path} has" if config.data.path else "the data given have"
        raise ValueError(
            f"{found} {spaces}, but {of} has {expected}: choose a matching pair, or train without "
            'an environment, with env.name ""'
        )


@contextlib.contextmanager
def sound_episodes(
    config: OfflineConfig, reader: DatasetReader
) -> Iterator[Iterator[tuple[int, Trajectories]]]:
    """Yield the iterator over the sound episodes of a dataset, see `checked_episodes`.

    What is missing from the files is said on standard error when the block ends and, with
    `data.skip_bad`, which episodes are bad.

    Raises:
      ValueError: if an episode is bad; with `data.skip_bad`, if all are.
    """
    bad: list[BadEpisodeError] = []
    try:
        yield checked_episodes(reader, bad.append if config.data.skip_bad else None)
    except BadEpisodeError as error:
        raise ValueError(
            f"{error}; repair it, or leave out all bad episodes with data.skip_bad"
        ) from None
    if hosts.is_first():
        for line in reader.describe_missing():
            print(f"{reader.path}: {line}", file=sys.stderr)
    if bad and hosts.is_first():
        lines = [f"{len(bad)} of {reader.num_episodes} episodes are left out:", *map(str, bad)]
        print("\n  ".join(lines), file=sys.stderr)


def warn_of_other_environment(config: OfflineConfig, metadata: Metadata) -> None:
    """Print a line if the data were recorded in an environment of another name than the run's."""
    ours, theirs = config.env.name, metadata.env_name
    if ours and theirs and ours != theirs:
        print(
            f"data.path {config.data.path} was recorded in {theirs}, and env.name is {ours}: the "
            "spaces agree, the tasks may not",
            file=sys.stderr,
        )


def _require_source(config: OfflineConfig) -> None:
    if not (config.env.name or config.data.path):
        raise ValueError(
            "env.name and data.path are both empty: name an environment whose oracle generates "
            "the data, or a dataset"
        )
