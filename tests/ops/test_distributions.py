"""Distributions against scipy in float64, and edge cases where naive formulas fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid, SquashedGaussian

LEADING = [(), (3,), (2, 5)]


def categorical(rng, leading=(2, 5), size=4):
    return Categorical(jnp.asarray(rng.normal(size=(*leading, size)) * 2))


def gaussian(rng, leading=(2, 5), size=3):
    mean, scale = rng.normal(size=(*leading, size)), rng.uniform(0.3, 2, size=(*leading, size))
    return Gaussian(jnp.asarray(mean), jnp.asarray(scale))


def hybrid(rng, leading=(2, 5), with_gaussian=True):
    first = gaussian(rng, leading) if with_gaussian else None
    return Hybrid(first, (categorical(rng, leading, 4), categorical(rng, leading, 2)))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def discrete_log_prob(logits, action):
    table = scipy.special.log_softmax(np.asarray(logits), axis=-1)
    return np.take_along_axis(table, np.asarray(action)[..., None], axis=-1)[..., 0]


def discrete_kl(p, q):
    p, q = (scipy.special.softmax(np.asarray(x.logits), axis=-1) for x in (p, q))
    return scipy.stats.entropy(p, q, axis=-1)


def matrix_kl(mean_p, cov_p, mean_q, cov_q):
    """Compute the closed form for full covariance matrices."""
    shift, inverse = mean_q - mean_p, np.linalg.inv(cov_q)
    log_det = np.linalg.slogdet(cov_q)[1] - np.linalg.slogdet(cov_p)[1]
    return 0.5 * (np.trace(inverse @ cov_p) + shift @ inverse @ shift - len(shift) + log_det)


@pytest.mark.parametrize("leading", LEADING)
def test_categorical_equals_scipy(x64, rng, leading):
    p, q = categorical(rng, leading), categorical(rng, leading)
    action = jnp.asarray(rng.integers(0, 4, leading), jnp.int32)
    np.testing.assert_allclose(p.log_prob(action), discrete_log_prob(p.logits, action), rtol=1e-12)
    probabilities = scipy.special.softmax(np.asarray(p.logits), axis=-1)
    np.testing.assert_allclose(p.entropy(), scipy.stats.entropy(probabilities, axis=-1), rtol=1e-12)
    kl = p.kl_parts(q)
    assert kl.keys() == {"categorical"}
    np.testing.assert_allclose(kl["categorical"], discrete_kl(p, q), rtol=1e-12)
    np.testing.assert_array_equal(p.mode(), np.argmax(p.logits, -1))


@pytest.mark.parametrize("leading", LEADING)
def test_gaussian_equals_scipy(x64, rng, leading):
    p = gaussian(rng, leading)
    action = jnp.asarray(rng.normal(size=p.mean.shape))
    oracle = scipy.stats.norm(np.asarray(p.mean), np.asarray(p.scale))
    np.testing.assert_allclose(p.log_prob(action), oracle.logpdf(action).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(p.entropy(), oracle.entropy().sum(-1), rtol=1e-12)
    np.testing.assert_array_equal(p.mode(), p.mean)


def test_gaussian_kl_is_decoupled(x64, rng):
    old, new = gaussian(rng, ()), gaussian(rng, ())
    mean, covariance = np.asarray(old.mean), np.diag(np.square(old.scale))
    parts = old.kl_parts(new)
    assert parts.keys() == {"mean", "covariance"}
    moved = matrix_kl(mean, covariance, np.asarray(new.mean), covariance)
    widened = matrix_kl(mean, covariance, mean, np.diag(np.square(new.scale)))
    np.testing.assert_allclose(parts["mean"], moved, rtol=1e-11)
    np.testing.assert_allclose(parts["covariance"], widened, rtol=1e-11)


def test_covariance_kl_is_accurate_in_float32():
    relative = np.float64(1e-3)
    scale = np.full((1, 8), 0.3)
    old = Gaussian(jnp.zeros((1, 8)), jnp.asarray(scale, jnp.float32))
    new = Gaussian(jnp.zeros((1, 8)), jnp.asarray(scale * (1 + relative), jnp.float32))
    u = 2 * np.log(np.asarray(old.scale, np.float64) / np.asarray(new.scale, np.float64))
    expected = 0.5 * np.sum(np.expm1(u) - u, axis=-1)
    assert expected[0] < 1e-5
    np.testing.assert_allclose(old.kl_parts(new)["covariance"], expected, rtol=1e-2)
    assert old.kl_parts(old)["covariance"] == 0


@pytest.mark.parametrize("with_gaussian", [True, False])
def test_hybrid_sums_over_dimensions(x64, rng, with_gaussian):
    p, q = hybrid(rng, with_gaussian=with_gaussian), hybrid(rng, with_gaussian=with_gaussian)
    discrete = jnp.asarray(rng.integers(0, 2, (2, 5, 2)), jnp.int32)
    action = {"discrete": discrete}
    log_prob, entropy, kl = 0, 0, {"categorical": 0}
    for k in range(2):
        one, other = p.categoricals[k], q.categoricals[k]
        log_prob += discrete_log_prob(one.logits, discrete[..., k])
        entropy += scipy.stats.entropy(scipy.special.softmax(np.asarray(one.logits), -1), axis=-1)
        kl["categorical"] += discrete_kl(one, other)
    if with_gaussian:
        action["continuous"] = jnp.asarray(rng.normal(size=(2, 5, 3)))
        oracle = scipy.stats.norm(np.asarray(p.gaussian.mean), np.asarray(p.gaussian.scale))
        log_prob += oracle.logpdf(action["continuous"]).sum(-1)
        entropy += oracle.entropy().sum(-1)
        kl |= p.gaussian.kl_parts(q.gaussian)
    np.testing.assert_allclose(p.log_prob(action), log_prob, rtol=1e-12)
    np.testing.assert_allclose(p.entropy(), entropy, rtol=1e-12)
    parts = p.kl_parts(q)
    assert parts.keys() == kl.keys()
    for name, expected in kl.items():
        np.testing.assert_allclose(parts[name], expected, rtol=1e-12)
    mode = p.mode()
    assert mode.keys() == action.keys()
    np.testing.assert_array_equal(mode["discrete"][..., 1], p.categoricals[1].mode())


def test_samples_follow_the_distribution(rng):
    p = Hybrid(
        Gaussian(jnp.array([1.0, -2.0]), jnp.array([0.5, 2.0])),
        (Categorical(jnp.log(jnp.array([0.1, 0.7, 0.2]))), Categorical(jnp.zeros(2))),
    )
    n = 20_000
    draws = jax.vmap(p.sample)(jax.random.split(jax.random.key(0), n))
    assert draws["discrete"].dtype == jnp.int32
    assert draws["discrete"].shape == (n, 2)
    assert draws["continuous"].shape == (n, 2)
    np.testing.assert_allclose(draws["continuous"].mean(0), [1, -2], atol=0.06)
    np.testing.assert_allclose(draws["continuous"].std(0), [0.5, 2], rtol=0.03)
    share = np.bincount(draws["discrete"][:, 0], minlength=3) / n
    np.testing.assert_allclose(share, [0.1, 0.7, 0.2], atol=0.02)
    # Independent dimensions must not share a key.
    everything = np.concatenate([draws["continuous"], draws["discrete"]], axis=1)
    np.testing.assert_allclose(np.corrcoef(everything.T), np.eye(4), atol=0.03)


@pytest.mark.parametrize("kind", [categorical, gaussian, hybrid])
def test_samples_and_modes_fit_log_prob(rng, kind):
    p = jax.tree.map(lambda x: x.astype(jnp.float32), kind(rng))
    sample, mode = p.sample(jax.random.key(1)), p.mode()
    assert jax.tree.structure(sample) == jax.tree.structure(mode)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), sample) == jax.tree.map(
        lambda x: (x.shape, x.dtype), mode
    )
    assert p.log_prob(sample).shape == (2, 5)
    assert np.all(p.log_prob(mode) >= p.log_prob(sample))


@pytest.mark.parametrize("forbidden", [-np.inf, float(np.finfo(np.float32).min)])
def test_forbidden_actions_are_harmless(forbidden):
    allowed = jnp.array([[0.5, -1.0, 2.0]])
    masked = jnp.array([[0.5, forbidden, -1.0, 2.0]])
    actions = jax.random.categorical(jax.random.key(0), masked, shape=(200, 1))
    assert 1 not in np.asarray(actions)

    def outcome(logits, other):
        p, q = Categorical(logits), Categorical(other)
        first = p.log_prob(jnp.zeros(1, jnp.int32))
        return jnp.sum(p.entropy() + p.kl_parts(q)["categorical"] + first)

    np.testing.assert_allclose(
        outcome(masked, 0.3 * masked), outcome(allowed, 0.3 * allowed), rtol=1e-5
    )
    gradients = jax.grad(outcome, argnums=(0, 1))(masked, masked + 0.1)
    for gradient in gradients:
        assert np.all(np.isfinite(gradient))
        assert gradient[0, 1] == 0


def test_kl_is_infinite_for_newly_forbidden_actions():
    old, new = Categorical(jnp.zeros(2)), Categorical(jnp.array([0.0, -jnp.inf]))
    assert old.kl_parts(new)["categorical"] == jnp.inf
    np.testing.assert_allclose(new.kl_parts(old)["categorical"], np.log(2), rtol=1e-6)


@pytest.mark.parametrize("kind", [categorical, gaussian, hybrid])
def test_bfloat16_parameters_are_computed_in_float32(rng, kind):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), kind(rng))
    full = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    action = full.sample(jax.random.key(0))
    results = [
        (p.log_prob(action), p.entropy(), p.kl_parts(full), p.sample(jax.random.key(2)))
        for p in (half, full)
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert {x.dtype for x in jax.tree.leaves(results[0])} <= {np.dtype("f4"), np.dtype("i4")}


def test_mismatched_action_spaces_are_rejected(rng):
    with pytest.raises(ValueError, match="no Gaussian and 2 categoricals"):
        hybrid(rng).kl_parts(hybrid(rng, with_gaussian=False))
    with pytest.raises(AssertionError):
        categorical(rng).log_prob(jnp.zeros((2, 4), jnp.int32))


def squashed(rng, leading=(2, 5)):
    """Return a distribution over [-1, 3], [0, 1] and [-1, 1]."""
    base = gaussian(rng, leading)
    center, half = (np.broadcast_to(x, base.mean.shape) for x in ([1, 0.5, 0.0], [2, 0.5, 1.0]))
    return SquashedGaussian(base, jnp.asarray(center), jnp.asarray(half))


def test_squashed_density_equals_its_definition(x64, rng):
    """The density of u divided by da/du, which is found by finite differences."""
    p = squashed(rng)
    u, step = rng.normal(size=p.base.mean.shape), 1e-5

    def squash(u):
        return np.asarray(p.center) + np.asarray(p.half) * np.tanh(u)

    slope = (squash(u + step) - squash(u - step)) / (2 * step)
    expected = np.sum(
        scipy.stats.norm.logpdf(u, p.base.mean, p.base.scale) - np.log(slope), axis=-1
    )
    np.testing.assert_allclose(p.log_prob(jnp.asarray(squash(u))), expected, rtol=1e-7)
    np.testing.assert_allclose(p.mode(), squash(np.asarray(p.base.mean)), rtol=1e-12)
    action, log_prob = p.sample_and_log_prob(jax.random.key(0))
    np.testing.assert_array_equal(action, p.sample(jax.random.key(0)))
    np.testing.assert_allclose(log_prob, p.log_prob(action), rtol=1e-6)


def test_squashed_entropy_is_the_mean_of_samples(x64, rng):
    p = squashed(rng, ())
    sample = jax.vmap(p.sample_and_log_prob)(jax.random.split(jax.random.key(0), 100_000))
    np.testing.assert_allclose(p.entropy(), -np.mean(sample[1]), atol=0.03)


def test_squashed_actions_at_the_bounds_are_finite(rng):
    p = squashed(rng, ())
    assert np.isfinite(p.log_prob(p.center + p.half))
    saturated = SquashedGaussian(Gaussian(jnp.full(3, 40.0), jnp.ones(3)), p.center, p.half)
    action, log_prob = saturated.sample_and_log_prob(jax.random.key(0))
    np.testing.assert_array_equal(action, p.center + p.half)
    assert np.isfinite(log_prob)
