"""The policy loss of TD3+BC and one-step targets, against naive loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.td import td_targets
from gtrxl_jax.ops.td3_bc import behavior_regularized_loss

pytestmark = pytest.mark.usefixtures("x64")


def test_loss_equals_naive_loops():
    rng = np.random.default_rng(0)
    q, error = rng.standard_normal((2, 3, 4))
    mask = rng.random((3, 4)) < 0.6
    arguments = jnp.asarray(q), jnp.asarray(error)

    def loss(q, error):
        return behavior_regularized_loss(q, error, jnp.asarray(mask), 2.5)

    real = list(zip(*np.nonzero(mask), strict=True))
    weight = 2.5 / np.mean([abs(q[place]) for place in real])
    expected = np.mean([error[place] - weight * q[place] for place in real])
    np.testing.assert_allclose(jax.jit(loss)(*arguments), expected, rtol=1e-12)
    of_q, of_error = jax.jit(jax.grad(loss, argnums=(0, 1)))(*arguments)
    np.testing.assert_allclose(of_q, np.where(mask, -weight / len(real), 0), rtol=1e-12)
    np.testing.assert_allclose(of_error, np.where(mask, 1 / len(real), 0), rtol=1e-12)


def test_values_of_zero_are_no_division_by_zero():
    zeros = jnp.zeros((1, 2))
    value, gradient = jax.value_and_grad(
        lambda q: behavior_regularized_loss(q, zeros, jnp.ones((1, 2), bool), 2.5)
    )(zeros)
    assert value == 0
    assert np.all(np.isfinite(gradient))


def test_targets_bootstrap_unless_terminated():
    reward, value = jnp.asarray([[1.0, 2.0]]), jnp.asarray([[10.0, 20.0]])
    terminated = jnp.asarray([[False, True]])
    np.testing.assert_allclose(td_targets(reward, terminated, value, 0.9), [[10.0, 2.0]])
    gradient = jax.grad(lambda v: jnp.sum(td_targets(reward, terminated, v, 0.9)))(value)
    np.testing.assert_array_equal(gradient, 0)
