"""The contract of memory cores: what an agent requires of its memory."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.inputs import check_inputs
from gtrxl_jax.plugins import Registry
from gtrxl_jax.validation import choice

DTYPES = ("float32", "bfloat16")

Memory = Any
Cache = Any


class MemoryCore(nn.Module, abc.ABC, kw_only=True):
    """A recurrent module with a form for learning and a form for acting.

        memory = core.initial_memory(batch_size)
        memory, y_BTD = core.apply(params, memory, x_BTD, first_BT)              learn: a segment
        cache = core.apply(params, memory, num_steps, method="start")            act: step by step
        cache, y_BD = core.apply(params, cache, x_BD, first_B, method="step")
        memory = core.apply(params, cache, method="finish")

    A core implements `initial_memory` and `step`. One whose segment form is more than a scan of
    steps overrides `__call__`; one that computes something once for fixed parameters overrides
    `start` and `finish`. Agents, trainers and tests know nothing else of a core, and
    `gtrxl_jax.testing.check_core` checks that it keeps the contract:

      1. Acting equals learning: T steps give the outputs and the memory of the segment call, for
         any T, any cut of a sequence into segments, and any pattern of `first`.
      2. Where `first` is set, outputs from there on are those of a fresh memory, with zero gradient
         to anything before. A trained initial state is a parameter that takes effect there.
      3. y_t does not depend on x_s for s > t, and no gradient enters the incoming memory.
      4. A fresh memory has the effect of `first`: what was never written has no influence.
      5. A step multiplies no memory by a parameter: `start` has projected it once.
      6. It works under jit, vmap, scan, grad and remat, in bfloat16, and with a sharded batch.

    Memories and caches are pytrees of arrays; the leading axis of a memory's arrays is the batch.

    What a core has to say about itself it sows, wherever in its modules:

      self.sow("metrics", name, scalar)       logged as core/PATH/NAME, averaged over steps
      self.sow("losses", name, scalar)        added to the loss, an auxiliary objective
      self.sow("attention", name, w_BHTW)     weights on the W - 1 steps before each step, oldest
                                              first, and on itself; plotted layer by layer

    Attributes:
      width: D, of the inputs and the outputs.
      remat: compute activations again in the backward pass instead of keeping them.
      dtype: of the activations and the memory; None follows the inputs.
      param_dtype: of the parameters.
    """

    width: int
    remat: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @abc.abstractmethod
    def initial_memory(self, batch_size: int) -> Memory:
        """Return the memory before anything has been seen; it needs no parameters."""

    @abc.abstractmethod
    def step(
        self, cache: Cache, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[Cache, Float[Array, "B D"]]:
        """Act on one step of features; `first_B` marks those that begin an episode."""

    def __call__(
        self, memory: Memory, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[Memory, Float[Array, "B T D"]]:
        """Run a segment, as in learning; here by a scan of `step`."""
        batch = len(jax.tree.leaves(memory)[0])
        check_inputs(x_BTD, first_BT, batch, self.width, "B T D")

        def step(core: "MemoryCore", memory: Memory, x_BD: Array, first_B: Array) -> Any:
            return core.step(memory, x_BD, first_B)

        scan = nn.scan(
            nn.remat(step) if self.remat else step,
            variable_broadcast="params",
            variable_axes={"metrics": 0, "losses": 0},
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        return scan(self, jax.lax.stop_gradient(memory), x_BTD, first_BT)

    def start(self, memory: Memory, num_steps: int | None = None) -> Cache:
        """Start acting, with parameters that stay fixed until `finish`.

        Args:
          memory: to act from.
          num_steps: the most steps before `finish`; None for any number. Fewer may save memory.
        """
        del num_steps
        return memory

    def finish(self, cache: Cache) -> Memory:
        """End acting: return the memory that the segment form would have left."""
        return cache


@dataclasses.dataclass(frozen=True)
class CoreConfig(abc.ABC):
    """Settings that every core has. A core's own config adds its own, and builds it."""

    name: str = ""
    """A registered name, or package.module:Name, the config of a core of your own."""
    layers: int = 2
    """Number of layers."""
    width: int = 64
    """Width of the inputs and the outputs, D."""
    remat: bool = False
    """Recompute activations in the backward pass instead of storing them."""
    dtype: str = choice("float32", DTYPES)
    """Dtype of the activations and the memory: float32 or bfloat16. Parameters are float32."""

    @abc.abstractmethod
    def make(self) -> MemoryCore:
        """Build the core."""

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that `MemoryCore` itself has."""
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        return {"width": self.width, "remat": self.remat, "dtype": dtype}

    @staticmethod
    def named(name: str = "gtrxl") -> type["CoreConfig"]:
        """Return the config class of a core's name.

        Raises:
          ValueError: the name is unknown, or its module is not imported.
        """
        return CORES.find(name)


CORES = Registry("core.name", CoreConfig)
"""The config of each registered core."""


def register_core(name: str, config: type[CoreConfig]) -> None:
    """Add a core by its config, for `make_core` and the command line; see `Registry.register`."""
    CORES.register(name, config)
