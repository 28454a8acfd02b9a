"""The linear recurrent unit (Orvieto et al. 2023)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from gtrxl_jax.nn.cores.stack import RecurrentLayer, StackConfig
from gtrxl_jax.ops.recurrence import as_complex, as_real, linear_recurrence
from gtrxl_jax.validation import choice, interval, number


@dataclasses.dataclass(frozen=True)
class LRUConfig(StackConfig):
    """Settings of the LRU."""

    name: str = choice("lru", ("lru",))
    """lru."""
    state_size: int | None = None
    """Number of complex states of a layer, N; `width` if not given."""
    radius: tuple[float, float] = interval((0.99, 0.999))
    """The range of |lambda| at initialisation. 1 / (1 - |lambda|) is a time constant in steps: what
    an agent has to remember for longer is hardly there to be learned from."""
    max_phase: float = number(math.pi / 5, at_most=2 * math.pi)
    """The largest phase of lambda at initialisation, in radians per step. In states that do not
    turn, the mean of the inputs adds up; in those that turn fast, the sign of what an observation
    has left depends on the number of steps since then."""

    def check(self) -> None:
        """Raise ValueError if a state could grow."""
        if not self.radius[1] < 1:
            raise ValueError(f"core.radius must be below 1, not {self.radius}")

    def make_layer(self, **shared: Any) -> "LRULayer":
        """Create a layer."""
        return LRULayer(
            state_size=self.state_size or shared["width"],
            radius=self.radius,
            max_phase=self.max_phase,
            **shared,
        )


class LRULayer(RecurrentLayer):
    """A linear recurrent unit (Orvieto et al. 2023, Resurrecting RNNs, section 3 and appendix A).

        h_t = lambda h_{t-1} + gamma (B x_t),  y_t = LN(Re(C h_t)) + D x_t
        lambda = exp(-exp(nu) + i exp(theta)),  gamma = exp(g)

    h, lambda, B and C are complex, and nu, theta, g and D are real vectors; all products except
    B x and C h are elementwise. |lambda| < 1 for all parameters. At initialisation lambda is
    uniform in a ring (lemma 3.2) and gamma = sqrt(1 - |lambda|^2), so that h has the variance of an
    input without correlations in time. The mean of an input adds up to several times that, hence
    the layer norm LN, which the paper lacks. D is initialised to zero, not randomly, since the
    block adds x. The kernel of `input` holds B^T as [Re B, Im B], and that of `output` C^T as
    [Re C, -Im C]. The state is h `[B, 2 N]`, real parts first.

    Attributes:
      state_size: N, the number of complex states.
      radius: the range of |lambda| at initialisation.
      max_phase: the largest phase of lambda at initialisation, in radians.
    """

    state_size: int
    radius: tuple[float, float]
    max_phase: float

    def initial_state(self, batch_size: int) -> Float[Array, "B N2"]:
        """Return a state of zeros."""
        return jnp.zeros((batch_size, 2 * self.state_size), self.wide)

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "B N2"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[Float[Array, "B N2"], Float[Array, "B T D"]]:
        low, high = self.radius

        def parameter(name: str, init: Any, size: int = self.state_size) -> Array:
            return self.param(name, init, (size,), self.param_dtype).astype(self.wide)

        def init_nu(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            squared = jax.random.uniform(key, shape, dtype, low**2, high**2)
            return jnp.log(-jnp.log(squared) / 2)

        def init_theta(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            # The smallest positive number instead of 0, whose logarithm is infinite.
            tiny = jnp.finfo(dtype).tiny
            return jnp.log(self.max_phase * jax.random.uniform(key, shape, dtype, tiny))

        nu_N, theta_N = parameter("nu", init_nu), parameter("theta", init_theta)
        decay_N = jnp.exp(jax.lax.complex(-jnp.exp(nu_N), jnp.exp(theta_N)))

        def init_gamma(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            del key, shape
            # 1 - |lambda|^2, without cancellation.
            return (jnp.log(-jnp.expm1(-2 * jnp.exp(nu_N))) / 2).astype(dtype)

        gain_N = jnp.exp(parameter("gamma", init_gamma))
        skip_D = parameter("skip", nn.initializers.zeros_init(), self.width)
        self.record_retention(decay_N)
        scaled = nn.initializers.variance_scaling
        to_state = self.dense(
            2 * self.state_size,
            "input",
            use_bias=False,
            kernel_init=scaled(0.5, "fan_in", "normal"),
        )
        from_state = self.dense(
            self.width, "output", use_bias=False, kernel_init=scaled(2.0, "fan_in", "normal")
        )
        update_BTN = as_complex(to_state(x_BTD).astype(self.wide))
        update_BTN = gain_N.astype(update_BTN.dtype)[None, None] * update_BTN
        h_BTN = linear_recurrence(decay_N[None, None], update_BTN, as_complex(state), first_BT)
        h_BTN = as_real(h_BTN)
        skipped_BTD = skip_D[None, None].astype(x_BTD.dtype) * x_BTD
        return h_BTN[:, -1], self.normalised(from_state(h_BTN.astype(x_BTD.dtype))) + skipped_BTD
