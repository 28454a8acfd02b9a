"""The state of an online run."""

from typing import Any

from flax import struct
from jaxtyping import Array, Int, Key

from gtrxl_jax.envs.multitask import MultiTaskState
from gtrxl_jax.online.algorithm import LearnerState
from gtrxl_jax.parallel.placement import batch_field
from gtrxl_jax.timestep import TimeStep


@struct.dataclass
class TrainState:
    """The complete state of a run, sufficient to resume it.

    Attributes:
      learner: what learning changes, with the agent's parameters.
      key: PRNG key of the run; update n uses `fold_in(key, n)`.
      update: int, number of completed updates.
      stream: state of the environments.
      timestep: `[B]`, the current time step of each environment.
      memory: memory of the core before `timestep`.
    """

    learner: LearnerState
    key: Key[Array, ""]
    update: Int[Array, ""]
    stream: MultiTaskState = batch_field()
    timestep: TimeStep = batch_field()
    memory: Any = batch_field()

    @property
    def params(self) -> Any:
        """The agent's parameters."""
        return self.learner.params
