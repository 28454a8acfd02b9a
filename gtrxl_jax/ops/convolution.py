"""Convolutions whose gradients are fast inside loops on CPU.

XLA's CPU backend runs a convolution on Eigen's kernels if its operands have the layouts
`[N, H, W, C]` and `[h, w, C, c]`. It converts other layouts to these, but only in the outermost
computation of a program: inside `lax.scan`, `while_loop` or `map` they become scalar loops, tens of
times slower (https://github.com/jax-ml/jax/issues/12868). The forward pass of a Flax convolution
has the fast layout, but JAX's two gradients of it do not. Here they are written in that layout.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LAYOUT = ("NHWC", "HWIO", "NHWC")
Pads = tuple[tuple[int, int], ...]


def convolve(
    x: Float[Array, "N *HW C"],
    kernel: Float[Array, "*hw _ c"],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> Float[Array, "N *yx c"]:
    """Compute `lax.conv_general_dilated`, with gradients that are fast in loops on CPU.

    Pass it to `nn.Conv` as `conv_general_dilated`. Convolutions with dilation, groups, another
    layout or another number of spatial axes are left to JAX. On CPU there is no forward-mode
    derivative.

    Args:
      x: images.
      kernel: the filters, over the channels of one group.
      strides: strides of the two spatial axes.
      padding: as in `lax.conv_general_dilated`.
      options: other arguments of `lax.conv_general_dilated`.
    """
    if jax.default_backend() != "cpu" or not _is_plain(x, kernel, **options):
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    return _convolve(x, kernel, tuple(strides), pads, options.get("precision"))


def _is_plain(
    x: Array, kernel: Array, dimension_numbers: Any = None, precision: Any = None, **others: Any
) -> bool:
    """Return whether the layout is `LAYOUT` and dilations and groups are 1, at any precision."""
    if x.ndim != 4 or not all(v is None or np.all(np.asarray(v) == 1) for v in others.values()):
        return False
    layout, plain = (
        jax.lax.conv_dimension_numbers(x.shape, kernel.shape, names)
        for names in (dimension_numbers, LAYOUT)
    )
    return layout == plain


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(x: Array, kernel: Array, strides: tuple[int, ...], pads: Pads, precision: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, strides, pads, dimension_numbers=LAYOUT, precision=precision
    )


def _forward(x: Array, kernel: Array, strides: Any, pads: Pads, precision: Any) -> Any:
    return _convolve(x, kernel, strides, pads, precision), (x, kernel)


def _backward(strides: Any, pads: Pads, precision: Any, inputs: Any, g: Array) -> tuple[Any, Any]:
    x, kernel = inputs
    # For each axis: image size, kernel size, extent of the strided output, low padding.
    axes = [
        (x.shape[a], kernel.shape[a - 1], (g.shape[a] - 1) * strides[a - 1] + 1, pads[a - 1][0])
        for a in (1, 2)
    ]
    convolution = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        dimension_numbers=LAYOUT,
        precision=precision,
    )
    # d/dx: convolve g, dilated by the strides, with the flipped kernel.
    of_x = convolution(
        g,
        jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
        padding=[(k - 1 - low, n - s + low) for n, k, s, low in axes],
        lhs_dilation=strides,
    )
    # d/dkernel: convolve x with g, with the batch in the place of the channels.
    of_kernel = convolution(
        x.transpose(3, 1, 2, 0),
        g.transpose(1, 2, 0, 3),
        padding=[(low, k + s - 1 - n - low) for n, k, s, low in axes],
        rhs_dilation=strides,
    )
    return of_x, of_kernel.transpose(1, 2, 0, 3)


_convolve.defvjp(_forward, _backward)
