"""What an online run carries, and what its environments hand to its learner."""

from typing import Any

import optax
from flax import struct
from jaxtyping import Array, Int, Key

from gtrxl_jax.envs.multitask import MultiTaskState
from gtrxl_jax.envs.stream import EpisodeStats
from gtrxl_jax.online.hyperparameters import Hyperparameters
from gtrxl_jax.ops import popart
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class TrainState:
    """All of a run: saving it is saving the run.

    Attributes:
      trainable: {"params": the online parameters, "multipliers": `Multipliers`}.
      target: the target network's parameters, which act.
      optimiser: optax's state for `trainable`.
      popart: statistics of each task's returns; without PopArt they stay at mean 0, variance 1.
      stream: the environments.
      timestep: `[B]`, where the environments stand.
      memory: the core's, before `timestep`.
      key: of this run; update n uses `fold_in(key, n)`.
      update: int, updates made.
      hyperparameters: see there.
    """

    trainable: dict[str, Any]
    target: Any
    optimiser: optax.OptState
    popart: popart.PopArtStatistics
    stream: MultiTaskState
    timestep: TimeStep
    memory: Any
    key: Key[Array, ""]
    update: Int[Array, ""]
    hyperparameters: Hyperparameters

    @property
    def params(self) -> Any:
        """The online network's parameters."""
        return self.trainable["params"]


@struct.dataclass
class Rollout:
    """T steps of B environments.

    Attributes:
      timesteps: `[B, T + 1]`, the bootstrap step included.
      actions: `[B, T]`, as the policy drew them: `timesteps.action` has what the environments were
        given, see `environment_action`.
      policy: `[B, T]`, the target's distributions.
      episodes: `[B, T]`, statistics on arriving at steps 1 .. T.
    """

    timesteps: TimeStep
    actions: Any
    policy: Any
    episodes: EpisodeStats
