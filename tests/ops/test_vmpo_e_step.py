"""V-MPO's E-step: an exact top half, and an accurate temperature gradient at any scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from gtrxl_jax.ops import vmpo

B, T = 8, 6


def make_samples():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(B, T))), jnp.asarray(rng.random((B, T)) < 0.75)


def test_psi_is_normalized_and_policy_loss_summed(x64):
    psi, _ = vmpo.e_step(*make_samples(), jnp.array(0.7), jnp.array(0.1))
    np.testing.assert_allclose(psi.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(vmpo.policy_loss(jnp.full((B, T), -3.0), psi), 3, rtol=1e-12)


def test_unselected_samples_do_not_affect_softmax(x64):
    advantages, mask = make_samples()
    chosen = vmpo.select_top_half(advantages, mask)
    results = [
        vmpo.e_step(x, mask, jnp.array(0.7), jnp.array(0.1))
        for x in (advantages, jnp.where(chosen, advantages, advantages - 50))
    ]
    np.testing.assert_array_equal(results[0][0] > 0, chosen)
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("valid", [0, 1, 2, 3, 7, B * T])
@pytest.mark.parametrize("levels", [1, 2, 5, None])
def test_exactly_half_is_selected_despite_ties(valid, levels):
    rng = np.random.default_rng(valid)
    advantages = rng.normal(size=(B, T)) if levels is None else rng.integers(levels, size=(B, T))
    advantages = advantages.astype("f4")
    mask = rng.permutation(np.arange(B * T) < valid).reshape(B, T)
    chosen = np.asarray(vmpo.select_top_half(jnp.asarray(advantages), jnp.asarray(mask)))
    assert chosen.sum() == valid // 2
    assert not np.any(chosen & ~mask)
    if valid >= 2:
        assert advantages[chosen].min() >= advantages[mask & ~chosen].max()
    psi, _ = vmpo.e_step(jnp.asarray(advantages), jnp.asarray(mask), jnp.ones(()), jnp.ones(()))
    assert np.isclose(psi.sum(), valid >= 2)


@pytest.mark.parametrize("eta", [1e-8, 1e-3, 1.0, 1e4])
def test_temperature_gradient_equals_constraint(eta):
    """In float32: d L / d eta = epsilon - KL(psi || uniform), also with advantages >> eta."""
    advantages = np.random.default_rng(0).normal(size=(B, T)) * 100
    mask = jnp.ones((B, T), bool)

    def loss(eta):
        return vmpo.e_step(jnp.asarray(advantages, jnp.float32), mask, eta, jnp.float32(0.1))[1]

    best = np.sort(np.float32(advantages).astype(float).ravel())[-B * T // 2 :]
    weights = scipy.special.softmax(best / eta)
    kl = scipy.stats.entropy(weights, np.full(len(best), 1 / len(best)))
    np.testing.assert_allclose(jax.grad(loss)(jnp.float32(eta)), 0.1 - kl, rtol=1e-4, atol=1e-6)
