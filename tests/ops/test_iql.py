"""The losses of IQL, against naive loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.iql import advantage_weights, expectile_loss

pytestmark = pytest.mark.usefixtures("x64")


def test_expectile_loss_equals_naive_loops():
    rng = np.random.default_rng(0)
    value, q = jnp.asarray(rng.standard_normal((2, 3, 4)))
    found = jax.jit(lambda v, q: expectile_loss(v, q, 0.8))(value, q)
    of_value, of_q = jax.grad(lambda v, q: jnp.sum(expectile_loss(v, q, 0.8)), argnums=(0, 1))(
        value, q
    )
    for place in np.ndindex(3, 4):
        u = q[place] - value[place]
        weight = 0.2 if u < 0 else 0.8
        np.testing.assert_allclose(found[place], weight * u**2, rtol=1e-12)
        np.testing.assert_allclose(of_value[place], -2 * weight * u, rtol=1e-12)
    np.testing.assert_array_equal(of_q, 0)


@pytest.mark.parametrize(("expectile", "expected"), [(0.5, 2.0), (0.8, 4.0)])
def test_minimum_is_the_expectile(expectile, expected):
    """Of values of which one third is 6: (1 - tau) 2 V = tau (6 - V)."""
    q = jnp.asarray([[0.0, 0.0, 6.0]])
    gradient = jax.grad(lambda v: jnp.sum(expectile_loss(jnp.full(q.shape, v), q, expectile)))
    np.testing.assert_allclose(gradient(expected), 0, atol=1e-12)


def test_weights_are_limited_and_have_no_gradient():
    q, value = jnp.asarray([[1.0, -2.0, 1e6]]), jnp.asarray([[0.5, 0.0, 0.0]])
    found = advantage_weights(q, value, 3.0)
    np.testing.assert_allclose(found, [[np.exp(1.5), np.exp(-6.0), 100.0]], rtol=1e-12)
    gradients = jax.grad(lambda *x: jnp.sum(advantage_weights(*x, 3.0)), argnums=(0, 1))(q, value)
    np.testing.assert_array_equal(gradients, 0)
