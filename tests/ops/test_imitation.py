"""Losses of predicted actions against explicit formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid
from gtrxl_jax.ops.imitation import action_loss, action_scores

pytestmark = pytest.mark.usefixtures("x64")


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_discrete_loss_is_cross_entropy():
    logits = np.random.default_rng(0).standard_normal((2, 3, 4))
    actions = np.array([[0, 1, 2], [3, 3, 0]], np.int32)
    expected = -np.take_along_axis(log_softmax(logits), actions[..., None], -1)[..., 0]
    policy = Categorical(jnp.asarray(logits))
    np.testing.assert_allclose(action_loss(policy, jnp.asarray(actions)), expected, atol=1e-12)
    scores = action_scores(policy, jnp.asarray(actions))
    assert set(scores) == {"accuracy"}
    np.testing.assert_array_equal(scores["accuracy"], logits.argmax(-1) == actions)


def test_continuous_loss_is_mean_squared_error_in_half_widths():
    rng = np.random.default_rng(0)
    mean, actions = rng.standard_normal((2, 5, 3))
    half = np.array([7.0, 1.0, 0.01])
    policy = Gaussian(jnp.asarray(mean), jnp.broadcast_to(half, (5, 3)))
    expected = (((mean - actions) / half) ** 2).mean(axis=-1)
    np.testing.assert_allclose(action_loss(policy, jnp.asarray(actions)), expected, atol=1e-12)
    scores = action_scores(policy, jnp.asarray(actions))
    assert set(scores) == {"error"}
    expected = np.abs(mean - actions).mean(axis=-1)
    np.testing.assert_allclose(scores["error"], expected, atol=1e-12)


def test_hybrid_loss_sums_over_parts():
    rng = np.random.default_rng(0)
    logits = [jnp.asarray(rng.standard_normal((5, n))) for n in (2, 3)]
    choices = jnp.asarray(rng.integers(0, 2, (5, 2)), jnp.int32)
    mean, actions = jnp.asarray(rng.standard_normal((2, 5, 3)))
    policy = Hybrid(Gaussian(mean, jnp.ones((5, 3))), tuple(map(Categorical, logits)))
    whole = action_loss(policy, {"continuous": actions, "discrete": choices})
    parts = [action_loss(Categorical(z), choices[:, k]) for k, z in enumerate(logits)]
    parts.append(action_loss(Gaussian(mean, jnp.ones((5, 3))), actions))
    np.testing.assert_allclose(whole, sum(parts), atol=1e-12)
    both = [np.asarray(z).argmax(-1) == np.asarray(choices[:, k]) for k, z in enumerate(logits)]
    scores = action_scores(policy, {"continuous": actions, "discrete": choices})
    assert set(scores) == {"accuracy", "error"}
    np.testing.assert_array_equal(scores["accuracy"], both[0] & both[1])
    np.testing.assert_allclose(scores["error"], np.abs(mean - actions).mean(axis=-1), atol=1e-12)


def test_parts_that_an_action_lacks_have_no_score():
    gaussian = Gaussian(jnp.zeros((5, 3)), jnp.ones((5, 3)))
    scores = action_scores(Hybrid(gaussian, ()), {"continuous": jnp.full((5, 3), -2.0)})
    assert set(scores) == {"error"}
    np.testing.assert_array_equal(scores["error"], np.full(5, 2.0))


@pytest.mark.usefixtures("unchecked")
def test_other_types_are_rejected():
    for function in (action_loss, action_scores):
        with pytest.raises(TypeError, match="object is not an action distribution"):
            function(object(), jnp.zeros(2))
