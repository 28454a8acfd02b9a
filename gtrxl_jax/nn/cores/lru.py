"""The linear recurrent unit (Orvieto et al. 2023)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.diagonal import DiagonalLayer
from gtrxl_jax.nn.cores.stack import StackConfig
from gtrxl_jax.validation import choice, interval, number


@dataclasses.dataclass(frozen=True)
class LRUConfig(StackConfig):
    """Settings of the LRU."""

    name: str = choice("lru", ("lru",))
    """lru."""
    state_size: int | None = None
    """Number of complex states of a layer, N; `width` if not given."""
    radius: tuple[float, float] = interval((0.99, 0.999))
    """The range of |lambda| at initialization. 1 / (1 - |lambda|) is a time constant in steps: what
    an agent has to remember for longer is hardly there to be learned from."""
    max_phase: float = number(math.pi / 5, at_most=2 * math.pi)
    """The largest phase of lambda at initialization, in radians per step. In states that do not
    turn, the mean of the inputs adds up; in those that turn fast, the sign of what an observation
    has left depends on the number of steps since then."""

    def check(self) -> None:
        """Raise ValueError if a state could grow."""
        if not self.radius[1] < 1:
            raise ValueError(f"core.radius must be below 1, not {self.radius}")

    def make_layer(self, **shared: Any) -> "LRULayer":
        return LRULayer(config=self, **shared)


class LRULayer(DiagonalLayer):
    """A linear recurrent unit (Orvieto et al. 2023, Resurrecting RNNs, section 3 and appendix A).

        h_t = lambda h_{t-1} + gamma (B x_t),  y_t = LN(Re(C h_t)) + D x_t
        lambda = exp(-exp(nu) + i exp(theta)),  gamma = exp(g)

    See `DiagonalLayer`; nu, theta and g are real vectors. |lambda| < 1 for all parameters. At
    initialization lambda is uniform in a ring (lemma 3.2) and gamma = sqrt(1 - |lambda|^2), so that
    h has the variance of an input without correlations in time. The mean of an input adds up to
    several times that.
    """

    config: LRUConfig

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "B N2"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[Float[Array, "B N2"], Float[Array, "B T D"]]:
        low, high = self.config.radius

        def init_nu(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            squared = jax.random.uniform(key, shape, dtype, low**2, high**2)
            return jnp.log(-jnp.log(squared) / 2)

        def init_theta(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            # The smallest positive number instead of 0, whose logarithm is infinite.
            tiny = jnp.finfo(dtype).tiny
            return jnp.log(self.config.max_phase * jax.random.uniform(key, shape, dtype, tiny))

        nu_N, theta_N = self.vector("nu", init_nu), self.vector("theta", init_theta)
        decay_N = jnp.exp(jax.lax.complex(-jnp.exp(nu_N), jnp.exp(theta_N)))

        def init_gamma(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            # 1 - |lambda|^2, without cancellation.
            return (jnp.log(-jnp.expm1(-2 * jnp.exp(nu_N))) / 2).astype(dtype)

        gain_N = jnp.exp(self.vector("gamma", init_gamma))
        scaled = nn.initializers.variance_scaling
        kernels = scaled(0.5, "fan_in", "normal"), scaled(2.0, "fan_in", "normal")
        return self.recur(state, x_BTD, first_BT, decay_N, gain_N, kernels)
