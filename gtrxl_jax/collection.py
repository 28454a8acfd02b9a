"""Collect a dataset from a config that names the policy and the environment."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gtrxl_jax.acting.collecting import collect_rounds
from gtrxl_jax.acting.host import FunctionPolicy, HostOraclePolicy
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.scripted import ExplorerPolicy, OraclePolicy, RandomPolicy
from gtrxl_jax.data import minari
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.extensions import cue_of
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.host.stream import HostEnv
from gtrxl_jax.envs.host.wrappers import require_wrappers
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.loading import environment_for, load
from gtrxl_jax.ops.distributions import SELECTIONS
from gtrxl_jax.plugins import find_object, is_plugin
from gtrxl_jax.runs.addresses import is_address
from gtrxl_jax.timestep import EpisodeStats
from gtrxl_jax.validation import choice, number, validate

BUILT_IN = {"oracle": OraclePolicy, "explorer": ExplorerPolicy}
"""The policies that environments can provide, by name."""


@dataclasses.dataclass(frozen=True)
class CollectionEnvConfig:
    """The environment and its number of parallel instances."""

    name: str = ""
    """Name of an environment of gymnax, of this package or on the host, as in `gtrxl train`. If the
    policy is a run, the environment of the run by default."""
    params: dict[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    """Environment parameters as name value pairs: --env.params corridor_length 88"""
    num_envs: int = 64
    """Number of parallel environments."""
    wrappers: dict[str, bool | int | str] = dataclasses.field(default_factory=dict)
    """Wrappers of an environment on the host, as in `gtrxl train`; of a run, its own."""


@dataclasses.dataclass(frozen=True)
class CollectionConfig:
    """A dataset to collect. The data are a function of the config."""

    env: CollectionEnvConfig = dataclasses.field(default_factory=CollectionEnvConfig)
    policy: str = "oracle"
    """The policy that acts: oracle or explorer (if provided by the environment), random, or the
    folder of an online or offline run, whose first seed is used; or, in an environment on the host,
    module:function, from an observation of arrays to an action."""
    step: int | None = number(None, at_least=0)
    """Step of the run's checkpoint, of those that it has kept; by default the newest."""
    actions: str = choice("", SELECTIONS)
    """How a run's agent chooses actions: mode or sample. By default, as in the run's
    evaluations."""
    episodes: int = 1000
    """Number of complete episodes."""
    balance: bool = True
    """Collect the same number of episodes for each value of the cue, in environments with a known
    cue."""
    seed: int = number(0, at_least=0, below=2**31)
    """Seed of the episodes."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """Summary of the collected episodes.

    Attributes:
      episodes: number of episodes.
      steps: total number of actions.
      mean_return: mean undiscounted return.
      success: mean success; None if the environment does not report success.
    """

    episodes: int
    steps: int
    mean_return: float
    success: float | None


Progress = Callable[[Collected], None]


def collect_dataset(
    config: CollectionConfig, folder: str | os.PathLike[str], progress: Progress | None = None
) -> Collected:
    """Collect the dataset of a config and save it in Minari's format.

    Args:
      config: the config of the dataset.
      folder: a new folder for the dataset, created atomically.
      progress: called after each round of episodes with a summary of all episodes so far.

    Returns:
      A summary of the dataset.

    Raises:
      FileExistsError: if `folder` exists.
      FileNotFoundError: if `policy` is neither a known name nor the folder of a run.
      ValueError: if a name is unknown, a number is out of range, a setting has no effect, the
        environment does not provide the policy, or does not match the run's agent.
      TypeError: if a value does not have its field's type, or datasets do not support the spaces.
      ImportError: if the extra "offline" is not installed.
    """
    validate(config)
    minari.require_writable(folder)
    source = _source(config)
    played: list[EpisodeStats] = []

    def note(episodes: EpisodeStats) -> None:
        played.append(episodes)
        if progress is not None:
            progress(_summary(played))

    rounds = collect_rounds(
        source.env,
        source.params,
        source.policy,
        config.episodes,
        jax.random.key(config.seed),
        num_envs=config.env.num_envs,
        cue=cue_of(source.env) if config.balance else None,
        progress=note,
        policy_params=source.policy_params,
    )
    metadata = minari.Metadata(source.name, source.overrides, config.policy, config.seed)
    minari.save(rounds, folder, metadata)
    return _summary(played)


class _Source(NamedTuple):
    """The environment and the policy that a config names.

    Attributes:
      name: name of the environment.
      overrides: its parameters that were given.
      env: the environment, jitted or on the host.
      params: its parameters; None on the host.
      policy: the policy.
      policy_params: the parameters of the policy's network; () if it has none.
    """

    name: str
    overrides: dict[str, Any]
    env: Any
    params: Any
    policy: Policy
    policy_params: Any = ()


def _source(config: CollectionConfig) -> _Source:
    """Return the environment and the policy of a config; see `collect_dataset` for errors."""
    if not is_plugin(config.policy) and config.policy not in (*BUILT_IN, "random"):
        return _from_run(config)
    for field, value in {"actions": config.actions or None, "step": config.step}.items():
        if value is not None:
            raise ValueError(
                f"{field} applies only to the agent of a run: omit it for policy {config.policy}"
            )
    if not config.env.name:
        raise ValueError(f"env.name must be given, since policy {config.policy} names none")
    return _on_host(config) if is_host_env(config.env.name) else _jitted(config)


def _from_run(config: CollectionConfig) -> _Source:
    """Return the agent of a run, in the environment of the run or in another."""
    if not (is_address(config.policy) or Path(config.policy).exists()):
        raise FileNotFoundError(
            f"policy {config.policy!r} is neither oracle, explorer nor random, nor an existing "
            "folder: use one of these names, or the folder of a run"
        )
    if config.env.wrappers:
        raise ValueError(f"env.wrappers are those of the run {config.policy}: omit them")
    loaded = load(config.policy, step=config.step)
    name, overrides, stream = environment_for(loaded, config.env.name, config.env.params)
    policy: Any = loaded.policy
    if config.actions:
        policy = dataclasses.replace(policy, actions=config.actions)
    return _Source(name, overrides, stream.env, stream.params, policy, loaded.params)


def _on_host(config: CollectionConfig) -> _Source:
    """Return an oracle, random choices or a function, in an environment on the host."""
    name, overrides = config.env.name, dict(config.env.params)
    require_wrappers(config.env.wrappers)
    if config.policy == "explorer":
        raise ValueError(
            f"policy explorer is none of {name}, which is on the host: use oracle, random, a "
            "function or the folder of a run"
        )
    env = HostEnv(name, overrides, config.env.wrappers)
    if config.policy == "oracle":
        return _Source(name, overrides, env, None, HostOraclePolicy(env))
    if not is_plugin(config.policy):
        return _Source(name, overrides, env, None, RandomPolicy(env.facts.action_space))
    function = find_object("policy", config.policy)
    if not callable(function):
        raise ValueError(f"policy {config.policy!r} is no function of its module")
    return _Source(name, overrides, env, None, FunctionPolicy(function))


def _jitted(config: CollectionConfig) -> _Source:
    """Return a policy that the environment provides or random choices, in a jitted environment."""
    name, overrides = config.env.name, dict(config.env.params)
    if is_plugin(config.policy):
        raise ValueError(
            f"policy {config.policy} acts in NumPy, but {name} is jitted: use an environment on "
            "the host"
        )
    if config.env.wrappers:
        raise ValueError(f"env.wrappers are of environments on the host, unlike {name}: omit them")
    env, params = make_env(name, **overrides)
    stream = require_consistent_env(Stream(env, params, 1))
    if config.policy in BUILT_IN:
        return _Source(name, overrides, env, params, BUILT_IN[config.policy](env, params))
    return _Source(name, overrides, env, params, RandomPolicy(stream.action_space))


def _summary(played: list[EpisodeStats]) -> Collected:
    def joined(field: str) -> np.ndarray:
        return np.concatenate([getattr(episodes, field) for episodes in played])

    length = joined("length")
    return Collected(
        episodes=len(length),
        steps=int(length.sum()),
        mean_return=float(joined("episode_return").mean(dtype=np.float64)),
        success=None if played[0].success is None else float(joined("success").mean()),
    )
