"""Memory Retention Valves: how RATE's memory tokens change from one segment to the next.

RATE (arXiv 2306.09459), section 3, equations 3 to 6, and appendix E. A valve takes the memory M_n
that a segment started with and the outputs M~ at the segment's write tokens, and returns M_{n+1}.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float

from gtrxl_jax.nn.cores.recurrent import LSTMCell, orthogonal
from gtrxl_jax.nn.layers import square_products
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.validation import require_choice


@struct.dataclass
class MemoryTokens:
    """The state of a valve.

    Attributes:
      tokens: M_n, M memory tokens.
      cell: the cell state of the LSTM valve; None for the others.
    """

    tokens: Float[Array, "B M D"]
    cell: Float[Array, "B M D"] | None = None


class Valve(nn.Module):
    """Base class of the valves M_{n+1} = valve(M_n, M~), with arrays `[B, m, D]`.

    Attributes:
      heads: number of attention heads in the valves that attend; it must divide the width.
      bias: b of the gated valve, a constant.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    heads: int = 2
    bias: float = 2.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def initial(self, tokens_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        """Return the state at the start of an episode with the memory `tokens_BMD`."""
        return MemoryTokens(tokens_BMD)

    def product(self, x: Float[Array, "... D"], count: int, name: str) -> list[Array]:
        return square_products(x, count, name, dtype=self.dtype, param_dtype=self.param_dtype)

    def report(self, weights_BHMK: Float[Array, "B H M K"]) -> None:
        """Report the weights with which each token was made."""
        if not self.is_initializing():
            self.sow("valve", "weights", weights_BHMK)

    def attend(
        self, query_BMD: Float[Array, "B M D"], source_BMD: Float[Array, "B M D"]
    ) -> Float[Array, "B M D"]:
        """Apply W_O to the concatenated heads softmax(Q K' / sqrt(K)) V; there is no residual."""
        (q_BMD,) = self.product(query_BMD, 1, "query")
        k_BMD, v_BMD = self.product(source_BMD, 2, "key_value")
        *lead, width = q_BMD.shape
        head_width = width // self.heads
        q, k, v = (x.reshape(*lead, self.heads, head_width) for x in (q_BMD, k_BMD, v_BMD))
        scores = jnp.einsum("bqhk,bmhk->bhqm", q * head_width**-0.5, k)
        weights = jax.nn.softmax(scores.astype(at_least_float32(scores.dtype)))
        self.report(weights)
        out = jnp.einsum("bhqm,bmhk->bqhk", weights.astype(v.dtype), v)
        return self.product(out.reshape(*lead, width), 1, "output")[0]


class CrossAttentionValve(Valve):
    """CA-2, the paper's choice: queries from the old memory, keys and values from ReLU(M~)."""

    @nn.compact
    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        return MemoryTokens(self.attend(memory.tokens, nn.relu(written_BMD)))


class ReversedCrossAttentionValve(Valve):
    """CA-1: queries from M~, keys and values from the old memory.

    Unlike in CA-2, M~ passes no ReLU. The sources leave this open; a ReLU before W_Q would only
    restrict the queries.
    """

    @nn.compact
    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        return MemoryTokens(self.attend(written_BMD, memory.tokens))


class GatedValve(Valve):
    """G: (1 - z) M_n + z h, GTrXL's GRU gate with the roles of appendix E.

    r = sigmoid(M_n W_r + M~ U_r);  z = sigmoid(M_n W_z + M~ U_z - b);
    h = tanh(M_n W_g + (M~ * r) U_g).
    """

    @nn.compact
    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        w_r, w_z, w_g = self.product(memory.tokens, 3, "memory")
        u_r, u_z = self.product(written_BMD, 2, "written")
        opening = nn.sigmoid(w_z + u_z - self.bias)
        self.report(jnp.mean(opening, axis=-1)[:, None, :, None])
        (u_g,) = self.product(nn.sigmoid(w_r + u_r) * written_BMD, 1, "reset_written")
        return MemoryTokens((1 - opening) * memory.tokens + opening * jnp.tanh(w_g + u_g))


class GRUValve(Valve):
    """A GRU cell on each token (Cho et al. 2014), with input M~ and the memory as hidden state."""

    @nn.compact
    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        cell = nn.GRUCell(
            written_BMD.shape[-1],
            recurrent_kernel_init=orthogonal,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="cell",
        )
        return MemoryTokens(cell(memory.tokens, written_BMD)[0])


class LSTMValve(Valve):
    """An LSTM cell on each token (Hochreiter and Schmidhuber 1997), with its own cell state."""

    def initial(self, tokens_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        """Return the state at the start of an episode, with a cell state of zero."""
        return MemoryTokens(tokens_BMD, jnp.zeros_like(tokens_BMD))

    @nn.compact
    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        width = written_BMD.shape[-1]
        lstm = LSTMCell(width, dtype=self.dtype, param_dtype=self.param_dtype, name="cell")
        assert memory.cell is not None
        (cell, tokens), _ = lstm((memory.cell, memory.tokens), written_BMD)
        return MemoryTokens(tokens, cell)


class NoValve(Valve):
    """No valve: M_{n+1} = M~."""

    def __call__(self, memory: MemoryTokens, written_BMD: Float[Array, "B M D"]) -> MemoryTokens:
        return MemoryTokens(written_BMD)


VALVES: dict[str, type[Valve]] = {
    "ca-2": CrossAttentionValve,
    "ca-1": ReversedCrossAttentionValve,
    "g": GatedValve,
    "gru": GRUValve,
    "lstm": LSTMValve,
    "none": NoValve,
}


def make_valve(name: str, heads: int, dtype: Any, param_dtype: Any) -> Valve:
    """Return the valve called `name`."""
    valve = VALVES[require_choice("valve", name, VALVES)]
    return valve(heads=heads, dtype=dtype, param_dtype=param_dtype)
