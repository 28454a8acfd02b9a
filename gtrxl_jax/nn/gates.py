"""The gating layers g(x, y) of GTrXL (Parisotto et al. 2019, section 3.2).

x is the stream and y the submodule's output. The bias b is a trained vector with one entry per
feature. As b grows, each gate that has one approaches the identity in x: the gated identity
initialization, b = 2 for GRU and 1 for the others in the paper. The parameters of a gate are b and
its matrices of width x width: 1, 1, 1, 2 and 6 in the order below.

Each gate records its mean opening in the collection "metrics": the sigmoid that scales y (for the
Input gate, the one that scales x).
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.nn.linear import square_products
from gtrxl_jax.validation import check_choice


class Gate(nn.Module):
    """A gate over the last axis: `[..., D], [..., D] -> [..., D]`.

    Attributes:
      initial_bias: initial value of all elements of b, which sets how close to the identity the
        gate starts.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    initial_bias: float = 1.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def matrices(self, x: Float[Array, "... D"], count: int, name: str) -> list[Array]:
        return square_products(x, count, name, dtype=self.dtype, param_dtype=self.param_dtype)

    def trained_bias(self, like: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return b with the dtype and rank of `like`."""
        width = like.shape[-1]
        initial = nn.initializers.constant(self.initial_bias)
        bias_D = self.param("bias", initial, (width,), self.param_dtype)
        return bias_D.astype(like.dtype).reshape((1,) * (like.ndim - 1) + (width,))

    def record(self, opening: Float[Array, "... D"]) -> None:
        if not self.is_initializing():
            self.sow("metrics", "opening", jnp.mean(opening.astype(jnp.float32)))


class Residual(nn.Module):
    """No gate: x + y, the residual connection of TrXL and TrXL-I."""

    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return x + y


class InputGate(Gate):
    """sigmoid(W x) * x + y, without a bias."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        keep = nn.sigmoid(w_x)
        self.record(keep)
        return keep * x + y


class OutputGate(Gate):
    """x + sigmoid(W x - b) * y."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        opening = nn.sigmoid(w_x - self.trained_bias(w_x))
        self.record(opening)
        return x + opening * y


class HighwayGate(Gate):
    """s * x + (1 - s) * y with s = sigmoid(W x + b)."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        (w_x,) = self.matrices(x, 1, "x")
        keep = nn.sigmoid(w_x + self.trained_bias(w_x))
        self.record(1 - keep)
        return keep * x + (1 - keep) * y


class SigTanhGate(Gate):
    """x + sigmoid(W y - b) * tanh(U y)."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        w_y, u_y = self.matrices(y, 2, "y")
        opening = nn.sigmoid(w_y - self.trained_bias(w_y))
        self.record(opening)
        return x + opening * jnp.tanh(u_y)


class GRUGate(Gate):
    """(1 - z) * x + z * h, a GRU in depth whose state is the stream.

    r = sigmoid(W_r y + U_r x);  z = sigmoid(W_z y + U_z x - b);  h = tanh(W_g y + U_g (r * x)).
    """

    initial_bias: float = 2.0

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], y: Float[Array, "... D"]) -> Float[Array, "... D"]:
        w_r, w_z, w_g = self.matrices(y, 3, "y")
        u_r, u_z = self.matrices(x, 2, "x")
        reset = nn.sigmoid(w_r + u_r)
        opening = nn.sigmoid(w_z + u_z - self.trained_bias(w_z))
        (u_g,) = self.matrices(reset * x, 1, "reset_x")
        self.record(opening)
        return (1 - opening) * x + opening * jnp.tanh(w_g + u_g)


GATES: dict[str, type[Gate]] = {
    "input": InputGate,
    "output": OutputGate,
    "highway": HighwayGate,
    "sigtanh": SigTanhGate,
    "gru": GRUGate,
}


def make_gate(name: str | None, bias: float | None, dtype: Any, param_dtype: Any) -> nn.Module:
    """Return the gate called `name` (None: a `Residual`); `bias` None selects its default."""
    if name is None:
        return Residual()
    gate = GATES[check_choice("gate", name, GATES)]
    return gate(gate.initial_bias if bias is None else bias, dtype, param_dtype)
