"""Legal actions: distributions, losses and draws, against float64 references without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from gtrxl_jax.ops import ppo, vmpo
from gtrxl_jax.ops.distributions import Categorical
from gtrxl_jax.ops.legal import draw_choices, has_choice, mask_logits, require_legal

RNG = np.random.default_rng(0)
A, ROWS = 5, 40
LEGAL = RNG.random((ROWS, A)) < 0.5
LEGAL[np.arange(ROWS), RNG.integers(A, size=ROWS)] = True
LEGAL[0], LEGAL[1] = [True, False, False, False, False], True
OLD, NEW = RNG.normal(size=(2, ROWS, A)) * 3


def softmax(z, legal):
    weights = np.where(legal, np.exp(z), 0)
    return weights / weights.sum(-1, keepdims=True)


def masked(z):
    return Categorical(mask_logits(z, jnp.asarray(LEGAL)))


@pytest.mark.usefixtures("x64")
def test_masked_policy_is_over_legal_actions():
    p, q = softmax(OLD, LEGAL), softmax(NEW, LEGAL)
    old, new = masked(jnp.asarray(OLD)), masked(jnp.asarray(NEW))
    np.testing.assert_allclose(old.entropy(), scipy.stats.entropy(p, axis=1), atol=1e-12)
    log_ratio = np.log(np.where(LEGAL, p, 1)) - np.log(np.where(LEGAL, q, 1))
    kl = old.kl_parts(new)["categorical"]
    np.testing.assert_allclose(kl, (p * log_ratio).sum(1), atol=1e-12)
    assert float(old.entropy()[0]) == 0 == float(kl[0])
    for action in range(A):
        known = LEGAL[:, action]
        log_prob = old.log_prob(jnp.full(ROWS, action, jnp.int32))
        np.testing.assert_allclose(log_prob[known], np.log(p[known, action]), atol=1e-12)
        np.testing.assert_array_equal(jnp.exp(log_prob[~known]), 0)
    draws = jax.vmap(old.sample)(jax.random.split(jax.random.key(0), 64))
    assert LEGAL[np.arange(ROWS), draws].all()
    assert LEGAL[np.arange(ROWS), old.mode()].all()


@pytest.mark.usefixtures("x64")
def test_gradients_of_masked_logits_are_zero():
    p, q = softmax(OLD, LEGAL), softmax(NEW, LEGAL)
    entropy = np.asarray(masked(jnp.asarray(OLD)).entropy())[:, None]
    log_p = np.log(np.where(LEGAL, p, 1))
    of_entropy = jax.grad(lambda z: jnp.sum(masked(z).entropy()))(jnp.asarray(OLD))
    np.testing.assert_allclose(of_entropy, -p * (log_p + entropy), atol=1e-12)
    of_kl = jax.grad(
        lambda z: jnp.sum(masked(jnp.asarray(OLD)).kl_parts(masked(z))["categorical"])
    )(jnp.asarray(NEW))
    np.testing.assert_allclose(of_kl, q - p, atol=1e-12)
    for gradient in (of_entropy, of_kl):
        np.testing.assert_array_equal(gradient[~LEGAL], 0)


def losses(algorithm, old, new, actions):
    """Return the sum of an algorithm's terms, for one row of steps, of which one is masked."""
    rng = np.random.default_rng(1)
    returns, values, before = (jnp.asarray(x) for x in rng.normal(size=(3, 1, ROWS)))
    mask = jnp.arange(ROWS)[None] != 7
    common = {"actions": actions, "values_BT": values, "returns_BT": returns, "mask_BT": mask}
    one = jnp.ones(())
    if algorithm == "vmpo":
        bounds = vmpo.VMPOHyperparameters(one, {"categorical": one / 100}, one, one / 10)
        terms = vmpo.vmpo_losses(
            distribution=new,
            target_distribution=old,
            multipliers=vmpo.Multipliers(one, {"categorical": one}),
            hyperparameters=bounds,
            **common,
        )[0]
    else:
        terms = ppo.ppo_losses(
            distribution=new,
            old_distribution=old,
            old_values_BT=before,
            advantages_BT=returns - before,
            hyperparameters=ppo.PPOHyperparameters(one / 5, one, one / 10),
            **common,
        )[0]
    return sum(terms.values())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("algorithm", ["vmpo", "ppo"])
def test_losses_ignore_masked_actions(algorithm):
    """A column that is never legal may as well be absent, in values and gradients."""
    legal = np.ones((1, ROWS, A), bool)
    legal[..., 2] = False
    kept = np.flatnonzero(legal[0, 0])
    choices = jnp.asarray(np.random.default_rng(2).integers(A - 1, size=(1, ROWS)), jnp.int32)
    old, new = (jnp.asarray(z[None]) for z in (OLD, NEW))
    actions = jnp.asarray(kept, jnp.int32)[choices]
    # The masked step's action is forbidden, as after an episode's last step.
    actions = actions.at[0, 7].set(2)

    def with_mask(z):
        policies = (Categorical(mask_logits(x, jnp.asarray(legal))) for x in (old, z))
        return losses(algorithm, *policies, actions)

    def without(z):
        return losses(algorithm, Categorical(old[..., kept]), Categorical(z), choices)

    value, gradient = jax.jit(jax.value_and_grad(with_mask))(new)
    expected, of_kept = jax.jit(jax.value_and_grad(without))(new[..., kept])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient[..., kept], of_kept, atol=1e-12)
    np.testing.assert_array_equal(gradient[..., 2], 0)


def test_no_legal_action_yields_uniform_policy():
    policy = Categorical(mask_logits(jnp.arange(3.0), jnp.zeros(3, bool)))
    np.testing.assert_allclose(policy.entropy(), np.log(3), rtol=1e-6)
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 64))
    assert set(draws.tolist()) == {0, 1, 2}


def test_choices_are_counted_by_dimension():
    legal = jnp.array([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], bool)
    np.testing.assert_array_equal(has_choice(legal, (2, 3)), [True, False, False])
    np.testing.assert_array_equal(has_choice(legal, (5,)), [True, True, True])


def test_draws_are_uniform_over_legal_choices():
    legal = jnp.array([1, 0, 0, 1, 1], bool)
    keys = jax.random.split(jax.random.key(0), 2000)
    first, second = np.asarray(jax.vmap(lambda key: draw_choices(key, legal, (2, 3)))(keys)).T
    np.testing.assert_array_equal(first, 0)
    counts = np.bincount(second, minlength=3)
    assert counts[0] == 0
    assert scipy.stats.binomtest(int(counts[1]), 2000).pvalue > 1e-4


@pytest.mark.parametrize(
    ("legal", "sizes", "message"),
    [
        (np.ones(3, bool), (4,), "shape (3,), but the action space has choices (4,)"),
        (np.ones(3, bool), (2, 2), "return bool [4]"),
        (np.ones(4, np.float32), (4,), "dtype float32"),
        (np.ones(4, bool), (), "no discrete dimension"),
    ],
)
def test_unfit_masks_are_rejected(legal, sizes, message):
    with pytest.raises(ValueError, match="legal_actions") as error:
        require_legal(jnp.asarray(legal), sizes)
    assert message in str(error.value)
