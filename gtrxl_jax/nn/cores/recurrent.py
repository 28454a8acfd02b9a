"""LSTM and GRU memory cores, with the same interface as the transformers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key

from gtrxl_jax.nn.core import CoreConfig, MemoryCore, require_inputs
from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.validation import choice

Carry = Any


def orthogonal(
    key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32
) -> Float[Array, "..."]:
    """Draw a random orthogonal matrix (Saxe et al. 2014), sequentially under vmap.

    On CPU a batched QR blocks a thread of XLA's pool while it waits for tasks that it submits to
    the same pool. Several at a time, as for a cell's gates, can occupy all threads and deadlock.
    """
    draw = jax.nn.initializers.orthogonal()
    return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)


class LSTMCell(nn.Module):
    """An LSTM cell (Hochreiter and Schmidhuber 1997) whose forget gate is initialized open.

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f c + i g,  h' = o tanh c'

    Each of the four has its own W, U and b, concatenated in `input/kernel`, `hidden/kernel` and
    `hidden/bias` in the order i, f, g, o. The bias of f is initialized to 1 (Gers et al. 2000;
    Jozefowicz et al. 2015): at 0 a cell would halve its state at every step, and with it the
    gradient to distant inputs.
    """

    features: int
    recurrent_kernel_init: Any = orthogonal
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, carry: tuple[Float[Array, "*B D"], Float[Array, "*B D"]], x: Float[Array, "*B F"]
    ) -> tuple[tuple[Float[Array, "*B D"], Float[Array, "*B D"]], Float[Array, "*B D"]]:
        """Run one step; return the new carry (c', h') and the output h'."""

        def kernel_init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            draws = jax.random.split(key, 4)
            square = (shape[0], shape[1] // 4)
            kernels = [self.recurrent_kernel_init(key, square, dtype) for key in draws]
            return jnp.concatenate(kernels, axis=1)

        def bias_init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.zeros(shape, dtype).at[self.features : 2 * self.features].set(1)

        def dense(**settings: Any) -> Dense:
            precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
            return Dense(4 * self.features, **precision, **settings)

        cell, hidden = carry
        from_input = dense(use_bias=False, name="input")(x)
        from_hidden = dense(kernel_init=kernel_init, bias_init=bias_init, name="hidden")(hidden)
        i, f, g, o = jnp.split(from_input + from_hidden, 4, axis=-1)
        cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
        hidden = nn.sigmoid(o) * jnp.tanh(cell)
        return (cell, hidden), hidden


CELLS = {"lstm": LSTMCell, "gru": nn.GRUCell}


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(CoreConfig):
    """Settings of LSTM and GRU."""

    name: str = choice("lstm", tuple(CELLS))
    """lstm or gru."""
    layers: int = 1
    """Number of layers, without residual connections."""

    def make(self) -> "RecurrentCore":
        return RecurrentCore(self.name, self.layers, **self.shared)


class RecurrentCore(MemoryCore):
    """A stack of LSTM or GRU layers (Hochreiter and Schmidhuber 1997; Cho et al. 2014).

    The memory is a tuple of the carry of each layer, arrays `[B, D]`. On the first step of an
    episode it is reset to zero. The hidden states have the core's width.

    Attributes:
      cell: "lstm" or "gru".
      layers: L, the number of layers.
    """

    cell: str
    layers: int

    def setup(self) -> None:
        self.cells = [
            CELLS[self.cell](
                self.width,
                recurrent_kernel_init=orthogonal,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            for _ in range(self.layers)
        ]

    def initial_memory(self, batch_size: int) -> tuple[Carry, ...]:
        """Return the carries of a new episode, all zero."""
        zeros = jnp.zeros((batch_size, self.width), self.dtype or self.param_dtype)
        return tuple((zeros, zeros) if self.cell == "lstm" else zeros for _ in range(self.layers))

    def step(
        self, cache: tuple[Carry, ...], x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[tuple[Carry, ...], Float[Array, "B D"]]:
        require_inputs(x_BD, first_B, len(jax.tree.leaves(cache)[0]), self.width, "B D")
        # The memory has this dtype, and keeps it whatever the dtype of the inputs.
        x_BD = x_BD.astype(self.dtype or self.param_dtype)
        carries = []
        for cell, carry in zip(self.cells, cache, strict=True):
            carry = jax.tree.map(lambda z: jnp.where(first_B[:, None], jnp.zeros_like(z), z), carry)
            carry, x_BD = cell(carry, x_BD)
            carries.append(carry)
        return tuple(carries), x_BD
