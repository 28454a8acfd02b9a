"""A custom memory core: exponential moving averages with trained time constants.

    cd examples
    gtrxl train --core.name custom_core:LeakyConfig --core.longest 100
    python custom_core.py    # checks the contract

A custom core subclasses `MemoryCore` and implements `initial_memory` and `step`. Its config defines
its settings, which become the command-line options --core.SETTING.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from gtrxl_jax.nn.core import CoreConfig, MemoryCore
from gtrxl_jax.testing import check_core
from gtrxl_jax.validation import number


@dataclasses.dataclass(frozen=True)
class LeakyConfig(CoreConfig):
    """Settings of `LeakyCore`."""

    name: str = "custom_core:LeakyConfig"
    longest: float = number(50.0, above=1)
    """Longest time constant at initialization, in steps."""

    def make(self) -> "LeakyCore":
        """Create the core."""
        return LeakyCore(layers=self.layers, longest=self.longest, **self.shared)


class LeakyCore(MemoryCore):
    """A stack of L layers: h' = a h + (1 - a) V x, y = x + W (h' * silu(U x)), 0 < a < 1.

    Attributes:
      layers: L, the number of layers.
      longest: longest time constant 1 / (1 - a) at initialization, in steps.
    """

    layers: int
    longest: float

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.inputs = [nn.Dense(2 * self.width, **precision) for _ in range(self.layers)]
        self.outputs = [nn.Dense(self.width, **precision) for _ in range(self.layers)]
        self.decay_logit = self.param("decay_logit", self._decays, (self.layers, self.width))

    def _decays(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Space the time constants logarithmically, from 2 steps to the longest."""
        constant = jnp.geomspace(2, max(2.1, self.longest), shape[-1], dtype=self.param_dtype)
        return jnp.broadcast_to(jnp.log(constant - 1), shape)

    def initial_memory(self, batch_size: int) -> jax.Array:
        """Return averages `[B, L, D]` of zero."""
        shape = (batch_size, self.layers, self.width)
        return jnp.zeros(shape, self.dtype or self.param_dtype)

    def step(
        self, cache: jax.Array, x_BD: jax.Array, first_B: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Reset the averages where an episode begins, update them, and compute the output."""
        cache = jnp.where(first_B[:, None, None], jnp.zeros_like(cache), cache)
        x_BD = x_BD.astype(cache.dtype)
        averages = []
        for layer in range(self.layers):
            value_BD, gate_BD = jnp.split(self.inputs[layer](x_BD), 2, axis=-1)
            decay_D = nn.sigmoid(self.decay_logit[layer]).astype(cache.dtype)
            average_BD = decay_D[None] * cache[:, layer] + (1 - decay_D)[None] * value_BD
            x_BD = x_BD + self.outputs[layer](average_BD * nn.silu(gate_BD))
            averages.append(average_BD)
            if not self.is_initializing():
                self.sow("metrics", f"decay_{layer}", jnp.mean(decay_D.astype(jnp.float32)))
        return jnp.stack(averages, axis=1), x_BD


if __name__ == "__main__":
    check_core(LeakyConfig(width=8).make())
    print("LeakyCore satisfies the contract.")
