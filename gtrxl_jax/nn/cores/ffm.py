"""Fast and Forgetful Memory (Morad et al. 2023)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.stack import RecurrentLayer, StackConfig
from gtrxl_jax.ops.recurrence import as_complex, as_real, linear_recurrence
from gtrxl_jax.validation import choice, interval


@dataclasses.dataclass(frozen=True)
class FFMConfig(StackConfig):
    """Settings of Fast and Forgetful Memory."""

    name: str = choice("ffm", ("ffm",))
    """ffm."""
    traces: int = 32
    """Number of inputs that are remembered, each with a rate of decay, M."""
    contexts: int = 4
    """Number of frequencies for each of them, C."""
    periods: tuple[float, float] = interval((10.0, 100.0))
    """The range of the periods of these frequencies at initialization, in steps."""
    timescale: tuple[float, float] = interval((10.0, 1000.0))
    """The range of the time constants 1 / |a| at initialization, in steps."""

    def make_layer(self, **shared: Any) -> "FFMLayer":
        return FFMLayer(config=self, **shared)


class FFMLayer(RecurrentLayer):
    """Fast and Forgetful Memory (Morad et al. 2023, section 4).

        u_t = l_1(x_t) * sigmoid(l_2(x_t))
        S_t = exp(-|a| + i w) * S_{t-1} + u_t 1^T
        z_t = l_3(flatten [Re S_t, Im S_t]),  g_t = sigmoid(l_4(x_t))
        y_t = g_t * LN(z_t) + (1 - g_t) * l_5(x_t)

    S is a complex matrix of M traces and C contexts; the factor of its element (m, c) decays at the
    trained rate a_m and turns at the trained frequency w_c. The paper computes powers of the factor
    over the segment; here it is a recurrence, whose factors are at most 1. l_1 and l_2 share the
    kernel `input`, and l_4 and l_5 `gate`. The state is the flattened S `[B, 2 M C]`, real parts
    first.

    At initialization, the time constants 1 / a and the periods 2 pi / w are spaced logarithmically.
    In the authors' code the rates a are spaced evenly from 0 to 0.5, so that two of 32 traces last
    for longer than 30 steps, and the periods from 1 to 1024: over tens of steps none of them turns,
    and the sum of the mean input covers what differs between inputs.
    """

    config: FFMConfig

    def initial_state(self, batch_size: int) -> Float[Array, "B N2"]:
        size = 2 * self.config.traces * self.config.contexts
        return jnp.zeros((batch_size, size), self.wide)

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "B N2"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[Float[Array, "B N2"], Float[Array, "B T D"]]:
        traces, contexts = self.config.traces, self.config.contexts

        def parameter(name: str, values: Array) -> Array:
            init = nn.initializers.constant(values)
            return self.param(name, init, values.shape, self.param_dtype).astype(self.wide)

        constants_M = jnp.geomspace(*self.config.timescale, traces, dtype=self.wide)
        rate_M = parameter("rate", 1 / constants_M)
        periods_C = jnp.geomspace(*self.config.periods, contexts, dtype=self.wide)
        frequency_C = parameter("frequency", 2 * math.pi / periods_C)
        # The element (m, c) is the entry m C + c.
        exponent_N = -jnp.repeat(jnp.abs(rate_M), contexts), jnp.tile(frequency_C, traces)
        decay_N = jnp.exp(jax.lax.complex(*exponent_N))
        self.record_retention(decay_N)
        trace_BTM, open_BTM = jnp.split(self.dense(2 * traces, "input")(x_BTD), 2, axis=-1)
        trace_BTM = (trace_BTM * nn.sigmoid(open_BTM)).astype(self.wide)
        update_BTN = jnp.repeat(trace_BTM, contexts, axis=-1).astype(decay_N.dtype)
        states_BTN = as_real(
            linear_recurrence(decay_N[None, None], update_BTN, as_complex(state), first_BT)
        )
        z_BTD = self.normalize(self.dense(self.width, "mix")(states_BTN.astype(x_BTD.dtype)))
        gate_BTD, skip_BTD = jnp.split(self.dense(2 * self.width, "gate")(x_BTD), 2, axis=-1)
        gate_BTD = nn.sigmoid(gate_BTD)
        return states_BTN[:, -1], gate_BTD * z_BTD + (1 - gate_BTD) * skip_BTD
