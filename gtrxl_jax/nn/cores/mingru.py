"""minGRU, a GRU whose gates do not depend on its state (Feng et al. 2024, section 3.1)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.stack import (
    RecurrentLayer,
    StackConfig,
    gate_biases,
    require_timescale,
)
from gtrxl_jax.ops.recurrence import linear_recurrence
from gtrxl_jax.validation import choice, interval


@dataclasses.dataclass(frozen=True)
class MinGRUConfig(StackConfig):
    """Settings of minGRU."""

    name: str = choice("mingru", ("mingru",))
    """mingru."""
    timescale: tuple[float, float] = interval((2.0, 100.0))
    """The range of the time constants 1 / z at initialization, in steps; about 2 in the paper."""

    def check(self) -> None:
        """Raise ValueError if z cannot have these time constants."""
        require_timescale(self.timescale)

    def make_layer(self, **shared: Any) -> "MinGRULayer":
        return MinGRULayer(config=self, **shared)


class MinGRULayer(RecurrentLayer):
    """minGRU (Feng et al. 2024, Were RNNs all we needed?, section 3.1).

        z_t = sigmoid(W_z x_t + b_z),  c_t = W_c x_t + b_c,  h_t = (1 - z_t) h_{t-1} + z_t c_t

    The state and the output are h `[B, D]`. This is the paper's linear form. Its log-space form,
    which restricts c to positive values, is for the division by a product of decays in its scan;
    `linear_recurrence` has no division, and its decays are between 0 and 1.

    The biases b_z are initialized by `gate_biases`.
    """

    config: MinGRUConfig

    def initial_state(self, batch_size: int) -> Float[Array, "B D"]:
        return jnp.zeros((batch_size, self.width), self.wide)

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "B D"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[Float[Array, "B D"], Float[Array, "B T D"]]:
        def init_bias(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            biases = gate_biases(self.config.timescale, self.width, dtype)
            return jnp.concatenate([biases, jnp.zeros_like(biases)])

        projected = self.dense(2 * self.width, "input", bias_init=init_bias)(x_BTD)
        projected = projected.astype(self.wide)
        z_BTD, candidate_BTD = jnp.split(projected, 2, axis=-1)
        z_BTD = nn.sigmoid(z_BTD)
        self.record_retention(1 - z_BTD)
        h_BTD = linear_recurrence(1 - z_BTD, z_BTD * candidate_BTD, state, first_BT)
        return h_BTD[:, -1], h_BTD.astype(x_BTD.dtype)
