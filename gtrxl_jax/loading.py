"""What a run has learned, taken from its folder, to act or to be evaluated.

run = gtrxl_jax.load("runs/mine")
state = run.start(batch_size=8)
state, action = run.act(state, timestep, key)      as often as there are time steps
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online import config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops.distributions import choose
from gtrxl_jax.runs.config.serialization import kind_of
from gtrxl_jax.runs.directory import Folder, load_config, require_version
from gtrxl_jax.runs.restoring import params_of
from gtrxl_jax.runs.scores import Score, scores_of
from gtrxl_jax.runs.trainer import Trainer
from gtrxl_jax.specs import environment_action
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

TRAINERS: dict[str, Callable[[str], Trainer]] = {
    "online": lambda text: OnlineTrainer(config.from_json(text)),
    "offline": lambda text: OfflineTrainer(offline_config.from_json(text)),
}
"""From a run's config.json to its trainer, by the kind of the run."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a run has learned so far.

    Attributes:
      trainer: what is trained, with its config and its agent.
      params_per_seed: the trained network's parameters for each seed.
      step: of the checkpoint that they are from.
      drawn: the settings that were drawn for each seed, by name, `[S]`.
    """

    trainer: Any
    params_per_seed: list[Any]
    step: int
    drawn: dict[str, list[float]]

    @property
    def config(self) -> Any:
        """The run's."""
        return self.trainer.config

    @property
    def agent(self) -> Any:
        """The run's, a Flax module: its outputs are `agent.apply({"params": params}, ...)`."""
        return self.trainer.agent

    @property
    def params(self) -> Any:
        """The trained network's parameters; of several seeds those of the first."""
        return self.params_per_seed[0]

    def start(self, batch_size: int) -> Any:
        """The state of acting before the first time step of B environments."""
        return self.trainer.player.start(self.params, batch_size)

    def act(self, state: Any, timestep: TimeStep, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Act with `params` on a time step, by the policy of the run's evaluations.

        Args:
          state: from `start`, or from the last `act`.
          timestep: `[B]`; where it is the `first` of an episode, nothing is remembered.
          key: a new one each time.

        Returns:
          The state, and actions `[B]` in the layout of the environment.
        """
        return self._act(self.params, state, timestep, key)

    @functools.cached_property
    def _act(self) -> Any:
        player, space = self.trainer.player, self.trainer.action_space

        def act(params: Any, state: Any, timestep: TimeStep, key: Any) -> tuple[Any, Any]:
            state, distribution = player.step(params, state, timestep)
            action = choose(distribution, self.config.evaluation.policy, key)
            action = environment_action(space, action)
            return player.observe_action(params, state, action), action

        return jax.jit(act)


def load(folder: Folder, *, best: bool = False) -> Loaded:
    """What a run has learned, up to its newest checkpoint, or to its best.

    Args:
      folder: the run; it may be going on.
      best: the checkpoint that is the best by the config's `checkpoint.best`.

    Raises:
      FileNotFoundError: the folder holds no run, or no checkpoint.
      ValueError: the run is of a newer version of this library, or of another architecture; or no
        checkpoint is the best.
      UnusableError: no checkpoint is as the run wrote it.
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
      folder: the run.
      episodes: how many for each of its seeds.
      policy: mode or sample; the run's own if empty.
      seed: of the episodes.
      best: take the best checkpoint, not the newest.

    Returns:
      The scores by name, and what was evaluated.
    """
    loaded = load(folder, best=best)
    settings = loaded.trainer.config.evaluation
    settings = dataclasses.replace(settings, episodes=episodes, policy=policy or settings.policy)
    trainer = type(loaded.trainer)(dataclasses.replace(loaded.config, evaluation=settings))
    play = jax.jit(trainer.evaluate)
    keys = jax.random.split(jax.random.key(seed), len(loaded.params_per_seed))
    played = [play(params, key) for params, key in zip(loaded.params_per_seed, keys, strict=True)]
    scores = {
        name: np.stack([np.asarray(one[name], np.float64) for one in played]) for name in played[0]
    }
    return scores_of(scores, equal=not loaded.drawn), dataclasses.replace(loaded, trainer=trainer)
