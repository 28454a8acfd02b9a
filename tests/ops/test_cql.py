"""The penalties of CQL, against naive loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.cql import conservative_penalty, sampled_conservative_penalty

B, S, A = 3, 4, 5
pytestmark = pytest.mark.usefixtures("x64")


def test_penalty_equals_naive_loops():
    rng = np.random.default_rng(0)
    q = jnp.asarray(3 * rng.standard_normal((B, S, A)))
    action = jnp.asarray(rng.integers(0, A, (B, S)))
    found = jax.jit(conservative_penalty)(q, action)
    gradient = jax.jit(jax.grad(lambda q: jnp.sum(conservative_penalty(q, action) ** 2)))(q)
    for b, s in np.ndindex(B, S):
        total = sum(np.exp(q[b, s, a]) for a in range(A))
        expected = np.log(total) - q[b, s, action[b, s]]
        np.testing.assert_allclose(found[b, s], expected, rtol=1e-12)
        for a in range(A):
            slope = np.exp(q[b, s, a]) / total - float(a == action[b, s])
            np.testing.assert_allclose(gradient[b, s, a], 2 * expected * slope, atol=1e-10)


def test_sampled_penalty_equals_naive_loops():
    rng = np.random.default_rng(1)
    q, log_density = jnp.asarray(rng.standard_normal((2, B, S, A)))
    data = jnp.asarray(rng.standard_normal((B, S)))
    found = jax.jit(sampled_conservative_penalty)(q, log_density, data)
    gradients = jax.jit(
        jax.grad(lambda *x: jnp.sum(sampled_conservative_penalty(*x)), argnums=(0, 1, 2))
    )(q, log_density, data)
    for b, s in np.ndindex(B, S):
        ratios = [np.exp(q[b, s, n]) / np.exp(log_density[b, s, n]) for n in range(A)]
        expected = np.log(np.mean(ratios)) - data[b, s]
        np.testing.assert_allclose(found[b, s], expected, rtol=1e-12)
        np.testing.assert_allclose(gradients[0][b, s], ratios / np.sum(ratios), rtol=1e-10)
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(gradients[2], -1)


def test_sampled_penalty_estimates_the_integral():
    """Of exp Q over [-1, 1], for Q = 2 a, also by actions that are drawn unevenly."""
    rng = np.random.default_rng(2)
    uniform = rng.uniform(-1, 1, 20_000)
    ramp = 2 * np.sqrt(rng.uniform(0, 1, 20_000)) - 1  # with density (a + 1) / 2
    actions = np.concatenate([uniform, ramp])
    log_density = np.log(np.concatenate([np.full(20_000, 0.5), (ramp + 1) / 2]))
    found = sampled_conservative_penalty(
        jnp.asarray(2 * actions)[None, None],
        jnp.asarray(log_density)[None, None],
        jnp.zeros((1, 1)),
    )
    np.testing.assert_allclose(found, np.log(np.sinh(2.0)), atol=0.03)
