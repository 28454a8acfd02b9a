"""Load a trained run from its folder, or an exported one, to act with it or to evaluate it.

Example:
    run = gtrxl_jax.load("runs/mine")
    state = run.init(batch_size=8)
    state, action, extras = run.act(state, timestep, key)  # for every time step
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.files import append_line
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online import config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import Folder, load_config, require_version
from gtrxl_jax.runs.logging.writers import json_value
from gtrxl_jax.runs.restoring import params_of
from gtrxl_jax.runs.results import provenance
from gtrxl_jax.runs.scores import Score, scores_of
from gtrxl_jax.runs.trainer import Trainer
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

TRAINERS: dict[str, Callable[[str], Trainer]] = {
    "online": lambda text: OnlineTrainer(config.from_json(text)),
    "offline": lambda text: OfflineTrainer(offline_config.from_json(text)),
}
"""Functions that create a trainer from the text of a run's config.json, by kind of run."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A trained run, possibly unfinished.

    Attributes:
      trainer: the run's trainer, with its config and its agent.
      params_per_seed: the trained network's parameters for each seed.
      step: step of the checkpoint that contains the parameters.
      drawn: the settings sampled for each seed, by name, `[S]`.
    """

    trainer: Any
    params_per_seed: list[Any]
    step: int
    drawn: dict[str, list[float]]

    @property
    def config(self) -> Any:
        """The config of the run."""
        return self.trainer.config

    @property
    def agent(self) -> Any:
        """The agent, a Flax module: `agent.apply({"params": params}, ...)` returns its outputs."""
        return self.trainer.agent

    @property
    def params(self) -> Any:
        """The trained network's parameters, for the first seed."""
        return self.params_per_seed[0]

    @property
    def policy(self) -> Policy:
        """The policy, as in the run's evaluations, for `acting.rollout` and others."""
        return self.trainer.policy

    def init(self, batch_size: int) -> Any:
        """Return the state of the policy before the first time step of B environments."""
        return self.policy.init(self.params, batch_size)

    def act(self, state: Any, timestep: TimeStep, key: Key[Array, ""]) -> tuple[Any, Any, Any]:
        """Act with `params` on a time step; compiled on first use.

        Args:
          state: the state returned by `init` or by the previous `act`.
          timestep: `[B]`; the memory of an agent is reset where it is the `first` of an episode. A
            model of trajectories (offline runs) requires a new `init` for each episode.
          key: a PRNG key, a new one for each call.

        Returns:
          The new state; actions `[B]` as `envs.Stream` takes them, which
          `specs.environment_action` converts for other environments; and whatever else the policy
          computed, see `acting.Policy`.
        """
        return self._act(self.params, state, timestep, key)

    @functools.cached_property
    def _act(self) -> Any:
        return jax.jit(self.policy.act)


def load(folder: Folder, *, best: bool = False) -> Loaded:
    """Load a run from its newest checkpoint, or from its best.

    Args:
      folder: the folder of the run, which may still be training, or of an export.
      best: whether to load the best checkpoint according to the config's `checkpoint.best`.

    Raises:
      FileNotFoundError: if the folder contains no run, or no checkpoint.
      ValueError: if the run was written by a newer version of this library, has another
        architecture, or has no best checkpoint; or if the parameters of an export do not belong to
        its config.
      UnusableError: if every checkpoint is damaged.
    """
    require_version(folder)
    text = load_config(folder)
    trainer = TRAINERS[check_choice("kind of run", kind_of(text), TRAINERS)](text)
    return Loaded(trainer, *params_of(trainer, folder, best=best))


def evaluate(
    folder: Folder,
    episodes: int,
    policy: str = "",
    seed: int = 1,
    *,
    best: bool = False,
) -> tuple[dict[str, Score], Loaded]:
    """Evaluate a run's agent on fresh episodes.

    Args:
      folder: the folder of the run.
      episodes: number of episodes for each seed of the run.
      policy: "mode" or "sample"; by default, the policy mode of the run's config.
      seed: seed of the episodes.
      best: whether to evaluate the best checkpoint instead of the newest.

    Returns:
      The scores by name, and the loaded run.
    """
    loaded = load(folder, best=best)
    if not loaded.trainer.environment[0]:
        raise ValueError(
            f"{folder} was trained without an environment to evaluate it in: play its episodes "
            "yourself with gtrxl_jax.load, or train with task.name"
        )
    loaded = with_evaluation(
        loaded, episodes=episodes, policy=policy or loaded.config.evaluation.policy
    )
    play = jax.jit(loaded.trainer.evaluate)
    keys = jax.random.split(jax.random.key(seed), len(loaded.params_per_seed))
    played = [play(params, key) for params, key in zip(loaded.params_per_seed, keys, strict=True)]
    scores = {
        name: np.stack([np.asarray(one[name], np.float64) for one in played]) for name in played[0]
    }
    return scores_of(scores, equal=not loaded.drawn), loaded


def with_evaluation(loaded: Loaded, **settings: Any) -> Loaded:
    """Return the run with other settings of its evaluations, see `EvaluationConfig`."""
    evaluation = dataclasses.replace(loaded.config.evaluation, **settings)
    trainer = type(loaded.trainer)(dataclasses.replace(loaded.config, evaluation=evaluation))
    return dataclasses.replace(loaded, trainer=trainer)


def keep_evaluation(
    folder: Folder, scores: Mapping[str, Score], loaded: Loaded, seed: int, *, best: bool = False
) -> Path:
    """Append an evaluation to `evaluations.jsonl` in the folder of its run, as one line of JSON.

    Args:
      folder: the folder of the run.
      scores: the scores that `evaluate` returned.
      loaded: the run that it returned.
      seed: the seed of the episodes.
      best: whether the best checkpoint was evaluated instead of the newest.

    Returns:
      The path of the file.
    """
    path = Path(folder, "evaluations.jsonl")
    evaluation, (environment, params) = loaded.config.evaluation, loaded.trainer.environment
    tasks = getattr(getattr(loaded.config, "env", None), "tasks", ())
    record = provenance() | {
        "step": loaded.step,
        "best": best,
        "episodes": evaluation.episodes,
        "policy": evaluation.policy,
        "seed": seed,
        "environment": environment,
        "params": params,
        **({"tasks": tasks} if tasks else {}),
        "evaluation": {name: score.record for name, score in scores.items()},
    }
    append_line(path, json.dumps(json_value(record), allow_nan=False))
    return path
