"""The state of an online run."""

from typing import Any

import optax
from flax import struct
from jaxtyping import Array, Int, Key

from gtrxl_jax.envs.multitask import MultiTaskState
from gtrxl_jax.online.hyperparameters import Hyperparameters
from gtrxl_jax.ops import popart
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class TrainState:
    """The complete state of a run, sufficient to resume it.

    Attributes:
      trainable: {"params": the online network's parameters, "multipliers": `Multipliers`}.
      target: parameters of the target network, which acts.
      optimiser: state of the optax optimiser of `trainable`.
      popart: statistics of each task's returns; mean 0 and variance 1 without PopArt.
      stream: state of the environments.
      timestep: `[B]`, the current time step of each environment.
      memory: memory of the core before `timestep`.
      key: PRNG key of the run; update n uses `fold_in(key, n)`.
      update: int, number of completed updates.
      hyperparameters: hyperparameters of the run.
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
