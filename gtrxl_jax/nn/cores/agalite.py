"""AGaLiTe, the approximate gated linear transformer (Pramanik et al. 2024)."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.nn.core import resolve_head_width
from gtrxl_jax.nn.cores.stack import (
    RecurrentLayer,
    StackConfig,
    gate_biases,
    require_timescale,
)
from gtrxl_jax.ops.recurrence import linear_recurrence, steps_of_episode
from gtrxl_jax.validation import choice, interval


@struct.dataclass
class AGaLiTeState:
    """The state of a layer.

    Attributes:
      keys: the R oscillating sums of gated keys.
      values: the R oscillating sums of gated values.
      normalizer: the sum of gated keys.
      step: the number of steps since the start of the episode, modulo the oscillations' period.
    """

    keys: Float[Array, "B R H N"]
    values: Float[Array, "B R H K"]
    normalizer: Float[Array, "B H N"]
    step: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class AGaLiTeConfig(StackConfig):
    """Settings of AGaLiTe."""

    name: str = choice("agalite", ("agalite",))
    """agalite."""
    heads: int = 4
    """Attention heads, H."""
    head_width: int | None = None
    """Width of a head, K; width / heads if not given."""
    features: int = 4
    """Number of products of each key and query with trained features, eta."""
    terms: int = 1
    """Number of oscillations that approximate the matrix memory, R. Since cos(w t) = cos(-w t),
    they have (R + 1) // 2 frequencies: the authors' choice, 2, computes the same as 1."""
    timescale: tuple[float, float] = interval((10.0, 1000.0))
    """The range of the time constants 1 / b at initialization, in steps; about 2 in the paper."""

    def check(self) -> None:
        """Raise ValueError where the heads do not divide the width, or b cannot be as slow."""
        resolve_head_width(self)
        require_timescale(self.timescale)

    def make_layer(self, **shared: Any) -> "AGaLiTeLayer":
        return AGaLiTeLayer(config=self, **shared)


class AGaLiTeLayer(RecurrentLayer):
    """Approximate gated linear attention (Pramanik et al. 2024, AGaLiTe, sections 3 and 4).

    For each head, with the feature maps

        k_t = relu(W_p1 x) (x) relu(W_k x),  q_t = relu(W_p2 x) (x) relu(W_q x),  v_t = W_v x
        g_t = sigmoid(W_p3 x) (x) sigmoid(W_g x),  b_t = sigmoid(W_b x)

    where (x) is the flattened outer product, GaLiTe attends with a matrix memory of N x K numbers:

        C_t = (1 - g_t) (1 - b_t)^T * C_{t-1} + (g_t * k_t) (b_t * v_t)^T
        s_t = (1 - g_t) * s_{t-1} + g_t * k_t,  y_t = C_t^T q_t / s_t^T q_t

    AGaLiTe replaces C by R pairs of vectors. C sums products of a key and a value of the same step.
    A sum of cos(w_r t) cos(w_r t') over many frequencies is large only for equal steps t = t', so
    that the product of two sums over all steps approximates it:

        K_t^r = (1 - g_t) * K_{t-1}^r + cos(w_r t) g_t * k_t
        V_t^r = (1 - b_t) * V_{t-1}^r + cos(w_r t) b_t * v_t
        y_t = sum_r V_t^r (K_t^r^T q_t) / (2 R s_t^T q_t + eps)

    As in the authors' code, the w_r are spaced evenly from -pi to pi, and eps is 1e-5. Of w_r and
    -w_r the cosines are equal, so that the authors' R = 2 has a single frequency, pi, and computes
    the same as R = 1, the default here: one sum of keys and one of values, with alternating signs.
    t counts the steps of the episode, from 1. N = eta K, and a layer's state has H (R (N + K) + N)
    numbers. The output is LN(W y + b), over all heads.

    Two choices differ from the authors' code, where an agent at initialization cannot tell what it
    saw 30 steps ago. With biases of 0, b is 1/2 and the values of a step are halved 30 times; those
    of b and of g's factor are initialized by `gate_biases`. Since C is a product of two sums with
    alternating signs, y is a small fraction of v, for which the layer norm LN makes up.
    """

    config: AGaLiTeConfig

    @property
    def period(self) -> int:
        """The common period of all cos(w_r t), in steps."""
        return 2 * max(self.config.terms - 1, 1)

    def initial_state(self, batch_size: int) -> AGaLiTeState:
        heads, width = self.config.heads, resolve_head_width(self.config)
        lead, features = (batch_size, self.config.terms, heads), self.config.features * width
        return AGaLiTeState(
            keys=jnp.zeros((*lead, features), self.wide),
            values=jnp.zeros((*lead, width), self.wide),
            normalizer=jnp.zeros((batch_size, heads, features), self.wide),
            step=jnp.zeros(batch_size, jnp.int32),
        )

    @nn.compact
    def __call__(
        self, state: AGaLiTeState, x_BTD: Float[Array, "B T D"], first_BT: Bool[Array, "B T"]
    ) -> tuple[AGaLiTeState, Float[Array, "B T D"]]:
        config, width = self.config, resolve_head_width(self.config)
        lead = (*x_BTD.shape[:2], config.heads)

        def projections(count: int, size: int, name: str, **settings: Any) -> list[Array]:
            z = self.dense(config.heads * count * size, name, **settings)(x_BTD).astype(self.wide)
            return jnp.split(z.reshape(*lead, count * size), count, axis=-1)

        def init_bias(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            gates = gate_biases(config.timescale, width, dtype)
            zeros = jnp.zeros(3 * width, dtype)
            return jnp.tile(jnp.concatenate([zeros, gates, gates]), config.heads)

        def product(p: Array, z: Array) -> Array:
            return (p[..., :, None] * z[..., None, :]).reshape(*lead, -1)

        k, q, v_BTHK, b, g = projections(5, width, "attention", bias_init=init_bias)
        p1, p2, p3 = projections(3, config.features, "features")
        k_BTHN = product(nn.relu(p1), nn.relu(k))
        q_BTHN = product(nn.relu(p2), nn.relu(q))
        g_BTHN = product(nn.sigmoid(p3), nn.sigmoid(g))
        b_BTHK = nn.sigmoid(b)
        self.record_retention(1 - g_BTHN)

        step_BT = steps_of_episode(state.step, first_BT) % self.period
        angle_R = jnp.linspace(-math.pi, math.pi, config.terms, dtype=self.wide)
        wave_BTR = jnp.cos(step_BT.astype(self.wide)[..., None] * angle_R[None, None])
        wave_BTR11 = wave_BTR[..., None, None]
        gated_BTHN, gated_BTHK = g_BTHN * k_BTHN, b_BTHK * v_BTHK
        s_BTHN = linear_recurrence(1 - g_BTHN, gated_BTHN, state.normalizer, first_BT)
        keys_BTRHN, values_BTRHK = (
            linear_recurrence(1 - gate[:, :, None], wave_BTR11 * z[:, :, None], before, first_BT)
            for gate, z, before in (
                (g_BTHN, gated_BTHN, state.keys),
                (b_BTHK, gated_BTHK, state.values),
            )
        )
        scores_BTRH = jnp.einsum("btrhn,bthn->btrh", keys_BTRHN, q_BTHN)
        y_BTHK = jnp.einsum("btrhk,btrh->bthk", values_BTRHK, scores_BTRH)
        total_BTH = jnp.einsum("bthn,bthn->bth", s_BTHN, q_BTHN)
        y_BTHK = y_BTHK / (2 * config.terms * total_BTH[..., None] + 1e-5)
        after = AGaLiTeState(keys_BTRHN[:, -1], values_BTRHK[:, -1], s_BTHN[:, -1], step_BT[:, -1])
        y = y_BTHK.reshape(*lead[:2], -1).astype(x_BTD.dtype)
        return after, self.normalize(self.dense(self.width, "output")(y))
