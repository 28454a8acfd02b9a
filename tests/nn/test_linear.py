"""Linear maps by rows: equal to x @ matrix, with any leading axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.layers import Dense, by_rows


@pytest.mark.parametrize("lead", [(), (3,), (0,), (2, 3), (2, 0), (2, 3, 4)])
def test_product_and_gradients(lead, x64):
    rng = np.random.default_rng(0)
    x, matrix = rng.standard_normal((*lead, 5)), rng.standard_normal((5, 4))
    y, pull = jax.vjp(
        lambda x, matrix: by_rows(lambda rows: rows @ matrix, x),
        jnp.asarray(x),
        jnp.asarray(matrix),
    )
    np.testing.assert_allclose(y, x @ matrix, atol=1e-12)
    g = rng.standard_normal(y.shape)
    to_x, to_matrix = pull(jnp.asarray(g))
    np.testing.assert_allclose(to_x, g @ matrix.T, atol=1e-12)
    joined = x.reshape(int(np.prod(lead)), 5).T @ g.reshape(int(np.prod(lead)), 4)
    np.testing.assert_allclose(to_matrix, joined, atol=1e-12)


def test_gradient_needs_no_transposed_copy():
    """The kernel's gradient contracts the first axis of both operands, as they are stored."""

    def loss(params, x):
        return jnp.sum(jnp.square(dense.apply(params, x)))

    dense = Dense(6)
    x = jnp.ones((2, 3, 5))
    params = dense.init(jax.random.key(0), x)
    program = str(jax.make_jaxpr(jax.grad(loss))(params, x))
    assert "dimension_numbers=(([0], [0]), ([], []))" in program
    assert "dimension_numbers=(([0, 1]" not in program
