"""Layer normalization."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (Ba et al. 2016), with statistics in float32 or wider.

    `flax.linen.LayerNorm` relies on implicit dtype promotion for bfloat16 and float64, which
    JAX's strict dtype promotion forbids.
    """

    dtype: Any = None
    param_dtype: Any = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        width = x.shape[-1]
        scale_D = self.param("scale", nn.initializers.ones_init(), (width,), self.param_dtype)
        bias_D = self.param("bias", nn.initializers.zeros_init(), (width,), self.param_dtype)
        wide = np.promote_types(x.dtype, np.float32)
        z = x.astype(wide)
        z = z - jnp.mean(z, axis=-1, keepdims=True)
        # E[x^2] - E[x]^2 would lose precision when the stream has a large mean.
        z = z * jax.lax.rsqrt(jnp.mean(z * z, axis=-1, keepdims=True) + self.epsilon)
        lead = (1,) * (x.ndim - 1) + (width,)
        z = z * scale_D.astype(wide).reshape(lead) + bias_D.astype(wide).reshape(lead)
        return z.astype(self.dtype or x.dtype)
