"""The interface and contract of memory cores, and their registry."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.custom import (
    describe_array,
    describe_part,
    is_custom,
    leaves_by_name,
    require_returned,
    require_same_shapes,
    wrap_errors,
)
from gtrxl_jax.plugins import Registry
from gtrxl_jax.validation import choice

DTYPES = ("float32", "bfloat16")

Memory = Any
Cache = Any


class MemoryCore(nn.Module, abc.ABC, kw_only=True):
    """A recurrent module with one form for learning and one for acting.

        memory = core.initial_memory(batch_size)
        memory, y_BTD = core.apply(params, memory, x_BTD, first_BT)              learning: a segment
        cache = core.apply(params, memory, num_steps, method="start")            acting: steps
        cache, y_BD = core.apply(params, cache, x_BD, first_B, method="step")
        memory = core.apply(params, cache, method="finish")

    A core implements `initial_memory` and `step`. It overrides `__call__` if its segment form is
    faster than a scan of `step`, and `start` and `finish` if it can precompute something while the
    parameters are fixed. Agents and trainers use no other methods. A core satisfies the following
    contract, which `gtrxl_jax.testing.check_core` checks:

      1. Acting equals learning: T steps return the outputs, their gradients and the memory of one
         segment, for any T, any division of a sequence into segments, and any pattern of `first`.
      2. `first` resets the memory: from there on, outputs are as from a fresh memory, with zero
         gradient to earlier steps. A trained initial state is a parameter that takes effect there.
         Rows of a batch are independent.
      3. y_t does not depend on x_s for s > t, and no gradient enters the incoming memory.
      4. A fresh memory has the same effect as `first`: unwritten memory has no influence.
      5. A step does not project the memory: `start` already has.
      6. It works under jit, vmap, scan, grad and remat, in bfloat16, and with a sharded batch.

    Memories and caches are pytrees of arrays; the leading axis of a memory's arrays is the batch.

    Any module of a core can report values by sowing them:

      self.sow("metrics", name, scalar)       logged as core/PATH/NAME, averaged over steps
      self.sow("losses", name, scalar)        an auxiliary loss, added to the loss of online
                                              algorithms
      self.sow("attention", name, w_BHTW)     weights on the W - 1 previous steps, oldest first,
                                              and on the step itself; plotted for each layer

    Attributes:
      width: D, the width of the inputs and the outputs.
      remat: whether to recompute activations in the backward pass instead of storing them.
      dtype: dtype of the activations and the memory. If None, the memory has that of the
        parameters, and activations that of the inputs or, in some recurrent cores, the memory's.
      param_dtype: dtype of the parameters.
    """

    width: int
    remat: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @abc.abstractmethod
    def initial_memory(self, batch_size: int) -> Memory:
        """Return the memory before the first step; requires no parameters."""

    @abc.abstractmethod
    def step(
        self, cache: Cache, x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[Cache, Float[Array, "B D"]]:
        """Process one step of features; `first_B` marks the starts of episodes."""

    def __call__(
        self, memory: Memory, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[Memory, Float[Array, "B T D"]]:
        """Process a segment, as in learning; by default, scan `step`."""
        parts = jax.tree.leaves(memory)
        batch = len(parts[0] if parts else x_BTD)
        require_inputs(x_BTD, first_BT, batch, self.width, "B T D")

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
        return scan(self, jax.lax.stop_gradient(self._cast(memory)), x_BTD, first_BT)

    def start(self, memory: Memory, num_steps: int | None = None) -> Cache:
        """Return a cache to act from, with parameters that stay fixed until `finish`.

        Args:
          memory: the memory before the first step.
          num_steps: maximum number of steps before `finish`, which may reduce the size of the
            cache; None if unlimited.
        """
        return self._cast(memory)

    def finish(self, cache: Cache) -> Memory:
        """Return the memory after acting, the same as from the segment form."""
        return cache

    def _cast(self, memory: Memory) -> Memory:
        """Return a memory in the core's dtypes, which one of another precision does not have."""
        if not (parts := jax.tree.leaves(memory)):
            return memory
        own = self.initial_memory(len(parts[0]))
        return jax.tree.map(lambda x, like: x.astype(like.dtype), memory, own)


def require_inputs(x: jax.Array, first: jax.Array, batch_size: int, width: int, axes: str) -> None:
    """Raise unless features and episode starts fit a core and its memory.

    Only shapes and dtypes are checked, so this costs nothing once compiled.

    Args:
      x: features.
      first: true where an episode begins.
      batch_size: B, the batch size of the memory.
      width: D, the width of the core.
      axes: expected axes of x, "B T D" for a segment or "B D" for a step.

    Raises:
      ValueError: if x does not have these axes, B and D, or is empty, or first does not have the
        shape of x without D.
      TypeError: if x is not floating, or first is not bool.
    """
    rank = len(axes.split())
    if x.ndim != rank:
        other = "`step` takes one step [B, D]" if rank == 3 else "a segment is for `__call__`"
        raise ValueError(f"x must be [{', '.join(axes.split())}], got shape {x.shape}: {other}")
    if x.shape[-1] != width:
        raise ValueError(
            f"x has shape {x.shape} but the core has width {width}: project the features to that "
            "width, for example with a Dense layer"
        )
    if not x.size:
        raise ValueError(f"x has shape {x.shape}: a core needs at least one row, and one step")
    if x.shape[0] != batch_size:
        raise ValueError(
            f"x has shape {x.shape} but the memory has {batch_size} rows: arrays are batch-major, "
            f"so check the axes of x, or start with {x.shape[0]} rows, by `initial_memory` of a "
            "core or an agent, or `init` of a policy or a loaded run"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"x must be floating, not {x.dtype}: encode or cast it, as by x.astype(jnp.float32)"
        )
    if first.shape != x.shape[:-1]:
        raise ValueError(
            f"first must have shape {x.shape[:-1]}, the shape of x without D; got: {first.shape}"
        )
    if first.dtype != jnp.bool_:
        raise TypeError(f"first must be bool, not {first.dtype}: true where an episode begins")


def require_consistent_core(core: MemoryCore) -> MemoryCore:
    """Return a core whose two forms keep the shapes of the memory. Compiles nothing.

    Only custom cores are checked; `gtrxl_jax.testing.check_core` checks the whole contract.

    Raises:
      ValueError: naming the class of the core, its file and line, and what it returns with another
        shape or dtype; or an error in its methods.
    """
    if not is_custom(core):
        return core
    batch, steps = 2, 3
    dtype = core.dtype or core.param_dtype
    x_BTD = jax.ShapeDtypeStruct((batch, steps, core.width), dtype)
    first_BT = jax.ShapeDtypeStruct((batch, steps), jnp.bool_)

    def check_returned(method: str, returned: Any, before: Any, axes: tuple[int, ...]) -> Any:
        name = "memory" if method == "__call__" else "cache"
        require_returned("core", core, method, returned, (name, "outputs"))
        after, y = returned
        where = describe_part("core", core, method)
        require_same_shapes(where, method, name, before, after)
        if getattr(y, "shape", None) != (*axes, core.width):
            raise ValueError(
                f"{where}: the outputs are {describe_array(y)} for inputs "
                f"{[*axes, core.width]}: return one vector of the core's width for each"
            )
        return after

    def acting(core: Any, x_BTD: Array, first_BT: Array) -> None:
        memory = core.initial_memory(batch)
        for leaf, value in leaves_by_name(memory=memory).items():
            if not jnp.shape(value) or len(value) != batch:
                raise ValueError(
                    f"{describe_part('core', core, 'initial_memory')}: "
                    f"{leaf} of initial_memory({batch}) is "
                    f"{describe_array(jnp.asarray(value))}: begin with the axis of the batch"
                )
        cache = core.start(memory, steps)
        check_returned("step", core.step(cache, x_BTD[:, 0], first_BT[:, 0]), cache, (batch,))

    def learning(core: Any, x_BTD: Array, first_BT: Array) -> None:
        memory = core.initial_memory(batch)
        check_returned("__call__", core(memory, x_BTD, first_BT), memory, (batch, steps))

    with wrap_errors("core", core):
        for form in (acting, learning):
            jax.eval_shape(nn.init(form, core), jax.random.key(0), x_BTD, first_BT)
    return core


@dataclasses.dataclass(frozen=True)
class CoreConfig(abc.ABC):
    """Settings of every core. The config of a core adds its own, and creates it."""

    name: str = ""
    """A registered name, or package.module:Name, the config of a custom core."""
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
        """Create the core."""

    @property
    def shared(self) -> dict[str, Any]:
        """The attributes that every `MemoryCore` has."""
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        return {"width": self.width, "remat": self.remat, "dtype": dtype}

    @staticmethod
    def named(name: str = "gtrxl") -> type["CoreConfig"]:
        """Return the config class of a core.

        Raises:
          ValueError: if the name is unknown, or its module has not been imported.
        """
        return CORES.find(name)


def resolve_head_width(config: Any) -> int:
    """Return a config's `head_width`, by default its width divided by the number of its heads.

    Raises:
      ValueError: if it is not given, and the heads do not divide the width.
    """
    if config.head_width is None and config.width % config.heads:
        raise ValueError(
            f"core.width {config.width} does not divide into core.heads {config.heads}: "
            "change one of them, or give core.head_width"
        )
    return config.head_width or config.width // config.heads


CORES = Registry("core.name", CoreConfig)
"""The config of each registered core."""


def register_core(name: str, config: type[CoreConfig]) -> None:
    """Register a core by its config; see `Registry.register`."""
    CORES.register(name, config)
