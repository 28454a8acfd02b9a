"""A memory core in a model of `flax.nnx`: the bridge turns it into an NNX module.

core = make_core("gtrxl")
model = Model(core, num_features=8, num_outputs=4, rngs=nnx.Rngs(0))
memory, y_BTA = model(core.initial_memory(batch_size), x_BTF, first_BT)      a segment
cache = model.core.start(memory)                                             acting
cache, y_BD = model.core.step(cache, x_BD, first_B)
memory = model.core.finish(cache)
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.core import MemoryCore


class Model(nnx.Module):
    """A linear encoder, a memory core, and a linear head."""

    def __init__(self, core: MemoryCore, num_features: int, num_outputs: int, rngs: nnx.Rngs):
        # The core creates its parameters when it sees an example, of any batch size and length.
        example = core.initial_memory(1), jnp.zeros((1, 1, core.width)), jnp.ones((1, 1), bool)
        self.encoder = nnx.Linear(num_features, core.width, rngs=rngs)
        self.core = nnx.bridge.ToNNX(core, rngs).lazy_init(*example)
        self.head = nnx.Linear(core.width, num_outputs, rngs=rngs)

    def __call__(
        self, memory: Any, x_BTF: Float[Array, "B T F"], first_BT: Bool[Array, "B T"]
    ) -> tuple[Any, Float[Array, "B T A"]]:
        """Return the memory after a segment, and the outputs `[B, T, A]`."""
        memory, y_BTD = self.core(memory, self.encoder(x_BTF), first_BT)
        return memory, self.head(y_BTD)
