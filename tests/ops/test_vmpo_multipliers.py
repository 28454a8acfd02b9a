"""V-MPO's multipliers return from their bounds, and reach their constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gtrxl_jax.ops import vmpo
from tests.ops.vmpo_batches import B, T, loss_of, make_batch


@pytest.mark.parametrize("raw", [-0.5, 0.0, 1e-8])
def test_alpha_gradient_never_vanishes(raw):
    kl = jnp.full((B, T), 0.3)
    gradient = jax.grad(vmpo.kl_loss, argnums=2)(
        kl, jnp.ones((B, T), bool), jnp.float32(raw), jnp.float32(0.1)
    )
    np.testing.assert_allclose(gradient, 0.1 - 0.3, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [optax.sgd(1.0), optax.adam(0.5)], ids=["sgd", "adam"])
def test_multipliers_recover_from_bound(optimizer):
    """Slack constraints with huge steps drive them to the bound; violated ones bring them back."""
    batch = make_batch("hybrid", dtype=jnp.float32)

    def bounds(size):
        return jax.tree.map(lambda x: jnp.full_like(x, size), batch["hyperparameters"])

    @jax.jit
    def step(multipliers, state, hyperparameters):
        data = batch | {"hyperparameters": hyperparameters}
        gradient = jax.grad(lambda m: loss_of({"multipliers": m}, data)[0])(multipliers)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            change, state = optimizer.update(gradient, state, multipliers)
        return vmpo.project_multipliers(optax.apply_updates(multipliers, change)), state

    multipliers = batch["multipliers"]
    state = optimizer.init(multipliers)
    for _ in range(20):
        multipliers, state = step(multipliers, state, bounds(100.0))
    assert all(m == np.float32(1e-8) for m in jax.tree.leaves(multipliers))
    history = [multipliers]
    for _ in range(300):
        multipliers, state = step(multipliers, state, bounds(1e-3))
        history.append(multipliers)
    peaks = jax.tree.map(lambda *m: max(m), *history)
    assert all(m > 0.1 for m in jax.tree.leaves(peaks))


def test_projection_clips_only_outside_bounds():
    multipliers = vmpo.Multipliers(
        temperature=jnp.float32(-3), alphas={"mean": jnp.float32(2), "covariance": jnp.float32(0)}
    )
    projected = vmpo.project_multipliers(multipliers, (1e-4, 10.0))
    assert projected.temperature == np.float32(1e-8)
    assert projected.alphas == {"mean": 2, "covariance": np.float32(1e-4)}
    assert vmpo.project_multipliers(multipliers, (0.5, 1.5)).alphas["mean"] == 1.5


def test_scaled_multipliers_follow_violation(x64):
    """The step is the rate times the relative violation, which is clipped to [-1, 10]."""
    hyperparameters = make_batch("hybrid")["hyperparameters"]
    bounds = hyperparameters.epsilon_alphas
    multipliers = vmpo.Multipliers(jnp.array(2.0), {part: jnp.array(3.0) for part in bounds})
    violation = {"mean": 0.0, "covariance": 3.0, "categorical": 1e6}
    kls = {part: violation[part] * bounds[part] for part in bounds}
    scaled = vmpo.scale_multipliers(
        multipliers, hyperparameters.epsilon_eta, kls, hyperparameters, rate=0.1
    )
    np.testing.assert_allclose(scaled.temperature, 2)
    np.testing.assert_allclose(scaled.alphas["mean"], 3 * np.exp(-0.1))
    np.testing.assert_allclose(scaled.alphas["covariance"], 3 * np.exp(0.2))
    np.testing.assert_allclose(scaled.alphas["categorical"], 3 * np.exp(1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scaled_temperature_reaches_bound(scale):
    """Within 200 updates from 1, in any units of the advantages."""
    rng = np.random.default_rng(0)
    mask = jnp.ones((B, 20 * T), bool)
    bounds = make_batch(dtype=jnp.float32)["hyperparameters"]
    multipliers = vmpo.Multipliers(jnp.ones(()), {"categorical": jnp.ones(())})

    @jax.jit
    def step(multipliers, advantages):
        psi, _ = vmpo.e_step(advantages, mask, multipliers.temperature, bounds.epsilon_eta)
        kl = jnp.sum(psi * jnp.log(jnp.where(psi > 0, psi, 1))) + float(np.log(mask.size / 2))
        kls = {"categorical": jnp.zeros(())}
        return vmpo.scale_multipliers(multipliers, kl, kls, bounds, rate=0.05), kl

    kls = []
    for _ in range(200):
        advantages = jnp.asarray(scale * rng.normal(size=mask.shape), jnp.float32)
        multipliers, kl = step(multipliers, advantages)
        kls.append(float(kl))
    np.testing.assert_allclose(np.mean(kls[-20:]), 0.1, rtol=0.3)
