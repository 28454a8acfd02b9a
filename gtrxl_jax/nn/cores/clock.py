"""A core that also gets the time: the number of steps since the start of the episode."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.core import MemoryCore, require_inputs
from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.ops.attention import sinusoids
from gtrxl_jax.ops.recurrence import steps_of_episode


@struct.dataclass
class Clocked:
    """The memory, or the cache, of a `ClockedCore`.

    Attributes:
      time: number of steps of the running episode so far.
      inner: the memory, or the cache, of the core inside.
    """

    time: Int[Array, " B"]
    inner: Any


class ClockedCore(MemoryCore):
    """A core with the step of the episode, t = 0, 1, ..., added to its inputs.

        x'_t = x_t + W Phi(t)

    Phi are sinusoids (Vaswani et al. 2017, section 3.5). Attention with relative positions knows
    how long ago a step was, but not when the present one is. A task in which the distance to what
    has to be remembered depends on the time, such as reciting a sequence backwards, requires both.

    Attributes:
      core: the core inside. It has the width and precision of this one.
    """

    core: MemoryCore

    def setup(self) -> None:
        self.inner = self._core()
        # Parameters and metrics keep the names that they have without a clock.
        nn.share_scope(self, self.inner)
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.of_time = Dense(self.width, use_bias=False, **precision)

    def initial_memory(self, batch_size: int) -> Clocked:
        """Return the core's initial memory, at time 0."""
        return Clocked(jnp.zeros(batch_size, jnp.int32), self._core().initial_memory(batch_size))

    def __call__(
        self, memory: Clocked, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[Clocked, Float[Array, "B T D"]]:
        """Process a segment, as in learning."""
        require_inputs(x_BTD, first_BT, len(memory.time), self.width, "B T D")
        time_BT = steps_of_episode(memory.time, first_BT) - 1
        inner, y_BTD = self.inner(memory.inner, self._at(time_BT, x_BTD), first_BT)
        return Clocked(time_BT[:, -1] + 1, inner), y_BTD

    def start(self, memory: Clocked, num_steps: int | None = None) -> Clocked:
        """Start acting from a memory. For `num_steps`, see the core inside."""
        return Clocked(memory.time, self.inner.start(memory.inner, num_steps))

    def step(
        self, cache: Clocked, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[Clocked, Float[Array, "B D"]]:
        """Process one step."""
        require_inputs(x_BD, first_B, len(cache.time), self.width, "B D")
        time_B = jnp.where(first_B, 0, cache.time)
        inner, y_BD = self.inner.step(cache.inner, self._at(time_B, x_BD), first_B)
        return Clocked(time_B + 1, inner), y_BD

    def finish(self, cache: Clocked) -> Clocked:
        """Finish acting; return the memory."""
        return Clocked(cache.time, self.inner.finish(cache.inner))

    def _core(self) -> MemoryCore:
        return self.core.clone(
            parent=None,
            width=self.width,
            remat=self.remat,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

    def _at(self, time: Int[Array, "*B"], x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Return the features with their times."""
        # Not in the precision of the inputs, since bfloat16 has no odd numbers above 256.
        phases = sinusoids(time.ravel(), self.width, self.param_dtype).reshape(x.shape)
        signal = self.of_time(phases)
        return x.astype(signal.dtype) + signal


def with_clock(core: MemoryCore) -> ClockedCore:
    """Return a core whose inputs include the time in the episode."""
    return ClockedCore(
        core=core,
        width=core.width,
        remat=core.remat,
        dtype=core.dtype,
        param_dtype=core.param_dtype,
    )
