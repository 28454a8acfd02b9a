"""Collecting a data set from a config: the policy that it names, the environment, the file."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from gtrxl_jax.acting.collecting import OraclePolicy, Policy, RandomPolicy, collect, cue_of
from gtrxl_jax.acting.evaluation import Player
from gtrxl_jax.data import minari
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import EpisodeStats, Stream
from gtrxl_jax.loading import load
from gtrxl_jax.ops.distributions import POLICIES, choose
from gtrxl_jax.specs import action_spec, environment_action, observation_spec
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import choice, number, validate


@dataclasses.dataclass(frozen=True)
class CollectionEnvConfig:
    """The environment and how many of it run side by side."""

    name: str = ""
    """A name known to gymnax or to this package; that of the run, where a run's agent acts."""
    params: dict[str, int | float | str] = dataclasses.field(default_factory=dict)
    """Its parameters, as name value pairs: --env.params corridor_length 88"""
    num_envs: int = 64
    """Environments side by side."""


@dataclasses.dataclass(frozen=True)
class CollectionConfig:
    """A data set to be collected. The same config gives the same data."""

    env: CollectionEnvConfig = dataclasses.field(default_factory=CollectionEnvConfig)
    policy: str = "oracle"
    """Who acts: oracle (the environment's own), random, or the folder of a run, online or offline:
    the agent of its first seed."""
    actions: str = choice("", POLICIES)
    """Of a run's agent: mode or sample; as the run was evaluated if not given."""
    episodes: int = 1000
    """How many whole episodes."""
    balance: bool = True
    """The same number of episodes for each value of the cue, where the environment is known to
    have one."""
    seed: int = number(0, at_least=0, below=2**31)
    """Of the episodes."""


@dataclasses.dataclass(frozen=True)
class PlayerPolicy:
    """A trained agent or model as it acts, as a policy for collecting.

    Attributes:
      player: which.
      params: its parameters.
      action_space: the environment's.
      actions: "mode" or "sample".
    """

    player: Player
    params: Any
    action_space: Any
    actions: str

    def initial(self, batch: int) -> Any:
        """The parameters, and the state of acting."""
        start = jax.jit(self.player.start, static_argnums=1)
        return self.params, start(self.params, batch)

    def act(
        self, carry: Any, env_state: Any, timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Any, Any]:
        """The player's policy at a time step, and an action of it, which the player notes."""
        params, state = carry
        state, policy = self.player.step(params, state, timestep)
        action = environment_action(self.action_space, choose(policy, self.actions, key))
        return (params, self.player.observe_action(params, state, action)), action


@dataclasses.dataclass(frozen=True)
class Collected:
    """What a collection came to.

    Attributes:
      episodes: how many.
      steps: actions of all of them.
      mean_return: undiscounted.
      success: share of the episodes; None where the environment does not say.
    """

    episodes: int
    steps: int
    mean_return: float
    success: float | None


Progress = Callable[[Collected], None]


def collect_dataset(
    config: CollectionConfig, folder: str | os.PathLike[str], progress: Progress | None = None
) -> Collected:
    """Collect what the config says, and save it in Minari's format.

    Args:
      config: the data set.
      folder: where it goes, a new one. It appears whole or not at all.
      progress: called now and then with what there is so far.

    Raises:
      FileExistsError: there is something at `folder`.
      FileNotFoundError: `policy` is neither a name nor the folder of a run.
      ValueError: an unknown name, a number out of range, an environment without an oracle or that
        does not fit the run's agent.
      TypeError: a value that is not of its field's type, or spaces that data cannot have.
      ImportError: the extra "offline" is not installed.
    """
    validate(config)
    minari.require_writable(folder)
    name, overrides, env, params, policy = _players(config)
    played: list[EpisodeStats] = []

    def note(episodes: EpisodeStats) -> None:
        played.append(episodes)
        if progress is not None:
            progress(_summary(played))

    trajectories = collect(
        env,
        params,
        policy,
        config.episodes,
        jax.random.key(config.seed),
        num_envs=config.env.num_envs,
        cue=cue_of(name) if config.balance else None,
        progress=note,
    )
    metadata = minari.Metadata(name, overrides, config.policy, config.seed)
    minari.save(trajectories, folder, metadata)
    return _summary(played)


def _players(config: CollectionConfig) -> tuple[str, dict[str, Any], Any, Any, Policy]:
    """The environment's name, its parameters as given and as made, and who acts in it."""
    name, overrides = config.env.name, dict(config.env.params)
    is_run = config.policy not in ("oracle", "random")
    if is_run:
        if not Path(config.policy).exists():
            raise FileNotFoundError(
                f"policy {config.policy!r} is neither oracle nor random, and there is no such "
                "folder: give one of them, or the folder of a run"
            )
        loaded = load(config.policy)
        trained, params_of_run = loaded.trainer.environment
        if name in ("", trained):
            name, overrides = trained, {**params_of_run, **overrides}
    elif config.actions:
        raise ValueError(f"actions is of a run's agent: leave it out with policy {config.policy}")
    if not name:
        raise ValueError("env.name must be given with policy oracle or random")
    env, params = make_env(name, **overrides)
    if not is_run:
        kind = OraclePolicy if config.policy == "oracle" else RandomPolicy
        return name, overrides, env, params, kind(env, params)
    stream, of_run = Stream(env, params, 1), loaded.trainer
    same = (
        observation_spec(stream.observation_space) == observation_spec(of_run.observation_space),
        action_spec(stream.action_space) == action_spec(of_run.action_space),
    )
    if not all(same):
        raise ValueError(
            f"env.name {name} has other observations or actions than {trained}, for which "
            f"the agent of {config.policy} was trained: leave env.name out"
        )
    actions = config.actions or of_run.config.evaluation.policy
    agent = PlayerPolicy(of_run.player, loaded.params, stream.action_space, actions)
    return name, overrides, env, params, agent


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
