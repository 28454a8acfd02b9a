"""V-MPO against rlax and naive numpy in float64, and known faults of other implementations."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gtrxl_jax.ops import vmpo
from gtrxl_jax.ops.distributions import Categorical
from tests.ops.vmpo_batches import PARTS, B, T, loss_of, make_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from a dependency of rlax
    import rlax


def split(batch):
    """Return the trained entries of the batch; the rest is data."""
    return {name: batch[name] for name in ("distribution", "values_BT", "multipliers")}


@jax.jit
def evaluate(batch):
    """Return the loss, the metrics and the gradients."""
    (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(split(batch), batch)
    return loss, metrics, gradients


# ---- Oracles -------------------------------------------------------------------------------------


def rlax_loss(trained, batch):
    """Compute rlax's loss on the valid samples only: its own half counts masked samples too."""
    keep = np.asarray(batch["mask_BT"])
    policy, old, actions = jax.tree.map(
        lambda x: x[keep], (trained["distribution"], batch["target_distribution"], batch["actions"])
    )
    values, returns = trained["values_BT"][keep], batch["returns_BT"][keep]
    multipliers, bounds = trained["multipliers"], batch["hyperparameters"]
    with jax.numpy_dtype_promotion("standard"):
        losses, outputs = rlax.vmpo_loss(
            sample_log_probs=policy.log_prob(actions),
            advantages=jax.lax.stop_gradient(returns - values),
            temperature_constraint=rlax.LagrangePenalty(
                multipliers.temperature, bounds.epsilon_eta
            ),
            kl_constraints=[
                (kl, rlax.LagrangePenalty(multipliers.alphas[part], bounds.epsilon_alphas[part]))
                for part, kl in old.kl_parts(policy).items()
            ],
        )
    return losses.mean() + rlax.l2_loss(values, returns).mean(), outputs


def naive_losses(batch):
    """Compute every term of a hybrid batch sample by sample in numpy."""
    new, old, actions = jax.tree.map(
        np.asarray, (batch["distribution"], batch["target_distribution"], batch["actions"])
    )
    values, returns, mask = (np.asarray(batch[n]) for n in ("values_BT", "returns_BT", "mask_BT"))
    valid = [bt for bt in np.ndindex(B, T) if mask[bt]]
    best = sorted(valid, key=lambda bt: returns[bt] - values[bt])[-(len(valid) // 2) :]
    eta = float(batch["multipliers"].temperature)
    exponentials = [np.exp((returns[bt] - values[bt]) / eta) for bt in best]
    losses = {
        "policy": 0.0,
        "temperature": eta * float(batch["hyperparameters"].epsilon_eta)
        + eta * np.log(np.mean(exponentials)),
        "value": 0.5 * np.mean([(values[bt] - returns[bt]) ** 2 for bt in valid]),
    }
    for bt, exponential in zip(best, exponentials, strict=True):
        log_prob = scipy.stats.norm(new.gaussian.mean[bt], new.gaussian.scale[bt]).logpdf(
            actions["continuous"][bt]
        )
        log_probs = [
            scipy.special.log_softmax(c.logits[bt])[a]
            for c, a in zip(new.categoricals, actions["discrete"][bt], strict=True)
        ]
        losses["policy"] -= exponential / sum(exponentials) * (log_prob.sum() + sum(log_probs))
    kls = {part: [] for part in PARTS["hybrid"]}
    for bt in valid:
        p, q = old.gaussian, new.gaussian
        inverse_old = np.diag(1 / p.scale[bt] ** 2)
        shift = q.mean[bt] - p.mean[bt]
        ratio = p.scale[bt] ** 2 / q.scale[bt] ** 2
        kls["mean"].append(0.5 * shift @ inverse_old @ shift)
        kls["covariance"].append(0.5 * (ratio.sum() - 3 - np.log(ratio.prod())))
        pairs = zip(old.categoricals, new.categoricals, strict=True)
        softmax = scipy.special.softmax
        kls["categorical"].append(
            sum(scipy.stats.entropy(softmax(p.logits[bt]), softmax(q.logits[bt])) for p, q in pairs)
        )
    for part, kl in kls.items():
        alpha = batch["multipliers"].alphas[part]
        epsilon = batch["hyperparameters"].epsilon_alphas[part]
        losses[f"alpha_{part}"] = np.mean([alpha * (epsilon - x) + alpha * x for x in kl])
        losses[f"kl_{part}"] = np.mean(kl)
    return losses


@pytest.mark.parametrize(
    ("kind", "share_masked"), [("categorical", 0), ("categorical", 0.3), ("gaussian", 0.3)]
)
def test_losses_and_gradients_equal_rlax(x64, kind, share_masked):
    batch = make_batch(kind, share_masked=share_masked)
    loss, metrics, ours = evaluate(batch)
    rlax_gradient = jax.jit(jax.value_and_grad(lambda x: rlax_loss(x, batch), has_aux=True))
    (expected, outputs), theirs = rlax_gradient(split(batch))
    np.testing.assert_allclose(loss, expected, rtol=1e-8)
    np.testing.assert_allclose(metrics["loss/policy"], outputs.policy_loss.mean(), rtol=1e-8)
    np.testing.assert_allclose(metrics["loss/temperature"], outputs.temperature_loss, rtol=1e-8)
    alphas = sum(metrics[f"loss/alpha_{part}"] for part in PARTS[kind])
    np.testing.assert_allclose(alphas, (outputs.kl_loss + outputs.alpha_loss).mean(), rtol=1e-8)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-10), ours, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_losses_equal_naive_numpy(x64, seed):
    batch = make_batch("hybrid", seed)
    _, metrics, _ = evaluate(batch)
    for name, expected in naive_losses(batch).items():
        key = f"kl/{name[3:]}" if name.startswith("kl_") else f"loss/{name}"
        np.testing.assert_allclose(metrics[key], expected, rtol=1e-10, err_msg=name)


# ---- Masks and gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["categorical", "hybrid"])
def test_masked_samples_have_no_influence(kind):
    batch = make_batch(kind, dtype=jnp.float32)
    mask = batch["mask_BT"]

    def spoil(x):
        noise = jnp.asarray(np.random.default_rng(9).normal(size=x.shape) * 5).astype(x.dtype)
        keep = mask.reshape(B, T, *[1] * (x.ndim - 2))
        return jnp.where(keep, x, abs(x + noise) if x.dtype != jnp.int32 else 0)

    spoilt = batch | jax.tree.map(
        spoil,
        {n: batch[n] for n in ("distribution", "target_distribution", "actions", "values_BT")},
    )
    spoilt["returns_BT"] = jnp.where(mask, batch["returns_BT"], jnp.nan)
    if kind == "categorical":  # a masked step's action may be forbidden
        logits = spoilt["distribution"].logits
        forbidden = jnp.where(mask[..., None], logits, logits.at[..., 0].set(-jnp.inf))
        spoilt["distribution"] = Categorical(forbidden)
        spoilt["target_distribution"] = Categorical(
            jnp.where(mask[..., None], spoilt["target_distribution"].logits, forbidden)
        )
        assert np.any(np.isneginf(spoilt["distribution"].log_prob(spoilt["actions"])))
    *expected, _ = evaluate(batch)
    *outcome, gradients = evaluate(spoilt)
    jax.tree.map(np.testing.assert_array_equal, outcome, expected)
    for gradient in jax.tree.leaves([gradients["distribution"], gradients["values_BT"]]):
        assert np.all(gradient[~mask] == 0)
        assert np.all(np.any(gradient[mask] != 0, axis=tuple(range(1, gradient.ndim - 1))))


@pytest.mark.parametrize("kind", ["categorical", "hybrid"])
def test_no_gradient_without_valid_samples(kind):
    batch = make_batch(kind, dtype=jnp.float32, share_masked=1.1)
    loss, metrics, gradients = evaluate(batch)
    assert loss == 0
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.all(g == 0) for g in jax.tree.leaves(gradients))


def test_targets_and_advantages_get_no_gradient(x64):
    batch = make_batch("hybrid")
    mask = batch["mask_BT"]
    advantages = batch["returns_BT"] * 3

    def loss(data):
        return loss_of(data, batch)[0]

    data = {"target_distribution": batch["target_distribution"], "returns_BT": batch["returns_BT"]}
    for gradient in jax.tree.leaves(jax.jit(jax.grad(loss))(data | {"advantages_BT": advantages})):
        assert np.all(gradient == 0)
    # The values get the gradient of the value loss and none through the advantages.
    in_values = evaluate(batch)[2]["values_BT"]
    error = jnp.where(mask, batch["values_BT"] - batch["returns_BT"], 0)
    np.testing.assert_allclose(in_values, error / mask.sum(dtype=float), rtol=1e-12)


def test_custom_advantages(x64):
    batch = make_batch()
    advantages = (batch["returns_BT"] - batch["values_BT"]) / 4
    given, metrics = loss_of({"advantages_BT": advantages}, batch)
    psi, temperature_loss = vmpo.e_step(
        advantages, batch["mask_BT"], jnp.array(0.7), jnp.array(0.1)
    )
    own, own_metrics = loss_of({}, batch)
    np.testing.assert_allclose(metrics["loss/temperature"], temperature_loss)
    np.testing.assert_allclose(metrics["psi/effective_samples"], 1 / np.sum(np.square(psi)))
    assert metrics["loss/value"] == own_metrics["loss/value"]
    assert given != own


# ---- Multipliers ---------------------------------------------------------------------------------


def test_given_weights_replace_e_step(x64):
    batch = make_batch("hybrid")
    losses, _, psi = vmpo.vmpo_losses(**batch)
    again, _, _ = vmpo.vmpo_losses(**batch | {"psi_BT": psi})
    assert again.pop("temperature") == 0 != losses.pop("temperature")
    jax.tree.map(np.testing.assert_array_equal, again, losses)


def test_value_and_entropy_cost(x64):
    batch = make_batch("hybrid")
    settings = batch["hyperparameters"]
    loss, metrics = loss_of({}, batch)
    assert metrics["loss/entropy"] == 0
    bonus = settings.replace(entropy_cost=jnp.array(0.3))
    with_bonus, _ = loss_of({"hyperparameters": bonus}, batch)
    np.testing.assert_allclose(with_bonus, loss - 0.3 * metrics["entropy"], rtol=1e-12)
    halved, _ = loss_of({"hyperparameters": settings.replace(value_cost=jnp.array(0.5))}, batch)
    np.testing.assert_allclose(halved, loss - 0.5 * metrics["loss/value"], rtol=1e-12)


@pytest.mark.parametrize("field", ["multipliers.alphas", "hyperparameters.epsilon_alphas"])
def test_wrong_kl_parts_are_rejected(field):
    batch = make_batch("gaussian")
    name, entry = field.split(".")
    batch[name] = batch[name].replace(**{entry: {"mean": jnp.ones(())}})
    with pytest.raises(ValueError, match=rf"{field} has the parts \['mean'\].*'covariance'"):
        vmpo.vmpo_losses(**batch)


# ---- Sharding, vmap and metrics ------------------------------------------------------------------


def test_sharded_batch_equals_one_device(x64):
    """All large advantages are on one device: only a global half selects them."""
    batch = make_batch("hybrid")
    batch["returns_BT"] = batch["returns_BT"].at[3].add(20)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    shardings = {n: whole if n in ("multipliers", "hyperparameters") else rows for n in batch}
    sharded = {n: jax.device_put(x, shardings[n]) for n, x in batch.items()}
    assert len(sharded["values_BT"].sharding.device_set) == 8

    one, many = evaluate(batch), evaluate(sharded)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), many, one)
    chosen = vmpo.select_top_half(sharded["returns_BT"], sharded["mask_BT"])
    np.testing.assert_array_equal(chosen[3], batch["mask_BT"][3])


def test_vmaps_over_hyperparameters_and_seeds(x64):
    batches = [make_batch("hybrid", seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    factors = jnp.arange(1.0, 4.0)
    stacked["hyperparameters"] = jax.tree.map(lambda x: x * factors, stacked["hyperparameters"])
    together = jax.vmap(evaluate)(stacked)
    apart = [evaluate(jax.tree.map(lambda x, i=i: x[i], stacked)) for i in range(3)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *apart)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13), together, expected
    )


def test_metrics_equal_definitions(x64):
    batch = make_batch("categorical")
    loss, metrics, _ = evaluate(batch)
    mask = np.asarray(batch["mask_BT"])
    returns, values = np.asarray(batch["returns_BT"])[mask], np.asarray(batch["values_BT"])[mask]
    best = np.sort(returns - values)[-(mask.sum() // 2) :]
    psi = scipy.special.softmax(best / 0.7)
    probabilities = scipy.special.softmax(np.asarray(batch["distribution"].logits)[mask], axis=-1)
    expected = {
        "advantage/mean": np.mean(returns - values),
        "advantage/std": np.std(returns - values),
        "value/explained_variance": 1 - np.var(returns - values) / np.var(returns),
        "psi/effective_samples": 1 / np.sum(psi**2),
        "psi/kl": scipy.stats.entropy(psi, np.full(len(psi), 1 / len(psi))),
        "samples/valid": mask.sum(),
        "samples/selected": mask.sum() // 2,
        "entropy": scipy.stats.entropy(probabilities, axis=-1).mean(),
        "temperature": 0.7,
        "alpha/categorical": 1.5,
        "bound/categorical": 0.01,
        "bound/psi": 0.1,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-10, err_msg=name)
    terms = ("policy", "temperature", "value", "entropy", "alpha_categorical")
    losses = {f"loss/{term}" for term in terms}
    assert metrics.keys() == expected.keys() | losses | {"kl/categorical"}
    np.testing.assert_allclose(loss, sum(metrics[name] for name in losses), rtol=1e-12)
