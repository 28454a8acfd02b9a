"""bsuite's memory chain of any length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.bsuite import memory_chain
from jaxtyping import Array, Bool, Float, UInt8

from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.worlds.base import Step, TimeLimit
from gtrxl_jax.worlds.cells import Cell, draw_cells, progress_bar


@struct.dataclass
class MemoryChainParams(memory_chain.EnvParams):
    """Parameters of the memory chain.

    Attributes:
      max_steps_in_episode: time limit in actions. None: no limit, since every episode ends after
        `memory_length + 1` actions. gymnax's default of 1000 would truncate longer chains before
        their only reward.
      memory_length: number of actions between the context and the query, at least 2: after one, the
        observation shows both.
    """

    max_steps_in_episode: int | None = None
    memory_length: int = struct.field(default=5, metadata={"minimum": 2})


class MemoryChain(TimeLimit, memory_chain.MemoryChain):
    """gymnax's MemoryChain (bsuite; Osband et al. 2020) with a corrected space and time limit.

    Rewards, observations and episode ends are gymnax's. The observation is
    `[1 - t / memory_length, query, context...]`. The context, -1 or +1 for each bit, is shown in
    the first two observations (gymnax's observation lags by one after the first); the query, the
    index of the requested bit, is shown at the end. The last of the `memory_length + 1` actions
    earns +1 for the requested bit and -1 otherwise; `info["success"]` is true for the former.

    Earlier actions have no effect, so that an agent which sees its previous action can repeat a bit
    in it until the end: a context of one bit needs no memory, and of three bits, the one that most
    of them are is the requested one in 3/4 of the episodes.
    """

    cue_at_start = True
    default_params = MemoryChainParams()
    """A chain of length 5."""

    def default_time_limit(self, params: MemoryChainParams) -> int | Array:
        return params.memory_length + 1

    def step_env(
        self, key: jax.Array, state: memory_chain.EnvState, action: Any, params: MemoryChainParams
    ) -> Step[Float[Array, " features"], memory_chain.EnvState]:
        """Take gymnax's step, and add `info["success"]`."""
        with standard_dtype_promotion():
            observation, state, reward, terminated, info = super().step_env(
                key, state, action, params
            )
        return observation, state, reward, terminated, {**info, "success": reward > 0}

    def reset_env(
        self, key: jax.Array, params: MemoryChainParams
    ) -> tuple[Float[Array, " features"], memory_chain.EnvState]:
        with standard_dtype_promotion():
            return super().reset_env(key, params)

    @property
    def name(self) -> str:
        """The name under which the environment is registered."""
        return "MemoryChain-v0"

    def observation_space(self, params: MemoryChainParams | None = None) -> spaces.Box:
        """Return the space: time in [0, 1], query in [0, bits - 1], context in [-1, 1].

        gymnax's own space bounds the context by 0 from below.
        """
        low = np.array([0, 0] + [-1] * self.num_bits, np.float32)
        high = np.array([1, self.num_bits - 1] + [1] * self.num_bits, np.float32)
        return spaces.Box(low, high, low.shape, jnp.float32)

    def shows_cue(
        self, state: memory_chain.EnvState, params: MemoryChainParams
    ) -> Bool[Array | np.ndarray, "*batch"]:
        """Return whether this is the first step; gymnax also shows the context on the second."""
        return state.time == 0

    def render(
        self, state: memory_chain.EnvState, params: MemoryChainParams
    ) -> UInt8[np.ndarray, "H W 3"]:
        """Draw the context (blue 1, orange 0; the query in red) and the time, on the host."""
        context = np.asarray(state.context)
        columns = max(12, self.num_bits + 2)
        cells = np.full((6, columns), Cell.WALL)
        cells[1, 1 : self.num_bits + 1] = np.where(context > 0, Cell.UP, Cell.DOWN)
        cells[2, 1 + int(state.query)] = Cell.AGENT
        spent = min(1.0, int(state.time) / (int(params.memory_length) + 1))
        cells[4, 1:-1] = progress_bar(spent, columns - 2)
        return draw_cells(cells, pixels=max(2, min(16, 512 // columns)))
