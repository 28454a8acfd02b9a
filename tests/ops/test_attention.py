"""Parts of attention: weights by distance, and the forms of TPUs, which equal the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.attention import (
    by_distance,
    masked_softmax,
    rotated_scores,
    segment_mask,
    shifted_scores,
    sinusoids,
    weigh_at_once,
)

BATCH, STEPS, MEMORY, HEADS, WIDTH = 2, 4, 5, 3, 6
KEYS = MEMORY + STEPS


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def mask():
    first = jnp.zeros((BATCH, STEPS), bool).at[1, 2].set(True)
    return segment_mask(first, jnp.array([5, 2], jnp.int32), MEMORY)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("features", [8, 7])
def test_rotated_scores_equal_shifted_ones(features):
    query, kernel = normal(0, BATCH, STEPS, HEADS, WIDTH), normal(1, features, HEADS, WIDTH)
    phi = sinusoids(jnp.arange(MEMORY, -1, -1), features, jnp.float64)
    shifted = shifted_scores(query, jnp.einsum("nd,dhk->nhk", phi, kernel))
    rotated = rotated_scores(query, kernel, KEYS, jnp.float64)
    in_window = jnp.any(mask(), axis=0)[None, None]
    np.testing.assert_allclose(
        jnp.where(in_window, rotated, 0), jnp.where(in_window, shifted, 0), atol=1e-12
    )


@pytest.mark.usefixtures("x64")
def test_values_weighed_at_once_equal_those_by_weights():
    scores, values = 3 * normal(0, BATCH, HEADS, STEPS, KEYS), normal(1, BATCH, KEYS, HEADS, WIDTH)

    def by_weights(scores, values):
        weights = masked_softmax(scores, mask()[:, None])
        return jnp.einsum("bhts,bshk->bthk", weights, values)

    def at_once(scores, values):
        return weigh_at_once(scores, mask(), values)

    for one, other in zip(
        *(jax.vjp(function, scores, values) for function in (by_weights, at_once)), strict=True
    ):
        if callable(one):
            one, other = (pull(normal(2, BATCH, STEPS, HEADS, WIDTH)) for pull in (one, other))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), one, other)


def test_weights_by_distance():
    batch, heads, steps, memory = 2, 3, 4, 5
    rng = np.random.default_rng(0)
    by_key = rng.standard_normal((batch, heads, steps, memory + steps)).astype(np.float32)
    windows = np.asarray(by_distance(jnp.asarray(by_key)))
    assert windows.shape == (batch, heads, steps, memory + 1)
    for query in range(steps):
        for ago in range(memory + 1):
            key = memory + query - ago
            np.testing.assert_array_equal(
                windows[..., query, memory - ago], by_key[..., query, key]
            )
