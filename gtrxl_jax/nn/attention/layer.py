"""The parameters of relative multi-head attention, which both of its forms compute with."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class Kernel(nn.Module):
    """The kernel of a linear map without bias, as a parameter named as in `nn.Dense`."""

    shape: tuple[int, int]
    param_dtype: Any

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        return self.param("kernel", nn.initializers.lecun_normal(), self.shape, self.param_dtype)


class AttentionLayer(nn.Module):
    """Multi-head attention with relative positions (Dai et al. 2019; GTrXL, appendix C).

    W_Q, W_K, W_V, W_R and W_O have no bias; u and v are trained and initialized to zero. The
    attention weights are recorded in the collection "attention". `projected.RelativeAttention` and
    `absorbed.AbsorbedAttention` are the same function of the same parameters.

    Attributes:
      width: D, the width of the input and the output.
      heads: H, the number of heads.
      head_width: K, the width of a head.
      dropout_rate: dropout rate of the attention weights.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    head_width: int
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        inner = self.heads * self.head_width
        self.dropout = nn.Dropout(self.dropout_rate)
        self.query = Kernel((self.width, inner), self.param_dtype)
        self.key_value = Kernel((self.width, 2 * inner), self.param_dtype)
        self.position = Kernel((self.width, inner), self.param_dtype)
        self.output = Kernel((inner, self.width), self.param_dtype)
        shape = (self.heads, self.head_width)
        zeros = nn.initializers.zeros_init()
        self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
        self.position_bias = self.param("position_bias", zeros, shape, self.param_dtype)
