"""Shares of the losses' gradient, against one gradient for each group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.online.on_policy import gradient_shares

GROUPS = {"policy": ("policy", "entropy"), "value": ("value",), "kl": ("alpha_",)}


def losses(y):
    return {
        "policy": jnp.sum(jnp.sin(y)),
        "entropy": jnp.sum(y**2),
        "value": 3 * jnp.sum(jnp.cos(y)),
        "temperature": 100 * jnp.sum(y),
    }


def test_shares_equal_the_norms_of_separate_gradients(x64):
    y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)))
    policy = np.linalg.norm(jax.grad(lambda y: losses(y)["policy"] + losses(y)["entropy"])(y))
    value = np.linalg.norm(jax.grad(lambda y: losses(y)["value"])(y))
    shares = gradient_shares(losses, y, GROUPS)
    assert shares == {
        "share/policy": pytest.approx(policy / (policy + value), rel=1e-12),
        "share/value": pytest.approx(value / (policy + value), rel=1e-12),
        "share/kl": 0,
    }


def test_shares_are_zero_without_a_gradient():
    shares = gradient_shares(lambda y: {"value": 0 * jnp.sum(y)}, jnp.ones(3), GROUPS)
    assert set(map(float, shares.values())) == {0}
