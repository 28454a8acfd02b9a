"""Convolutions whose gradients are fast inside loops on CPU.

XLA's CPU backend runs a convolution on Eigen's kernels if its operands have the layouts
`[N, H, W, C]` and `[h, w, C, c]`. It converts other layouts to these, but only in the outermost
computation of a program: inside `lax.scan`, `while_loop` or `map` they become scalar loops, tens of
times slower (https://github.com/jax-ml/jax/issues/12868). The forward pass of a Flax convolution
has the fast layout, but JAX's two gradients of it do not. Here they are written in that layout.

Eigen's kernels are slow for strides and few channels, as in the first layer of DQN's network, and
the gradients of strided convolutions are mostly products with zeros. These convolutions are matrix
products here. The fastest are of few images, which fit the caches: see `ImageEncoder`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gtrxl_jax.platforms import platform

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
    if platform() != "cpu" or not _is_plain(x, kernel, **options):
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    precision = options.get("precision")
    if max(strides) > 1:
        return _convolve_strided(x, kernel, tuple(strides), pads, precision)
    return _convolve(x, kernel, pads, precision)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, kernel: Array, pads: Pads, precision: Any) -> Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), pads, dimension_numbers=LAYOUT, precision=precision
    )


def _forward(x: Array, kernel: Array, pads: Pads, precision: Any) -> Any:
    return _convolve(x, kernel, pads, precision), (x, kernel)


def _backward(pads: Pads, precision: Any, inputs: Any, g: Array) -> tuple[Array, Array]:
    x, kernel = inputs
    # For each axis: the sizes of image, kernel and output, and the low padding.
    axes = [
        (x.shape[a], kernel.shape[a - 1], g.shape[a], low)
        for a, (low, _) in zip((1, 2), pads, strict=True)
    ]
    convolution = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1),
        dimension_numbers=LAYOUT,
        precision=precision,
    )
    # d/dx: convolve g with the flipped kernel.
    of_x = convolution(
        g,
        jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
        padding=[(k - 1 - low, n - m + low) for n, k, m, low in axes],
    )
    # d/dkernel: convolve x with g, with the batch in the place of the channels.
    of_kernel = convolution(
        x.transpose(3, 1, 2, 0),
        g.transpose(1, 2, 0, 3),
        padding=[(low, k + m - 1 - n - low) for n, k, m, low in axes],
    )
    return of_x, of_kernel.transpose(1, 2, 0, 3)


_convolve.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve_strided(
    x: Array, kernel: Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> Array:
    return _by_blocks(x, kernel, strides, pads, precision)


def _strided_forward(x: Array, kernel: Array, strides: Any, pads: Pads, precision: Any) -> Any:
    return _convolve_strided(x, kernel, strides, pads, precision), (x, kernel)


def _strided_backward(
    strides: Any, pads: Pads, precision: Any, inputs: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    # The blocks are formed again, since they are several times larger than the images.
    _, pull = jax.vjp(lambda x, k: _by_blocks(x, k, strides, pads, precision), *inputs)
    of_x, of_kernel = pull(g)
    return of_x, of_kernel


_convolve_strided.defvjp(_strided_forward, _strided_backward)


def _by_blocks(
    x_NHWC: Array, kernel_hwCc: Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> Array:
    """Compute a strided convolution: one matrix product for each stride-sized block of the kernel.

    Images and kernel are cut into blocks of s x s pixels, of which each becomes one pixel of s^2 C
    channels. There, the stride is 1, and each pixel of the kernel meets a slice of the images.
    """
    kernel_size, channels = kernel_hwCc.shape[:2], kernel_hwCc.shape[3]
    # For each axis: pixels of the output, and blocks of the kernel.
    (y, rows), (x, columns) = (
        ((n + sum(pad) - k) // s + 1, -(-k // s))
        for n, pad, k, s in zip(x_NHWC.shape[1:3], pads, kernel_size, strides, strict=True)
    )
    blocks = (y + rows - 1, x + columns - 1)
    x_NYXD = _blocks(x_NHWC, (1, 2), strides, [low for low, _ in pads], blocks)
    kernel_yxDc = _blocks(kernel_hwCc, (0, 1), strides, (0, 0), (rows, columns))

    def product(a: int, b: int) -> Array:
        pixels_MD = x_NYXD[:, a : a + y, b : b + x].reshape(-1, x_NYXD.shape[3])
        return jnp.matmul(pixels_MD, kernel_yxDc[a, b], precision=precision)

    total_Mc = functools.reduce(
        jnp.add, (product(a, b) for a in range(rows) for b in range(columns))
    )
    return total_Mc.reshape(-1, y, x, channels)


def _blocks(
    x: Array, axes: tuple[int, int], size: Sequence[int], low: Sequence[int], blocks: Sequence[int]
) -> Array:
    """Cut two adjacent axes, padded by `low`, into blocks; their pixels join the next axis."""
    pads = [(0, 0, 0)] * x.ndim
    for axis, s, before, count in zip(axes, size, low, blocks, strict=True):
        pads[axis] = (before, s * count - x.shape[axis] - before, 0)
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), pads)
    first, rest = x.shape[: axes[0]], x.shape[axes[1] + 1 :]
    x = x.reshape(*first, blocks[0], size[0], blocks[1], size[1], *rest).swapaxes(
        axes[0] + 1, axes[0] + 2
    )
    return x.reshape(*first, *blocks, size[0] * size[1] * rest[0], *rest[1:])
