"""S5, a diagonal state space model (Smith et al. 2023), with resets (Lu et al. 2023)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Complex, Float

from gtrxl_jax.nn.cores.diagonal import DiagonalLayer
from gtrxl_jax.nn.cores.stack import StackConfig
from gtrxl_jax.validation import choice, interval


@dataclasses.dataclass(frozen=True)
class S5Config(StackConfig):
    """Settings of S5."""

    name: str = choice("s5", ("s5",))
    """s5."""
    state_size: int | None = None
    """Number of complex states of a layer, N; `width` if not given."""
    timescale: tuple[float, float] = interval((0.001, 0.1))
    """The range of the discretization steps Delta at initialization; slow states keep about
    2 / Delta steps."""

    def make_layer(self, **shared: Any) -> "S5Layer":
        return S5Layer(config=self, **shared)


def hippo_normal(size: int) -> tuple[Complex[np.ndarray, " N"], Complex[np.ndarray, "M N"]]:
    """Return half of the eigenvalues and eigenvectors of the normal part of HiPPO-LegS.

    HiPPO-LegS (Gu et al. 2020) is A_nk = -sqrt(2n+1) sqrt(2k+1) for n > k, -(n + 1) for n = k, and
    0 otherwise. With p_n = sqrt(n + 1/2), A + p p^T is normal: -1/2 plus an antisymmetric matrix.
    Its eigenvalues are conjugate pairs, of which those with positive imaginary part are returned
    (Smith et al. 2023, sections 2.3 and 3.2; Gu et al. 2022).

    Args:
      size: N, half the number of rows M = 2 N.
    """
    root = np.sqrt(2 * np.arange(2 * size) + 1)
    lower = np.tril(np.outer(root, root), -1)
    antisymmetric = (lower.T - lower) / 2
    imag, vectors = np.linalg.eigh(-1j * antisymmetric)
    return -0.5 + 1j * imag[size:], vectors[:, size:]


class S5Layer(DiagonalLayer):
    """A diagonal state space model with zero-order hold (Smith et al. 2023, S5, section 3).

        h_t = A h_{t-1} + (A - 1) / lambda (B x_t),  y_t = LN(2 Re(C h_t)) + D x_t
        A = exp(lambda Delta),  lambda = -exp(a) + i b,  Delta = exp(s)

    See `DiagonalLayer`; a, b and s are real vectors. |A| < 1 for all parameters. lambda is
    initialized to the eigenvalues of HiPPO-N, and B and C to random matrices in its eigenbasis,
    with one block. Of each pair of conjugate states one is computed, hence the 2, which is part of
    the kernel of `output`. A is 0 where an episode begins (Lu et al. 2023, section 3). After a few
    steps t, h is about t Delta times its input, which is small.
    """

    config: S5Config

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "B N2"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
    ) -> tuple[Float[Array, "B N2"], Float[Array, "B T D"]]:
        def init_imag(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.asarray(hippo_normal(self.state_size)[0].imag, dtype)

        def init_step(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            low, high = (math.log(step) for step in self.config.timescale)
            return jax.random.uniform(key, shape, dtype, low, high)

        real_N = -jnp.exp(self.vector("log_real", nn.initializers.constant(math.log(0.5))))
        pole_N = jax.lax.complex(real_N, self.vector("imag", init_imag))
        exponent_N = pole_N * jnp.exp(self.vector("log_step", init_step)).astype(pole_N.dtype)
        gain_N = jnp.expm1(exponent_N) / pole_N
        kernels = self._init_input, self._init_output
        return self.recur(state, x_BTD, first_BT, jnp.exp(exponent_N), gain_N, kernels)

    def _init_input(self, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draw B for all 2 N states, and return V^H B, as the kernel [Re B, Im B]^T."""
        vectors = hippo_normal(self.state_size)[1].conj()
        kernel = nn.initializers.lecun_normal()(key, shape, dtype)
        return jnp.concatenate(
            [kernel @ jnp.asarray(part, dtype) for part in (vectors.real, vectors.imag)], axis=1
        )

    def _init_output(self, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draw C for all 2 N states, and return 2 C V, as the kernel [2 Re C, -2 Im C]^T."""
        vectors = hippo_normal(self.state_size)[1]
        kernel = nn.initializers.lecun_normal()(key, shape, dtype)
        return jnp.concatenate(
            [2 * jnp.asarray(part, dtype).T @ kernel for part in (vectors.real, -vectors.imag)]
        )
