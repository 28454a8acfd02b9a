"""Heads of actors and critics on the features of a sequence model."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.ops.distributions import Gaussian, SquashedGaussian
from gtrxl_jax.specs import ActionSpec


class ActionValue(nn.Module):
    """Q(h, a): an MLP of features h, which do not depend on the action, and of an action a.

    Attributes:
      hidden: units of the hidden layer.
      param_dtype: dtype of the parameters, the computation and the values.
    """

    hidden: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, h: Float[Array, "*batch D"], action: Float[Array, "*batch N F"]
    ) -> Float[Array, "*batch N"]:
        """Return the values of N actions, given as `ActionSpec.features`."""
        h, action = (x.astype(self.param_dtype) for x in (h, action))
        x = Dense(self.hidden, param_dtype=self.param_dtype, name="history")(h)[..., None, :]
        embed = Dense(self.hidden, use_bias=False, param_dtype=self.param_dtype, name="action")
        x = nn.relu(x + embed(action))
        return Dense(1, param_dtype=self.param_dtype, name="output")(x)[..., 0]


class SquashedHead(nn.Module):
    """A linear layer to a `SquashedGaussian` over bounded actions, with a learned scale.

    Attributes:
      action: the layout of the actions, which are continuous and bounded.
      param_dtype: dtype of the parameters, the computation and the outputs.
      log_scale: the range of the logarithm of the scale before the tanh (Haarnoja et al. 2018).
    """

    action: ActionSpec
    param_dtype: Any = jnp.float32
    log_scale: tuple[float, float] = (-5.0, 2.0)

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> SquashedGaussian:
        output = Dense(2 * self.action.num_continuous, param_dtype=self.param_dtype, name="output")
        mean, spread = jnp.split(output(x.astype(self.param_dtype)), 2, axis=-1)
        low, high = self.log_scale
        # An output of 0 yields a scale of 1 with the default range, nearly uniform actions.
        log_scale = jnp.clip(spread, low, high)
        center, half = (jnp.broadcast_to(z, mean.shape) for z in self.action.range_of(mean))
        return SquashedGaussian(Gaussian(mean, jnp.exp(log_scale)), center, half)
