"""Load a trained run from its folder, or an exported one, to act with it or to evaluate it.

Example:
    run = gtrxl_jax.load("runs/mine")
    actor = run.actor()
    action = actor(observation, reward, first)  # for every time step, in one environment
    state = run.init(batch_size=8)
    state, action, extras = run.act(state, timestep, key)  # in several
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from gtrxl_jax.acting.actor import Actor
from gtrxl_jax.acting.evaluation import AnyTask, make_evaluate, summarize
from gtrxl_jax.acting.policy import ForgetfulPolicy, Policy
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.faults import require_no_faults
from gtrxl_jax.envs.host.simulators import is_host_env
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.files import append_line
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online import config
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.runs.addresses import local_folder
from gtrxl_jax.runs.arrays import by_name, require_same_arrays
from gtrxl_jax.runs.config import run_kind
from gtrxl_jax.runs.directory import Folder, read_config, read_config_text, require_version
from gtrxl_jax.runs.divergence import is_finite
from gtrxl_jax.runs.logging.writers import json_value
from gtrxl_jax.runs.params import params_of
from gtrxl_jax.runs.results import Score, provenance, scores_of
from gtrxl_jax.runs.trainer import Trainer
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.specs.values import require_host_values
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_choice, require_count

TRAINERS: dict[str, Callable[[str], Trainer]] = {
    "online": lambda text: make_trainer(config.from_json(text)),
    "offline": lambda text: OfflineTrainer(offline_config.from_json(text)),
}
"""Functions that create a trainer from the text of a run's config.json, by kind of run."""


class EvaluationEnv(NamedTuple):
    """An environment in which a run is evaluated instead of its own.

    Attributes:
      name: its name.
      params: its parameters.
      stream: a stream of it.
    """

    name: str
    params: dict[str, Any]
    stream: AnyTask


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A trained run, possibly unfinished.

    Attributes:
      trainer: the run's trainer, with its config and its agent.
      params_per_seed: the trained network's parameters for each seed.
      step: step of the checkpoint that contains the parameters.
      sampled: the settings sampled for each seed, by name, `[S]`.
      value_units: mean and scale of each seed's values, `[2, N]` for N tasks: scale * value + mean
        is in the units of the rewards. None if the values are.
      other_env: another environment in which it is evaluated, see `with_settings`; None for the
        environments of the run.
      forget: number of steps after which it forgets all before; 0: never.
    """

    trainer: Any
    params_per_seed: list[Any]
    step: int
    sampled: dict[str, list[float]]
    value_units: list[Any]
    other_env: EvaluationEnv | None = None
    forget: int = 0

    @property
    def config(self) -> Any:
        """The config of the run."""
        return self.trainer.config

    @property
    def agent(self) -> Any:
        """The agent, a Flax module: `agent.apply({"params": params}, ...)` returns its outputs."""
        return self.trainer.agent

    @property
    def environment(self) -> tuple[str, dict[str, Any]]:
        """Name and parameters of the environment in which it is evaluated; "" without one."""
        if self.other_env:
            return self.other_env.name, self.other_env.params
        return self.trainer.environment

    @property
    def tasks(self) -> tuple[AnyTask, ...]:
        """The environments in which it is evaluated."""
        return (self.other_env.stream,) if self.other_env else self.trainer.tasks

    @property
    def is_jitted(self) -> bool:
        """Whether these are jitted; if not, they step on the host."""
        return all(isinstance(task, Stream) for task in self.tasks)

    @property
    def params(self) -> Any:
        """The trained network's parameters, for the first seed."""
        return self.params_per_seed[0]

    @property
    def policy(self) -> Policy:
        """The policy, as in the run's evaluations, for `acting.rollout.rollout` and others."""
        policy = self.trainer.policy
        return ForgetfulPolicy(policy, self.forget) if self.forget else policy

    def init(self, batch_size: int) -> Any:
        """Return the state of the policy before the first time step of B environments."""
        return self.policy.init(self.params, batch_size)

    def act(self, state: Any, timestep: TimeStep, key: Key[Array, ""]) -> tuple[Any, Any, Any]:
        """Act with `params` on a time step; compiled on first use.

        Args:
          state: the state returned by `init` or by the previous `act`.
          timestep: `[B]`; the memory is reset where it is the `first` of an episode.
          key: a PRNG key, a new one for each call.

        Returns:
          The new state; actions `[B]` as `envs.Stream` takes them, which
          `specs.environment_action` converts for other environments; and whatever else the policy
          computed, see `acting.policy.Policy`.

        Raises:
          ValueError, TypeError: if an observation in NumPy or on a CPU does not belong to its
            space, see `specs.require_values`.
        """
        require_host_values(self.trainer.observation_space, timestep.observation)
        return self._act(self.params, state, timestep, key)

    def actor(self, seed: int = 0) -> Actor:
        """Return an actor with `params` for one environment: it keeps the memory, in NumPy.

        Args:
          seed: seed of the actions, unused if the policy takes the most likely ones.
        """
        spaces = self.trainer.observation_space, self.trainer.action_space
        return Actor(self.policy, self.params, *spaces, seed)

    def evaluate(self, params: Any, key: Key[Array, ""]) -> dict[str, Shaped[Array, " _"]]:
        """Return the scores of fresh episodes, see `Trainer.evaluate`."""
        if not self.other_env and not self.forget:
            return self.trainer.evaluate(params, key)
        episodes = make_evaluate(self.policy, self.tasks, self.config.evaluation.episodes)
        scores = summarize if self.other_env else self.trainer.scores
        return scores(episodes(params, key))

    @functools.cached_property
    def _act(self) -> Any:
        return jax.jit(self.policy.act)


def load(folder: Folder, *, best: bool = False, step: int | None = None) -> Loaded:
    """Load a run from its newest checkpoint, or from another.

    Args:
      folder: the folder of the run, which may still be training, or of an export; or an address,
        `hf://owner/name` or `bundled://name`, see `runs.addresses`.
      best: whether to load the best checkpoint according to the config's `checkpoint.best`.
      step: the step of the checkpoint to load, of those that the run has kept.

    Raises:
      FileNotFoundError: if the folder contains no run, or no checkpoint.
      ValueError: if this version of the library cannot read the run, or it has another
        architecture, or has no best checkpoint, or none of the given step; or if the parameters of
        an export do not belong to its config.
      UnusableError: if every checkpoint is damaged.
      ConnectionError, ModuleNotFoundError: if an address cannot be loaded, see `runs.addresses`.
    """
    folder = local_folder(folder)
    require_version(folder)
    kind = require_choice("kind of run", run_kind(read_config(folder)), TRAINERS)
    trainer = TRAINERS[kind](read_config_text(folder))
    return Loaded(trainer, *params_of(trainer, folder, best=best, step=step))


def evaluate(
    folder: Folder,
    episodes: int,
    actions: str = "",
    seed: int = 1,
    *,
    best: bool = False,
    **settings: Any,
) -> tuple[dict[str, Score], Loaded]:
    """Evaluate a run's agent on fresh episodes.

    Args:
      folder: the folder of the run.
      episodes: number of episodes for each seed of the run.
      actions: how they are chosen, "mode" or "sample"; by default as the run's config says.
      seed: seed of the episodes.
      best: whether to evaluate the best checkpoint instead of the newest.
      **settings: settings that differ from the run's, see `with_settings`.

    Returns:
      The scores by name, and the loaded run.

    Raises:
      ValueError: if the run has no environment, or an episode exceeds its time limit, or has an
        observation outside its space or a reward that is not finite; see also `load`.
    """
    loaded = with_settings(load(folder, best=best), **settings)
    if not loaded.environment[0]:
        raise ValueError(
            f"{folder} was trained without an environment to evaluate it in: name one with "
            "env.name, or play its episodes yourself with gtrxl_jax.load"
        )
    loaded = with_evaluation(
        loaded, episodes=episodes, actions=actions or loaded.config.evaluation.actions
    )
    play = jax.jit(loaded.evaluate) if loaded.is_jitted else loaded.evaluate
    keys = jax.random.split(jax.random.key(seed), len(loaded.params_per_seed))
    played = [play(params, key) for params, key in zip(loaded.params_per_seed, keys, strict=True)]
    found = {
        name: np.stack([np.asarray(one[name], np.float64) for one in played]) for name in played[0]
    }
    # Seeds that diverged have no score, as in the run's own evaluations.
    diverged_S = np.array([not is_finite(params) for params in loaded.params_per_seed])
    scores = require_no_faults(found, loaded.environment[0], diverged_S)
    for score_SE in scores.values():
        score_SE[diverged_S] = np.nan
    return scores_of(scores, equal=not loaded.sampled), loaded


def with_evaluation(loaded: Loaded, **settings: Any) -> Loaded:
    """Return the run with other settings of its evaluations, see `EvaluationConfig`."""
    return _with_config(
        loaded, evaluation=dataclasses.replace(loaded.config.evaluation, **settings)
    )


def with_settings(
    loaded: Loaded,
    *,
    env: str = "",
    params: Mapping[str, Any] | None = None,
    memory_size: int | None = None,
    target_return: float | None = None,
    forget: int = 0,
) -> Loaded:
    """Return a run with other settings, to evaluate its agent with them.

    Args:
      loaded: the run.
      env: name of another environment, with the same observations and actions.
      params: parameters of the environment; the rest are as in the run, unless `env` is another
        one.
      memory_size: the core's number of memories, if its parameters do not depend on it.
      target_return: the return on which a sequence model is conditioned.
      forget: number of steps of an episode after which an online agent forgets all before, again
        and again; 0: never.

    Raises:
      ValueError: if the run has no such setting, or its agent does not fit.
    """
    config = loaded.config
    if target_return is not None:
        if not hasattr(config.evaluation, "target_return"):
            raise ValueError("evaluation.target_return is a setting of offline runs: omit it")
        if not config.reads_returns:
            raise ValueError(
                "evaluation.target_return has no effect on a run of algorithm.name "
                f"{config.algorithm.name} with model.name {config.model.name}: omit it"
            )
        loaded = with_evaluation(loaded, target_return=target_return)
    if memory_size is not None:
        core: Any = getattr(config, "core", None)
        if not hasattr(core, "memory_size"):
            owner = f"core {core.name}" if core else f"model {config.model.name}"
            raise ValueError(f"{owner} has no setting memory_size: omit core.memory_size")
        loaded = _with_config(loaded, core=dataclasses.replace(core, memory_size=memory_size))
        require_same_arrays(
            "the run",
            by_name(loaded.params),
            by_name(jax.eval_shape(loaded.trainer.init, 0).params),
            f"omit core.memory_size, on which the parameters of core {core.name} depend",
            convert=True,
        )
    if forget:
        require_count("forget", forget)
        if hasattr(config.evaluation, "target_return"):
            raise ValueError("forget is a setting of online runs: omit it")
    loaded = dataclasses.replace(loaded, forget=forget)
    if env or params:
        other_env = environment_for(loaded, env, params or {})
        loaded = dataclasses.replace(loaded, other_env=other_env)
    return loaded


def environment_for(loaded: Loaded, name: str, params: Mapping[str, Any]) -> EvaluationEnv:
    """Create an environment in which the agent of a run can act.

    Args:
      loaded: the run.
      name: name of the environment; the run's if empty.
      params: its parameters; the rest are as in the run, if it is the run's environment.

    Raises:
      ValueError: if there is no name, also where the run has `env.tasks`, or its observations or
        actions differ from the run's; see also `make_env`.
    """
    trainer = loaded.trainer
    if not name and (tasks := getattr(loaded.config.env, "tasks", ())):
        # With tasks, env.name and env.params alone need not describe any environment of the run.
        raise ValueError(
            f"the run has {len(tasks)} env.tasks: name one environment with env.name, and its "
            "parameters with env.params"
        )
    own_name, own_params = trainer.environment
    if name in ("", own_name):
        # An offline run derives the parameters that it was not given from the training length. Its
        # time limit does not suit another length.
        by_length = own_params.keys() - loaded.config.env.params.keys()
        if by_length & params.keys():
            derived = by_length & {"max_steps_in_episode"}
            own_params = {k: v for k, v in own_params.items() if k not in derived}
        name, params = own_name, {**own_params, **params}
    if not name:
        raise ValueError("env.name must be given, since the run was trained without an environment")
    stream: AnyTask
    if is_host_env(name):
        wrappers = getattr(loaded.config.env, "wrappers", {})
        stream = HostStream((HostEnv(name, params, wrappers),), 1)
    else:
        stream = require_consistent_env(Stream(*make_env(name, **params), 1))
    for what, spec in (("observation", observation_spec), ("action", action_spec)):
        here, there = (spec(getattr(one, f"{what}_space")) for one in (stream, trainer))
        if here != there:
            overrides = ", ".join(f"{field} {value}" for field, value in params.items())
            raise ValueError(
                f"env.name {name}{' with ' * bool(params)}{overrides} has other {what}s than the "
                "environment in which the agent was trained: use one with the same, or an agent of "
                "one task"
            )
    return EvaluationEnv(name, dict(params), stream)


def _with_config(loaded: Loaded, **fields: Any) -> Loaded:
    trainer = type(loaded.trainer)(dataclasses.replace(loaded.config, **fields))
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
    config, (environment, params) = loaded.config, loaded.environment
    evaluation, core = config.evaluation, getattr(config, "core", None)
    tasks = () if loaded.other_env or not core else config.env.tasks
    settings = {
        "memory_size": getattr(core, "memory_size", None),
        "target_return": getattr(evaluation, "target_return", None),
    }
    record = provenance() | {
        "step": loaded.step,
        "best": best,
        "episodes": evaluation.episodes,
        "actions": evaluation.actions,
        "seed": seed,
        "environment": environment,
        "params": params,
        **({"tasks": tasks} if tasks else {}),
        **{name: value for name, value in settings.items() if value is not None},
        **({"forget": loaded.forget} if loaded.forget else {}),
        "evaluation": {name: score.record for name, score in scores.items()},
    }
    append_line(path, json.dumps(json_value(record), allow_nan=False))
    return path
