"""PPO against rlax and naive numpy in float64; which samples get a gradient."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from gtrxl_jax.ops import ppo
from gtrxl_jax.ops.distributions import Categorical
from gtrxl_jax.ops.losses import explained_variance
from tests.ops.vmpo_batches import B, T, make_policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from a dependency of rlax
    import rlax


def make_batch(kind="categorical", seed=0, dtype=float, share_masked=0.25):
    """Make random keyword arguments of `ppo_losses`, with ratios inside and outside the range."""
    rng = np.random.default_rng(seed)

    def array():
        return jnp.asarray(rng.normal(size=(B, T)), dtype)

    old_distribution = make_policy(rng, kind, dtype)
    noise = make_policy(rng, kind, dtype)
    return dict(
        distribution=jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, old_distribution, noise),
        old_distribution=old_distribution,
        actions=old_distribution.sample(jax.random.key(seed)),
        values_BT=array(),
        old_values_BT=array(),
        returns_BT=array(),
        advantages_BT=array(),
        mask_BT=jnp.asarray(rng.random((B, T)) >= share_masked),
        hyperparameters=ppo.PPOHyperparameters(
            *(jnp.asarray(x, dtype) for x in (0.1, 0.5, 0.01)),
        ),
    )


@functools.partial(jax.jit, static_argnames="value_clip")
def evaluate(batch, value_clip=None):
    """Return the loss, the metrics, and the gradients of the policy and the values."""

    def loss(trained):
        terms, metrics = ppo.ppo_losses(**(batch | trained), value_clip=value_clip)
        return sum(terms.values()), metrics | {f"loss/{name}": x for name, x in terms.items()}

    trained = {name: batch[name] for name in ("distribution", "values_BT")}
    (total, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
    return total, metrics, gradients


@jax.jit
def log_ratio(batch):
    new, old = (
        batch[name].log_prob(batch["actions"]) for name in ("distribution", "old_distribution")
    )
    return new - old


@pytest.mark.parametrize(("kind", "share_masked"), [("categorical", 0), ("gaussian", 0.3)])
def test_losses_and_gradients_equal_rlax(x64, kind, share_masked):
    batch = make_batch(kind, share_masked=share_masked)
    keep = np.asarray(batch["mask_BT"])

    def loss(trained):
        ratio_N = jnp.exp(log_ratio(batch | trained)[keep])
        policy = rlax.clipped_surrogate_pg_loss(ratio_N, batch["advantages_BT"][keep], 0.1)
        value = rlax.l2_loss(trained["values_BT"][keep], batch["returns_BT"][keep]).mean()
        entropy = trained["distribution"].entropy()[keep].mean()
        return policy + 0.5 * value - 0.01 * entropy, policy

    with jax.numpy_dtype_promotion("standard"):
        trained = {name: batch[name] for name in ("distribution", "values_BT")}
        (expected, policy), theirs = jax.jit(jax.value_and_grad(loss, has_aux=True))(trained)
    total, metrics, ours = evaluate(batch)
    assert 0 < metrics["clip_fraction"] < 1
    np.testing.assert_allclose(metrics["loss/policy"], policy, rtol=1e-10)
    np.testing.assert_allclose(total, expected, rtol=1e-10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14), ours, theirs)


def naive_losses(batch, value_clip):
    """Compute every term and metric of a hybrid batch, sample by sample."""
    batch = jax.device_get(batch)
    sums = dict.fromkeys(["policy", "value", "entropy", "clipped", "kl"], 0.0)
    valid = np.argwhere(batch["mask_BT"])
    for b, t in valid:
        log_probs, entropy = [], 0.0
        for policy in (batch["distribution"], batch["old_distribution"]):
            of_gaussian = scipy.stats.norm(policy.gaussian.mean[b, t], policy.gaussian.scale[b, t])
            log_prob = of_gaussian.logpdf(batch["actions"]["continuous"][b, t]).sum()
            for c, a in zip(policy.categoricals, batch["actions"]["discrete"][b, t], strict=True):
                log_prob += scipy.special.log_softmax(c.logits[b, t])[a]
            log_probs.append(log_prob)
            if policy is batch["distribution"]:
                entropy += of_gaussian.entropy().sum()
                entropy += sum(
                    scipy.stats.entropy(scipy.special.softmax(c.logits[b, t]))
                    for c in policy.categoricals
                )
        ratio = np.exp(log_probs[0] - log_probs[1])
        advantage = batch["advantages_BT"][b, t]
        # The four cases of the clipped objective.
        if advantage > 0:
            sums["policy"] -= advantage * min(ratio, 1.1)
        else:
            sums["policy"] -= advantage * max(ratio, 0.9)
        value, old, target = (
            batch[f"{name}_BT"][b, t] for name in ("values", "old_values", "returns")
        )
        moved = min(max(value, old - value_clip), old + value_clip)
        sums["value"] += 0.5 * max((value - target) ** 2, (moved - target) ** 2)
        sums["entropy"] += entropy
        sums["clipped"] += not 0.9 <= ratio <= 1.1
        sums["kl"] += ratio - 1 - np.log(ratio)
    return {name: x / len(valid) for name, x in sums.items()}


def test_losses_equal_naive_numpy(x64):
    batch = make_batch("hybrid")
    _, metrics, _ = evaluate(batch, value_clip=0.3)
    expected = naive_losses(batch, 0.3)
    for name, value in {
        "loss/policy": expected["policy"],
        "loss/value": 0.5 * expected["value"],
        "loss/entropy": -0.01 * expected["entropy"],
        "entropy": expected["entropy"],
        "clip_fraction": expected["clipped"],
        "approximate_kl": expected["kl"],
    }.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-10, err_msg=name)
    mask = np.asarray(batch["mask_BT"])
    value, old, target = (
        np.asarray(batch[f"{name}_BT"])[mask] for name in ("values", "old_values", "returns")
    )
    explained = 1 - np.var(target - value) / np.var(target)
    np.testing.assert_allclose(metrics["value/explained_variance"], explained, rtol=1e-10)
    np.testing.assert_allclose(metrics["advantage/mean"], np.mean(target - old), rtol=1e-10)
    np.testing.assert_allclose(metrics["advantage/std"], np.std(target - old), rtol=1e-10)
    np.testing.assert_array_equal(metrics["samples/valid"], mask.sum())
    assert {n for n in metrics if n.startswith("kl/")} == {
        "kl/mean",
        "kl/covariance",
        "kl/categorical",
    }


def test_clipped_ratios_get_no_gradient(x64):
    batch = make_batch(share_masked=0)
    batch["hyperparameters"] = batch["hyperparameters"].replace(entropy_cost=jnp.zeros(()))
    _, _, gradients = evaluate(batch)
    ratio, advantage = np.exp(log_ratio(batch)), np.asarray(batch["advantages_BT"])
    clipped = np.where(advantage > 0, ratio > 1.1, ratio < 0.9)
    outside = ~clipped & (abs(ratio - 1) > 0.1)
    assert clipped.any()
    assert outside.any()  # on the side against its advantage
    np.testing.assert_array_equal(np.any(gradients["distribution"].logits != 0, axis=-1), ~clipped)


def test_values_clipped_towards_return_get_no_gradient(x64):
    batch = make_batch(share_masked=0)
    _, _, gradients = evaluate(batch, value_clip=0.3)
    value, old, target = (
        np.asarray(batch[f"{name}_BT"]) for name in ("values", "old_values", "returns")
    )
    moved = np.clip(value, old - 0.3, old + 0.3)
    clipped = (moved != value) & (abs(moved - target) > abs(value - target))
    assert 0 < clipped.sum() < clipped.size
    np.testing.assert_array_equal(gradients["values_BT"] != 0, ~clipped)


def test_masked_samples_have_no_influence():
    batch = make_batch(dtype=jnp.float32)
    mask_BT = batch["mask_BT"]
    forbidden = batch["distribution"].logits.at[..., 0].set(-jnp.inf)
    spoilt = batch | {
        name: jnp.where(mask_BT, batch[name], jnp.nan)
        for name in ("values_BT", "old_values_BT", "returns_BT", "advantages_BT")
    }
    for name in ("distribution", "old_distribution"):
        logits = jnp.where(mask_BT[..., None], batch[name].logits, forbidden)
        spoilt[name] = Categorical(logits)
    spoilt["actions"] = jnp.where(mask_BT, batch["actions"], 0)
    for value_clip in (None, 0.3):
        total, metrics, gradients = evaluate(spoilt, value_clip)
        expected = evaluate(batch, value_clip)
        jax.tree.map(np.testing.assert_array_equal, (total, metrics), expected[:2])
        for gradient in jax.tree.leaves(gradients):
            assert np.all(gradient[~mask_BT] == 0)


def test_no_gradient_without_valid_samples():
    total, metrics, gradients = evaluate(make_batch(dtype=jnp.float32, share_masked=1.1))
    assert total == 0
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.all(g == 0) for g in jax.tree.leaves(gradients))


def test_normalized_advantages_ignore_masked_samples(x64):
    batch = make_batch()
    advantages_BT, mask = batch["advantages_BT"], np.asarray(batch["mask_BT"])
    spoilt_BT = jnp.where(mask, advantages_BT, 100.0)
    normalized = np.asarray(ppo.normalize_advantages(spoilt_BT, batch["mask_BT"]))[mask]
    valid = np.asarray(advantages_BT)[mask]
    np.testing.assert_allclose(normalized, (valid - valid.mean()) / valid.std(), rtol=1e-7)


def test_small_advantages_are_not_blown_up(x64):
    batch = make_batch()
    small_BT, mask = 1e-3 * batch["advantages_BT"], np.asarray(batch["mask_BT"])
    valid = np.asarray(small_BT)[mask]
    bounded = np.asarray(ppo.normalize_advantages(small_BT, batch["mask_BT"], 0.1))[mask]
    np.testing.assert_allclose(bounded, (valid - valid.mean()) / 0.1, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, -3.7])
def test_equal_advantages_become_zero(value):
    """Their mean may be rounded, and their standard deviation with it."""
    mask_BT = make_batch()["mask_BT"]
    same_BT = jnp.where(mask_BT, jnp.float32(value), 9)
    assert np.all(np.asarray(ppo.normalize_advantages(same_BT, mask_BT))[mask_BT] == 0)


def test_vmaps_over_hyperparameters(x64):
    batch = make_batch()
    factors = jnp.arange(1.0, 4.0)
    settings = jax.tree.map(lambda x: x * factors, batch["hyperparameters"])
    totals, _, _ = jax.vmap(lambda own: evaluate(batch | {"hyperparameters": own}))(settings)
    for k in range(3):
        own = jax.tree.map(lambda x, k=k: x[k], settings)
        expected, _, _ = evaluate(batch | {"hyperparameters": own})
        np.testing.assert_allclose(totals[k], expected, rtol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
def test_returns_that_are_equal_up_to_rounding_have_no_variance(mean):
    rng = np.random.default_rng(0)
    values, mask = jnp.asarray(rng.normal(size=(B, T)), jnp.float32), jnp.ones((B, T), bool)
    spread = jnp.asarray(rng.normal(size=(B, T)), jnp.float32)
    equal = mean + 1e-7 * max(mean, 1) * spread
    assert explained_variance(values, equal, mask) == 0
    explained = explained_variance(mean + 0.9e-3 * spread, mean + 1e-3 * spread, mask)
    np.testing.assert_allclose(explained, 0.99, atol=0.02)
