"""Layers: linear maps, normalization, attention with relative positions, and stacks of layers."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from flax.linen.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gtrxl_jax.ops import attention as ops
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.platforms import platform


def by_rows(
    linear: Callable[[Float[Array, "R I"]], Float[Array, "R O"]], x: Float[Array, "... I"]
) -> Float[Array, "... O"]:
    """Apply a linear map to x with its leading axes joined into one, R.

    With more axes, XLA computes the gradient of a matrix on CPUs from a transposed copy of the
    output's gradient, which takes two to three times as long, and does not fuse the addition of a
    bias into the matrix product.

    Args:
      linear: the map.
      x: any number of leading axes.
    """
    y = linear(x.reshape(-1, x.shape[-1]))
    return y.reshape(*x.shape[:-1], y.shape[-1])


def stream_dtype(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype of what passes between products in `dtype`: on TPUs float32 or wider.

    The matrix unit of a TPU adds up in float32, and the vector unit of a v5e computes in it. By
    XLA's estimate, rounding the result of a product to bfloat16, if it has as few rows as a step,
    takes longer than the product.
    """
    return at_least_float32(dtype) if platform() == "tpu" else dtype


def product(
    equation: str,
    x: Float[Array, "..."],
    kernel: Float[Array, "..."],
    dtype: DTypeLike | None,
    result_dtype: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """Multiply activations and a kernel, both cast to `dtype`.

    Args:
      equation: the equation of `jnp.einsum`.
      x: the activations.
      kernel: the kernel.
      dtype: the dtype of the factors; None for the wider one of the two.
      result_dtype: the dtype of the result; None for that of the factors.
    """
    x, kernel = promote_dtype(x, kernel, dtype=dtype)
    return jnp.einsum(equation, x, kernel, preferred_element_type=result_dtype)


class Dense(nn.Dense):
    """`nn.Dense` that computes by rows, see `by_rows`, except on TPUs.

    On TPUs, joining axes would move steps between registers of 8 or 16 rows.

    Attributes:
      result_dtype: the dtype of the outputs; None for that of the factors, see `product`.
    """

    result_dtype: Any = None

    @nn.compact
    def __call__(self, inputs: Float[Array, "... I"]) -> Float[Array, "... O"]:
        shape = (inputs.shape[-1], self.features)
        kernel_IO = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        biases = []
        if self.use_bias:
            biases = [self.param("bias", self.bias_init, shape[1:], self.param_dtype)]

        def linear(x: Float[Array, "... I"]) -> Float[Array, "... O"]:
            y = product("...i,io->...o", x, kernel_IO, self.dtype, self.result_dtype)
            for bias_O in biases:
                y += bias_O.astype(y.dtype).reshape((1,) * (y.ndim - 1) + bias_O.shape)
            return y

        return linear(inputs) if platform() == "tpu" else by_rows(linear, inputs)


def square_products(
    x: Float[Array, "... D"], count: int, name: str, **precision: Any
) -> list[Float[Array, "... D"]]:
    """Return `count` products of x with square matrices, computed as one multiplication.

    Called in a compact method, it makes a submodule `name`; `precision` are `nn.Dense`'s dtypes.
    The products have the dtype of x.
    """
    settings = {"use_bias": False, "result_dtype": x.dtype, **precision}
    dense = Dense(count * x.shape[-1], name=name, **settings)
    return jnp.split(dense(x), count, axis=-1)


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
        wide = at_least_float32(x.dtype)
        z = x.astype(wide)
        # Divided before the sum: after it, TPUs run the division of a few numbers by itself.
        z = z - jnp.sum(z / width, axis=-1, keepdims=True)
        # E[x^2] - E[x]^2 would lose precision when the stream has a large mean.
        z = z * jax.lax.rsqrt(jnp.sum(z * z / width, axis=-1, keepdims=True) + self.epsilon)
        lead = (1,) * (x.ndim - 1) + (width,)
        z = z * scale_D.astype(wide).reshape(lead) + bias_D.astype(wide).reshape(lead)
        return z.astype(self.dtype or x.dtype)


class Kernel(nn.Module):
    """The kernel of a linear map without bias, as a parameter named as in `nn.Dense`."""

    shape: tuple[int, int]
    param_dtype: Any
    initializer: Any = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        return self.param("kernel", self.initializer, self.shape, self.param_dtype)


class AttentionLayer(nn.Module):
    """The parameters of attention with relative positions (Dai et al. 2019; GTrXL, appendix C).

    W_Q, W_K, W_V, W_R and W_O have no bias; u and v are trained and initialized to zero. The
    attention weights are recorded in the collection "attention". `RelativeAttention` and RATE's
    `AbsorbedAttention` are the same function of the same parameters.

    So initialized, attention is nearly uniform: with a memory of hundreds of steps, the last few
    hardly count, and to attend to them has to be learned. With a recency s, the weight of a step at
    distance d starts as about d^-s in the last head, as d^-(s/2), d^-(s/4), ... in those before it,
    and uniform in the first. For this, the first column of each head's W_R is the sum of the
    cosines of Phi_d, normalized, which falls as log d does, and the first entry of v weighs it.

    Attributes:
      width: D, the width of the input and the output.
      heads: H, the number of heads.
      head_width: K, the width of a head.
      recency: s; 0, the paper's, for uniform attention at first.
      dtype: computation dtype; None follows the inputs.
      param_dtype: dtype of the parameters.
    """

    width: int
    heads: int
    head_width: int
    recency: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        inner = self.heads * self.head_width
        self.query = Kernel((self.width, inner), self.param_dtype)
        self.key_value = Kernel((self.width, 2 * inner), self.param_dtype)
        self.position = Kernel((self.width, inner), self.param_dtype, self._init_positions)
        self.output = Kernel((inner, self.width), self.param_dtype)
        shape = (self.heads, self.head_width)
        zeros = nn.initializers.zeros_init()
        self.content_bias = self.param("content_bias", zeros, shape, self.param_dtype)
        self.position_bias = self.param(
            "position_bias", self._init_position_bias, shape, self.param_dtype
        )

    def _init_positions(self, key: Array, shape: tuple[int, int], dtype: Any) -> Array:
        kernel_DI: Array = nn.initializers.lecun_normal()(key, shape, dtype)
        if not self.recency:
            return kernel_DI
        is_cosine_D = np.arange(self.width) >= (self.width + 1) // 2
        cosines_D = jnp.asarray(is_cosine_D / np.sqrt(is_cosine_D.sum()), dtype)
        return kernel_DI.at[:, :: self.head_width].set(cosines_D[:, None])

    def _init_position_bias(self, key: Array, shape: tuple[int, int], dtype: Any) -> Array:
        power_H = np.append(0.0, self.recency * 0.5 ** np.arange(self.heads - 1)[::-1])
        # From d = 1 to 10,000, the normalized sum falls by the root of the number of cosines.
        scale_H = jnp.asarray(power_H, dtype) * math.log(10_000) * self.head_width**0.5
        return jnp.zeros(shape, dtype).at[:, 0].set(scale_H / (self.width // 2) ** 0.5)


@struct.dataclass
class KeyValue:
    """The key and the value of a step."""

    key: Float[Array, "... I"]
    value: Float[Array, "... I"]


@struct.dataclass
class AttentionCache:
    """The projections that one layer caches while its parameters stay fixed.

    Each head has its own rows, except on TPUs, whose registers are wider than a head: there all
    heads share them, I = H K. See `ops.cached_attention`.

    Attributes:
      key, value: ring buffers of N = M + 1 slots, `[B, H, N, K]` or `[B, N, I]`.
      position: W_R Phi_d for the distances d = M .. 0, `[H, N, K]` or `[N, I]`.
    """

    key: Float[Array, "*layout"]
    value: Float[Array, "*layout"]
    position: Float[Array, "*positions"]

    def write(self, step: KeyValue, slot: Int[Array, ""]) -> "AttentionCache":
        """Write a step into a slot of the ring buffers."""
        return dataclasses.replace(
            self,
            key=ops.write_slot(self.key, step.key, slot),
            value=ops.write_slot(self.value, step.value, slot),
        )


class RelativeAttention(AttentionLayer):
    """Attention with keys and values projected once, for segments and for cached steps."""

    def _heads(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch H K"]:
        return x.reshape(*x.shape[:-1], self.heads, self.head_width)

    def _positions(self, farthest: int, dtype: DTypeLike) -> Float[Array, "N I"]:
        """Return W_R Phi_d for the distances d = farthest .. 0, in this order."""
        # Phi in the parameters' precision: bfloat16 cannot separate neighboring distances.
        distance_N = jnp.arange(farthest, -1, -1, dtype=jnp.int32)
        phi_ND = ops.sinusoids(distance_N, self.width, self.param_dtype)
        return self._linear(self.position(), phi_ND.astype(dtype))

    def _linear(
        self, kernel_IO: Float[Array, "I O"], x: Float[Array, "*batch I"]
    ) -> Float[Array, "*batch O"]:
        return by_rows(lambda x_RI: product("ri,io->ro", x_RI, kernel_IO, self.dtype, x.dtype), x)

    def _by_head(
        self, kernel_DI: Float[Array, "D I"], x_BTD: Float[Array, "B T D"]
    ) -> Float[Array, "B T H K"]:
        """Project x and split the heads, in one product on TPUs, where splitting takes longer."""
        if platform() == "tpu":
            return product("btd,dhk->bthk", x_BTD, self._heads(kernel_DI), self.dtype, x_BTD.dtype)
        return self._heads(self._linear(kernel_DI, x_BTD))

    def _join_heads(
        self,
        kernel_ID: Float[Array, "I D"],
        x_BTHK: Float[Array, "B T H K"],
        dtype: DTypeLike,
    ) -> Float[Array, "B T D"]:
        """Project the joined heads to the stream in `dtype`, in one product on TPUs."""
        if platform() == "tpu":
            kernel_HKD = kernel_ID.reshape(*x_BTHK.shape[2:], -1)
            return product("bthk,hkd->btd", x_BTHK, kernel_HKD, self.dtype, dtype)
        return self._linear(kernel_ID, x_BTHK.reshape(*x_BTHK.shape[:2], -1)).astype(dtype)

    def _biases(self, dtype: DTypeLike) -> tuple[Array, Array]:
        return self.content_bias.astype(dtype), self.position_bias.astype(dtype)

    def __call__(
        self,
        x_BSD: Float[Array, "B S D"],
        mask_BTS: Bool[Array, "B T S"],
    ) -> Float[Array, "B T D"]:
        """Attend from each of the last T of the S inputs to itself and the S - T before it."""
        num_queries, num_keys = mask_BTS.shape[1:]
        query_BTHK = self._by_head(self.query(), x_BSD[:, num_keys - num_queries :])
        kernels = jnp.split(self.key_value(), 2, axis=-1)
        dtype = self.dtype or x_BSD.dtype
        key_BSHK, value_BSHK = (
            self._by_head(kernel_DI, x_BSD).astype(dtype) for kernel_DI in kernels
        )
        content_BTHK, position_BTHK = (
            ((query_BTHK + bias_HK[None, None]) * self.head_width**-0.5).astype(dtype)
            for bias_HK in self._biases(query_BTHK.dtype)
        )
        out_BTHK, weights_BHTS = ops.segment_attention(
            content_BTHK,
            key_BSHK,
            value_BSHK,
            self._scores(position_BTHK, num_keys),
            mask_BTS,
            platform() == "tpu",
        )
        if self.is_mutable_collection("attention") and not self.is_initializing():
            self.sow("attention", "weights", ops.by_distance(weights_BHTS))
        return self._join_heads(self.output(), out_BTHK, x_BSD.dtype)

    def _scores(
        self, query_BTHK: Float[Array, "B T H K"], num_keys: int
    ) -> Float[Array, "B H T S"]:
        """Return Q_i . R_{i-j} of the last T of S steps."""
        dtype = query_BTHK.dtype
        if platform() == "tpu":
            kernel_DHK = self._heads(self.position()).astype(dtype)
            return ops.rotated_scores(query_BTHK, kernel_DHK, num_keys, self.param_dtype)
        position_NI = self._positions(num_keys - query_BTHK.shape[1], dtype)
        return ops.shifted_scores(query_BTHK, self._heads(position_NI))

    def start(self, x_BMD: Float[Array, "B M D"]) -> AttentionCache:
        """Project the memory into ring buffers whose last slot is free."""
        # Two products: the halves of one would have to be copied.
        key_BNI, value_BNI = (
            jnp.pad(self._linear(kernel_DI, x_BMD), [(0, 0), (0, 1), (0, 0)])
            for kernel_DI in jnp.split(self.key_value(), 2, axis=-1)
        )
        arrays = key_BNI, value_BNI, self._positions(x_BMD.shape[1], key_BNI.dtype)
        if platform() == "tpu":
            return AttentionCache(*arrays)
        return AttentionCache(*(self._heads(z).swapaxes(-3, -2) for z in arrays))

    def step(
        self,
        cache: AttentionCache,
        x_BD: Float[Array, "B D"],
        slot: Int[Array, ""],
        mask_BN: Bool[Array, "B N"],
    ) -> tuple[KeyValue, Float[Array, "B D"]]:
        """Attend from one step to the ring buffers, in which it takes the place of `slot`.

        Returns:
          What to write to the slot, and the output.
        """
        if platform() == "tpu":
            # One product. The compiler joins the kernels once, before the loop over the steps.
            kernel_DI = jnp.concatenate([self.query(), self.key_value()], axis=-1)
            query_BI, key_BI, value_BI = jnp.split(self._linear(kernel_DI, x_BD), 3, axis=-1)
        else:
            query_BI = self._linear(self.query(), x_BD)
            key_BI, value_BI = jnp.split(self._linear(self.key_value(), x_BD), 2, axis=-1)
        out_BI = ops.cached_attention(
            query_BI,
            key_BI,
            value_BI,
            cache.key,
            cache.value,
            cache.position,
            *self._biases(query_BI.dtype),
            slot,
            mask_BN,
        )
        return KeyValue(key_BI, value_BI), self._linear(self.output(), out_BI)


Layers = Any
"""Values of L layers: one pytree of arrays `[L, ...]`, or a list of a pytree for each layer."""

UNROLLED_STEPS = 12
"""The largest number of layers whose steps of acting are unrolled on TPUs too. Their program is
small; unrolled, a TPU fetches the parameters of a layer while it computes another, and by XLA's
estimate takes half the time. What they cache stays in arrays `[L, ...]`: caches of each layer would
take the fast memory that these parameters need."""


def run_layers(
    function: Callable[..., tuple[Any, Any]], x: Any, *layers: Layers, remat: bool = False
) -> tuple[Any, Layers]:
    """Apply `function(x, *values) -> (x, result)` to the values of each layer in turn.

    Arrays `[L, ...]` are run in a loop on TPUs, so that one layer is compiled for any depth: the
    compiler would take minutes for a dozen. It stores only each layer's input for the backward
    pass, since to store more takes longer than to compute it again. Lists, and elsewhere arrays
    too, are unrolled: a loop would copy each layer's values out of the arrays.

    Args:
      function: a layer.
      x: the input of the first layer.
      layers: values of the layers.
      remat: whether to recompute the activations in the backward pass also if unrolled.

    Returns:
      The output of the last layer, and the layers' results.
    """
    loop = platform() == "tpu" and not any(isinstance(values, list) for values in layers)
    if remat or loop:
        function = jax.checkpoint(function, prevent_cse=not loop)
    if loop:
        return jax.lax.scan(lambda x, values: function(x, *values), x, layers)
    results = []
    for values in zip(*map(unstack_layers, layers), strict=True):
        x, result = function(x, *values)
        results.append(result)
    return x, results


def map_layers(function: Callable[..., Any], *layers: Layers) -> Layers:
    """Apply a function to the values of each layer; it may not depend on their leading axes.

    The result is a list if the first values are, and arrays `[L, ...]` otherwise.
    """
    if isinstance(layers[0], list):
        return list(map(function, *layers))
    return function(*(stack_layers(values, axis=0) for values in layers))


def unstack_layers(layers: Layers) -> list[Any]:
    """Return a pytree for each layer."""
    if isinstance(layers, list):
        return layers
    leaves, structure = jax.tree.flatten(layers)
    # Splitting differentiates to one concatenation, indexing to a sum of padded gradients.
    split = ((z[0] for z in jnp.split(leaf, len(leaf))) for leaf in leaves)
    return [jax.tree.unflatten(structure, values) for values in zip(*split, strict=True)]


def stack_layers(layers: Layers, axis: int) -> Any:
    """Return one pytree of arrays with the layers along `axis`."""
    if isinstance(layers, list):
        return jax.tree.map(lambda *z: jnp.stack(z, axis), *layers)
    return jax.tree.map(lambda z: jnp.moveaxis(z, 0, axis), layers)


def cast_kernels(params: Any, dtype: DTypeLike | None) -> Any:
    """Cast the kernels of products to `dtype`, in which they are used; None: no cast."""

    def cast(path: Any, leaf: Array) -> Array:
        return leaf if dtype is None or path[-1].key != "kernel" else leaf.astype(dtype)

    return jax.tree.map_with_path(cast, params)
