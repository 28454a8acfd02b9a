"""LSTM and GRU as memory cores, behind the same contract as the transformers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key

from gtrxl_jax.nn.inputs import check_inputs

Carry = Any


def orthogonal(
    key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32
) -> Float[Array, "..."]:
    """A random orthogonal matrix (Saxe et al. 2014), drawn one after another under vmap.

    On CPU a batched QR waits, on a thread of XLA's pool, for tasks that it puts into that pool.
    Several at a time, those of a cell's gates, occupy all threads and wait for ever.
    """
    draw = jax.nn.initializers.orthogonal()
    return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)


class LSTMCell(nn.Module):
    """An LSTM cell (Hochreiter and Schmidhuber 1997) whose forget gate begins open.

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f c + i g,  h' = o tanh c'

    Each of the four has its own W, U and b, side by side in `input/kernel`, `hidden/kernel` and
    `hidden/bias`, in the order i, f, g, o. The bias of f begins at 1 (Gers et al. 2000; Jozefowicz
    et al. 2015): at 0 a cell halves what it holds at every step, and with it the gradient to a cue
    long ago.
    """

    features: int
    recurrent_kernel_init: Any = orthogonal
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, carry: tuple[Float[Array, "B D"], Float[Array, "B D"]], x_BD: Float[Array, "B D"]
    ) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Float[Array, "B D"]]:
        """One step: the new carry (c', h'), and h'."""

        def kernel_init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            draws = jax.random.split(key, 4)
            square = (shape[0], shape[1] // 4)
            kernels = [self.recurrent_kernel_init(key, square, dtype) for key in draws]
            return jnp.concatenate(kernels, axis=1)

        def bias_init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            del key
            return jnp.zeros(shape, dtype).at[self.features : 2 * self.features].set(1)

        def dense(**settings: Any) -> nn.Dense:
            precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
            return nn.Dense(4 * self.features, **precision, **settings)

        cell_BD, hidden_BD = carry
        from_input = dense(use_bias=False, name="input")(x_BD)
        from_hidden = dense(kernel_init=kernel_init, bias_init=bias_init, name="hidden")(hidden_BD)
        i, f, g, o = jnp.split(from_input + from_hidden, 4, axis=-1)
        cell_BD = nn.sigmoid(f) * cell_BD + nn.sigmoid(i) * jnp.tanh(g)
        hidden_BD = nn.sigmoid(o) * jnp.tanh(cell_BD)
        return (cell_BD, hidden_BD), hidden_BD


CELLS = {"lstm": LSTMCell, "gru": nn.GRUCell}


class RecurrentCore(nn.Module):
    """A stack of LSTM or GRU layers (Hochreiter and Schmidhuber 1997; Cho et al. 2014).

    The memory is a tuple with the carry of each layer, arrays `[B, D]`. A first step begins from
    zeros. `start` and `finish` are the identity: nothing here depends on the parameters alone.

    Attributes:
      cell: "lstm" or "gru".
      layers: L.
      width: D, of the inputs, the outputs and the hidden states.
      remat: compute each layer's activations again in the backward pass instead of keeping them.
      dtype: of the activations; None follows the inputs.
      param_dtype: of the parameters.
    """

    cell: str
    layers: int
    width: int
    remat: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

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
        """The carries of a new episode, all zero."""
        zeros = jnp.zeros((batch_size, self.width), self.dtype or self.param_dtype)
        return tuple((zeros, zeros) if self.cell == "lstm" else zeros for _ in range(self.layers))

    def __call__(
        self, memory: tuple[Carry, ...], x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[tuple[Carry, ...], Float[Array, "B T D"]]:
        """A segment: the learner's form. No gradient enters the incoming memory."""
        check_inputs(x_BTD, first_BT, len(jax.tree.leaves(memory)[0]), self.width, "B T D")

        def step(core: "RecurrentCore", memory: Any, x_BD: Array, first_B: Array) -> Any:
            return core.step(memory, x_BD, first_B)

        scan = nn.scan(
            nn.remat(step) if self.remat else step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        return scan(self, jax.lax.stop_gradient(memory), x_BTD, first_BT)

    def start(self, memory: tuple[Carry, ...], num_steps: int | None = None) -> tuple[Carry, ...]:
        """Begin to act. `num_steps` is unused: a carry has one size."""
        del num_steps
        return memory

    def step(
        self, cache: tuple[Carry, ...], x_BD: Float[Array, "B D"], first_B: Bool[Array, " B"]
    ) -> tuple[tuple[Carry, ...], Float[Array, "B D"]]:
        """One step of acting."""
        check_inputs(x_BD, first_B, len(jax.tree.leaves(cache)[0]), self.width, "B D")
        x_BD = x_BD.astype(self.dtype or x_BD.dtype)
        carries = []
        for cell, carry in zip(self.cells, cache, strict=True):
            carry = jax.tree.map(lambda z: jnp.where(first_B[:, None], jnp.zeros_like(z), z), carry)
            carry, x_BD = cell(carry, x_BD)
            carries.append(carry)
        return tuple(carries), x_BD

    def finish(self, cache: tuple[Carry, ...]) -> tuple[Carry, ...]:
        """End acting."""
        return cache
