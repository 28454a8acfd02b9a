"""Convolutions for CPU: equal to JAX's, and in the layout that is fast in loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.encoders import make_encoder
from gtrxl_jax.ops.convolution import convolve

pytestmark = pytest.mark.usefixtures("x64")
LAYOUT = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
CASES = [
    ((10, 10), (3, 3), (1, 1), "SAME"),
    ((9, 7), (3, 2), (1, 2), "SAME"),
    ((20, 21), (8, 4), (4, 2), "VALID"),
    ((6, 5), (2, 3), (2, 1), ((1, 0), (2, 3))),
]


def arrays(side, window, images=2):
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (images, *side, 3)), jax.random.normal(
        keys[1], (*window, 3, 5)
    )


@pytest.mark.parametrize("images", [0, 2, 37])
@pytest.mark.parametrize(("side", "window", "strides", "padding"), CASES)
def test_output_and_gradients_equal_jax(side, window, strides, padding, images):
    def with_gradients(function):
        def apply(x, kernel):
            return function(x, kernel, strides, padding, **LAYOUT)

        @jax.jit
        def outcome(x, kernel):
            output, pull = jax.vjp(apply, x, kernel)
            return output, pull(jnp.cos(output))

        return outcome(*arrays(side, window, images))

    actual, expected = map(with_gradients, (convolve, jax.lax.conv_general_dilated))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), actual, expected
    )


def test_vmap_over_images_and_kernels():
    x, kernel = (jnp.stack([a, 2 * a]) for a in arrays(*CASES[1][:2]))

    def loss(x, kernel):
        return jnp.sum(convolve(x, kernel, *CASES[1][2:], **LAYOUT) ** 2)

    gradient = jax.grad(loss, argnums=(0, 1))
    gradients, one = jax.jit(jax.vmap(gradient))(x, kernel), jax.jit(gradient)
    for n in range(2):
        jax.tree.map(
            lambda a, b, n=n: np.testing.assert_allclose(a[n], b, rtol=1e-12),
            gradients,
            one(x[n], kernel[n]),
        )


@pytest.mark.parametrize(
    "options",
    [{"feature_group_count": 3}, {"rhs_dilation": (2, 2)}, {"lhs_dilation": (1, 2)}],
)
def test_other_convolutions_are_left_to_jax(options):
    x, kernel = arrays((8, 8), (3, 3))
    kernel = kernel[:, :, : 3 // options.get("feature_group_count", 1), :3]
    arguments = (x, kernel, (1, 1), ((1, 1), (1, 1)))
    expected = jax.lax.conv_general_dilated(*arguments, **LAYOUT, **options)
    np.testing.assert_array_equal(convolve(*arguments, **LAYOUT, **options), expected)


@pytest.mark.parametrize(("name", "side"), [("conv", 10), ("nature", 52), ("resnet", 24)])
def test_encoders_in_loops_use_fast_layout(name, side):
    encoder = make_encoder(jax.ShapeDtypeStruct((side, side, 4), jnp.float32), name, width=8)
    x = jnp.zeros((3, side, side, 4), jnp.float32)
    params = jax.eval_shape(encoder.init, jax.random.key(0), x)

    def learn(params, _):
        gradient = jax.grad(lambda params: jnp.sum(encoder.apply(params, x) ** 2))(params)
        return jax.tree.map(lambda p, g: p - g, params, gradient), None

    program = jax.jit(lambda params: jax.lax.scan(learn, params, length=3))
    convolutions = re.findall(r"dim_labels=(\S+?)[,\s]", program.lower(params).compile().as_text())
    assert len(convolutions) >= 3
    assert set(convolutions) == {"b01f_01io->b01f"}
