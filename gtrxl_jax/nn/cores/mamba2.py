"""Mamba-2, a selective state space model with a scalar decay (Dao and Gu 2024)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.stack import RecurrentLayer, StackConfig
from gtrxl_jax.ops.linear_attention import MatrixMemory, empty_memory, linear_attention
from gtrxl_jax.ops.recurrence import steps_of_episode
from gtrxl_jax.validation import choice, interval

LAGS = 3


@struct.dataclass
class Mamba2State:
    """The state of a layer.

    Attributes:
      inputs: the convolution's inputs at the last 3 steps, oldest first, 0 before the episode.
      memory: h of each head, transposed.
    """

    inputs: Float[Array, "B 3 C"]
    memory: MatrixMemory


@dataclasses.dataclass(frozen=True)
class Mamba2Config(StackConfig):
    """Settings of Mamba-2."""

    name: str = choice("mamba2", ("mamba2",))
    """mamba2."""
    heads: int = 4
    """Heads, each with a rate of decay, H; they divide 2 width."""
    state_size: int | None = 16
    """Number of states of each channel, N; `width` if None."""
    timescale: tuple[float, float] = interval((0.01, 0.1))
    """The range of Delta at initialization, 0.001 to 0.1 in the paper; a head forgets with the time
    constant 1 / Delta."""

    def check(self) -> None:
        """Raise ValueError where the heads do not divide the inner width."""
        if 2 * self.width % self.heads:
            raise ValueError(
                f"core.heads {self.heads} does not divide twice core.width {self.width}: change "
                "one of them"
            )

    def make_layer(self, **shared: Any) -> "Mamba2Layer":
        return Mamba2Layer(config=self, **shared)


class Mamba2Layer(RecurrentLayer):
    """A Mamba-2 layer (Dao and Gu 2024, Transformers are SSMs, sections 6 and 7).

        [z, u, d] = W x,  [v, B, C] = silu(sum_j w_j * u_{t-j} + b),  Delta = softplus(d + e)
        h_t = exp(-exp(a) Delta_t) h_{t-1} + Delta_t v_t B_t^T         for each head
        y_t = W_o RMSNorm(silu(z_t) * (h_t C_t + s v_t))

    The convolution is causal, over 4 steps of the episode. The inner width P H of z and v is 2 D.
    a, e and s are a number for each head; B and C are common to all heads. The state is the
    last inputs of the convolution `[B, 3, 2 D + 2 N]`, and h, transposed, `[B, H, N, P]`.

    At initialization, a is 0 and Delta is spaced logarithmically over the heads. In the authors'
    code exp(a) is drawn from 1 to 16 and Delta log-uniformly: of their tens of heads some forget
    slowly, but of four often none. s is initialized to 0 instead of 1: as h is about Delta times
    its input, s v would be a hundred times h C, and the block adds x anyway.
    """

    config: Mamba2Config

    @property
    def state_size(self) -> int:
        """N, the number of states of each of the 2 D channels."""
        return self.config.state_size or self.width

    def initial_state(self, batch_size: int) -> Mamba2State:
        inner, heads = 2 * self.width, self.config.heads
        shape = (batch_size, LAGS, inner + 2 * self.state_size)
        memory = empty_memory(batch_size, heads, self.state_size, inner // heads, self.wide)
        return Mamba2State(jnp.zeros(shape, self.wide), memory)

    @nn.compact
    def __call__(
        self, state: Mamba2State, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[Mamba2State, Float[Array, "B T D"]]:
        batch, steps, _ = x_BTD.shape
        inner, size, heads = 2 * self.width, self.state_size, self.config.heads

        def parameter(name: str, init: Any, *shape: int) -> Array:
            return self.param(name, init, shape, self.param_dtype).astype(self.wide)

        def init_step(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            steps = jnp.geomspace(*self.config.timescale, heads, dtype=dtype)
            return jnp.log(jnp.expm1(steps))  # the inverse of softplus

        zeros = nn.initializers.zeros_init()
        rate_H = jnp.exp(parameter("log_rate", zeros, heads))
        bias_H = parameter("step_bias", init_step, heads)
        skip_H = parameter("skip", zeros, heads)
        scale_C = parameter("scale", nn.initializers.ones_init(), inner)
        projected = self.dense(2 * inner + 2 * size + heads, "input", use_bias=False)(x_BTD)
        z, u, d = jnp.split(projected.astype(self.wide), [inner, 2 * (inner + size)], axis=-1)
        inputs, u = self._convolve(state.inputs, u, first_BT)
        v, key, query = jnp.split(nn.silu(u), [inner, inner + size], axis=-1)

        step_BTH = nn.softplus(d + bias_H[None, None])
        log_decay_BTH = -rate_H[None, None] * step_BTH
        self.record_retention(jnp.exp(log_decay_BTH))
        v_BTHP = v.reshape(batch, steps, heads, -1)
        memory, y_BTHP, log_scale_BTH = linear_attention(
            jnp.repeat(query[:, :, None], heads, axis=2),
            step_BTH[..., None] * key[:, :, None],
            v_BTHP,
            log_decay_BTH,
            jnp.zeros_like(log_decay_BTH),
            state.memory,
            first_BT,
        )
        y_BTHP = jnp.exp(log_scale_BTH)[..., None] * y_BTHP + skip_H[None, None, :, None] * v_BTHP
        y = nn.silu(z) * y_BTHP.reshape(z.shape)
        # In an episode's first steps, the squares of h C can be smaller than the usual 1e-6.
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-10)
        y = (scale_C[None, None] * y).astype(x_BTD.dtype)
        return Mamba2State(inputs, memory), self.dense(self.width, "output", use_bias=False)(y)

    def _convolve(self, before: Array, u_BTC: Array, first_BT: Array) -> tuple[Array, Array]:
        """Return the last inputs of the episode, and the sums over it and the LAGS steps before."""
        steps, channels = u_BTC.shape[1:]
        init = nn.initializers.variance_scaling(
            1 / 3, "fan_in", "uniform", in_axis=0, out_axis=(), batch_axis=1
        )
        kernel = self.param("kernel", init, (LAGS + 1, channels), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,), self.param_dtype)
        kernel, bias = kernel.astype(self.wide), bias.astype(self.wide)
        stream_BSC = jnp.concatenate([before, u_BTC], axis=1)
        # Inputs in `before` that precede the episode are already 0.
        age_BT = steps_of_episode(jnp.full_like(first_BT[:, 0], LAGS, dtype=jnp.int32), first_BT)
        y_BTC = jnp.broadcast_to(bias[None, None], u_BTC.shape)
        for lag in range(LAGS + 1):
            then_BTC = stream_BSC[:, LAGS - lag : LAGS - lag + steps]
            y_BTC += kernel[lag][None, None] * jnp.where(age_BT[..., None] > lag, then_BTC, 0)
        lag_J = jnp.arange(LAGS, dtype=jnp.int32)[::-1]
        kept_BJ = age_BT[:, -1:] > lag_J[None]
        return jnp.where(kept_BJ[..., None], stream_BSC[:, steps:], 0), y_BTC
