"""The masked softmax of attention, which has a custom derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from gtrxl_jax.ops.attention import masked_softmax

pytestmark = pytest.mark.usefixtures("x64")


def some_scores():
    rng = np.random.default_rng(0)
    scores = jnp.asarray(3 * rng.standard_normal((4, 5, 7)))
    mask = rng.random((4, 5, 7)) < 0.6
    mask[..., 2:4] = True
    return scores, jnp.asarray(mask)


def test_equals_quotient_of_exponentials():
    scores, mask = some_scores()
    powers = np.where(mask, np.exp(scores), 0)
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(masked_softmax(scores, mask), expected, rtol=1e-12)


def test_derivatives_equal_finite_differences():
    scores, mask = some_scores()
    check_grads(jax.jit(lambda scores: masked_softmax(scores, mask)), (scores,), order=2)


def test_masked_scores_have_no_weight_or_gradient():
    scores, mask = some_scores()
    aim = jnp.asarray(np.random.default_rng(1).standard_normal(scores.shape))
    weights = masked_softmax(scores, mask)
    gradient = jax.grad(lambda scores: jnp.sum(aim * masked_softmax(scores, mask)))(scores)
    assert not weights[~mask].any()
    assert not gradient[~mask].any()
    assert gradient[mask].all()
