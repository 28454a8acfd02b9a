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


MASK = jnp.asarray([[True, True, True, False]])


def test_weights_are_limited_and_have_no_gradient():
    """The root mean square of the advantages of real steps is 2."""
    q, value = jnp.asarray([[1.5, -2.0, 3.0, 7.0]]), jnp.asarray([[0.5, 0.0, 3 - np.sqrt(7), 0.0]])
    found = advantage_weights(q, value, MASK, 3.0)
    expected = [np.exp(1.5), np.exp(-3.0), np.exp(1.5 * np.sqrt(7))]
    np.testing.assert_allclose(found[0, :3], expected, rtol=1e-12)
    limited = advantage_weights(q, value, MASK, 1e6)
    np.testing.assert_allclose(limited[0, :3], [100.0, 0.0, 100.0], rtol=1e-12)
    gradients = jax.grad(lambda *x: jnp.sum(advantage_weights(*x, MASK, 3.0)), argnums=(0, 1))(
        q, value
    )
    np.testing.assert_array_equal(gradients, 0)


def test_weights_have_no_units():
    q, value = jnp.asarray(np.random.default_rng(0).standard_normal((2, 1, 4)))
    weights = advantage_weights(q, value, MASK, 2.0)
    for unit in (1e-3, 1e3):
        scaled = advantage_weights(unit * q, unit * value, MASK, 2.0)
        np.testing.assert_allclose(scaled, weights, rtol=1e-12)
    np.testing.assert_array_equal(advantage_weights(q, q, MASK, 2.0), 1)
