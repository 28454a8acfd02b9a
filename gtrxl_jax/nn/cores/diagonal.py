"""A diagonal linear recurrence over complex states; LRU and S5 differ in its parameters."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Complex, Float, Inexact

from gtrxl_jax.nn.cores.stack import RecurrentLayer
from gtrxl_jax.ops.recurrence import as_complex, as_real, linear_recurrence


class DiagonalLayer(RecurrentLayer):
    """A layer with a diagonal linear recurrence.

        h_t = A h_{t-1} + G (B x_t),  y_t = LN(Re(C h_t)) + D x_t

    A and G are vectors, h, B and C complex, and D is a real vector; all products except B x and C h
    are elementwise. The papers have no layer norm LN: it makes up for an h that may be much larger
    or smaller than x. D is initialized to zero, not randomly, since the block adds x. The kernel of
    `input` holds B^T as [Re B, Im B], the kernel of `output` C^T as [Re C, -Im C]. The state is h
    `[B, 2 N]`, real parts first.
    """

    @property
    def state_size(self) -> int:
        """N, the number of complex states."""
        return self.config.state_size or self.width

    def initial_state(self, batch_size: int) -> Float[Array, "B N2"]:
        return jnp.zeros((batch_size, 2 * self.state_size), self.wide)

    def vector(self, name: str, init: Any) -> Float[Array, " N"]:
        """Return a trained vector, in the dtype of the recurrence."""
        return self.param(name, init, (self.state_size,), self.param_dtype).astype(self.wide)

    def recur(
        self,
        state: Float[Array, "B N2"],
        x_BTD: Float[Array, "B T D"],
        first_BT: Bool[Array, "B T"],
        decay_N: Complex[Array, " N"],
        gain_N: Inexact[Array, " N"],
        kernels: tuple[Any, Any],
    ) -> tuple[Float[Array, "B N2"], Float[Array, "B T D"]]:
        """Return the new state and the outputs, given A, G and the initializers of B and C."""
        self.record_retention(decay_N)
        init_input, init_output = kernels
        to_state = self.dense(2 * self.state_size, "input", use_bias=False, kernel_init=init_input)
        from_state = self.dense(self.width, "output", use_bias=False, kernel_init=init_output)
        zeros = nn.initializers.zeros_init()
        skip_D = self.param("skip", zeros, (self.width,), self.param_dtype).astype(x_BTD.dtype)
        update_BTN = as_complex(to_state(x_BTD).astype(self.wide))
        update_BTN = gain_N.astype(update_BTN.dtype)[None, None] * update_BTN
        h_BTN = linear_recurrence(decay_N[None, None], update_BTN, as_complex(state), first_BT)
        h_BTN = as_real(h_BTN)
        readout_BTD = self.normalize(from_state(h_BTN.astype(x_BTD.dtype)))
        return h_BTN[:, -1], readout_BTD + skip_D[None, None] * x_BTD
