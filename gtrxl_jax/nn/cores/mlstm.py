"""mLSTM, the LSTM with a matrix memory of xLSTM (Beck et al. 2024)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.core import resolve_head_width
from gtrxl_jax.nn.cores.stack import RecurrentLayer, StackConfig
from gtrxl_jax.ops.linear_attention import MatrixMemory, empty_memory, linear_attention
from gtrxl_jax.validation import choice


@dataclasses.dataclass(frozen=True)
class MLSTMConfig(StackConfig):
    """Settings of mLSTM."""

    name: str = choice("mlstm", ("mlstm",))
    """mlstm."""
    heads: int = 4
    """Heads, each with a matrix memory, H."""
    head_width: int | None = None
    """Width of a head, K; width / heads if not given."""

    def check(self) -> None:
        """Raise ValueError where the heads do not divide the width."""
        resolve_head_width(self)

    def make_layer(self, **shared: Any) -> "MLSTMLayer":
        return MLSTMLayer(config=self, **shared)


class MLSTMLayer(RecurrentLayer):
    """An mLSTM (Beck et al. 2024, xLSTM, equations 19 to 27), stabilized.

    For each head, with q, v = W x + b, k = (W x + b) / sqrt(K), and scalar gates i = exp(w x + b),
    f = sigmoid(w x + b):

        C_t = f_t C_{t-1} + i_t v_t k_t^T,  n_t = f_t n_{t-1} + i_t k_t
        h_t = sigmoid(W_o x + b_o) * C_t q_t / max(|n_t^T q_t|, 1)

    C and n are stored divided by exp(m), where m is the running maximum of the logarithms of their
    terms, and h does not depend on m. n is stored as another row of C, whose value is always 1. The
    biases of f are initialized evenly from 3 to 6, as in the authors' code. The layer is the
    recurrence alone: the paper's block also has a convolution, a norm of each head, and an
    up-projection around it. The state is C and n, transposed, `[B, H, K, K + 1]`, and m `[B, H]`.
    """

    config: MLSTMConfig

    def initial_state(self, batch_size: int) -> MatrixMemory:
        width = resolve_head_width(self.config)
        return empty_memory(batch_size, self.config.heads, width, width + 1, self.wide)

    @nn.compact
    def __call__(
        self, state: MatrixMemory, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[MatrixMemory, Float[Array, "B T D"]]:
        heads, width = self.config.heads, resolve_head_width(self.config)

        def by_head(z: Array) -> Array:
            return z.reshape(*x_BTD.shape[:2], heads, -1)

        def init_bias(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            opening = jnp.linspace(3, 6, heads, dtype=dtype)
            return jnp.concatenate([jnp.zeros(heads, dtype), opening])

        projected = self.dense(4 * heads * width, "input")(x_BTD)
        gates = self.dense(2 * heads, "gates", bias_init=init_bias)(x_BTD)
        q, k, v, out = map(by_head, jnp.split(projected, 4, axis=-1))
        log_input, forget = jnp.split(gates.astype(self.wide), 2, axis=-1)
        self.record_retention(nn.sigmoid(forget))
        q, k, v = (z.astype(self.wide) for z in (q, k / width**0.5, v))
        with_one = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
        state, y, log_scale = linear_attention(
            q, k, with_one, nn.log_sigmoid(forget), log_input, state, first_BT
        )
        total = jnp.maximum(jnp.abs(y[..., -1:]), jnp.exp(-log_scale)[..., None])
        h = nn.sigmoid(out) * (y[..., :-1] / total).astype(x_BTD.dtype)
        return state, self.dense(self.width, "output")(h.reshape(*x_BTD.shape[:2], -1))
