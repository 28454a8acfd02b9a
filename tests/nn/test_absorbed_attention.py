"""Absorbed attention equals projected attention with the same parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.layers import RelativeAttention
from gtrxl_jax.nn.sequence.absorbed import AbsorbedAttention
from gtrxl_jax.nn.sequence.rate import memory_token_mask, memory_token_spans
from gtrxl_jax.ops.absorbed_attention import rotate_by_position
from gtrxl_jax.ops.attention import sinusoids
from tests.comparison import assert_close
from tests.tiers import slow_except

pytestmark = pytest.mark.usefixtures("x64")
MEMORY, STEPS = 3, 5


@pytest.mark.parametrize(("width", "head_width"), [(8, 8), (8, 3), (7, 4)])
def test_outputs_and_gradients_equal_projected_form(width, head_width):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, MEMORY + STEPS, width)))
    distance = np.arange(STEPS)[:, None] + MEMORY - np.arange(MEMORY + STEPS)
    mask = jnp.asarray(
        np.broadcast_to((distance >= 0) & (distance <= MEMORY), (2, *distance.shape))
    )
    projected, folded = (
        kind(width, heads=2, head_width=head_width, param_dtype=jnp.float64)
        for kind in (RelativeAttention, AbsorbedAttention)
    )
    params = jax.jit(projected.init)(jax.random.key(0), x, mask)
    of_folded = jax.eval_shape(folded.init, jax.random.key(0), x, mask)
    assert jax.tree.structure(params) == jax.tree.structure(of_folded)
    params = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape), params)

    def outcome(layer):
        def loss(params, x):
            y = layer.apply(params, x, mask)
            return jnp.sum(y**2), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    assert_close(outcome(projected), outcome(folded), rtol=1e-9)


def test_rotation_handles_distances_of_either_sign():
    place = jnp.arange(6, dtype=jnp.int32)
    phi = sinusoids(place, 8, jnp.float64)
    p = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 1, 8)))
    scores = rotate_by_position(p, phi[None])[0, :, 0] @ phi.T
    distance = np.subtract.outer(np.arange(6), np.arange(6))
    expected = np.zeros((6, 6))
    for i, j in np.ndindex(6, 6):
        at = sinusoids(jnp.array([distance[i, j]], jnp.int32), 8, jnp.float64)[0]
        expected[i, j] = np.dot(p[0, i, 0], at)
    np.testing.assert_allclose(scores, expected, atol=1e-12)


@pytest.mark.parametrize("memory_tokens", [0, 1, 4])
@pytest.mark.parametrize("cache_size", [0, 3])
@pytest.mark.parametrize("steps", [1, 17, 30])
def test_spans_omit_only_masked_keys(steps, cache_size, memory_tokens):
    exists = jnp.ones((1, steps), bool)
    mask = np.asarray(
        memory_token_mask(exists, jnp.array([cache_size], jnp.int32), cache_size, memory_tokens)
    )[0]
    every, useful = memory_token_spans(steps, cache_size, memory_tokens)
    for queries, seen in every + useful:
        assert not mask[queries, seen:].any()
    places = np.arange(len(mask))

    def covered(spans):
        return np.concatenate([places[queries] for queries, _ in spans]).tolist()

    assert covered(every) == places.tolist()
    write = memory_tokens + 3 * steps
    observations = range(memory_tokens + 1, write, 3)
    assert covered(useful) == [*observations, *range(write, write + memory_tokens)]


@pytest.mark.parametrize("which", slow_except([0, 1], [1]))
def test_spans_preserve_outputs_and_gradients(which):
    steps, cache_size, memory_tokens, width = 16, 2, 2, 8
    rng = np.random.default_rng(0)
    exists = jnp.asarray(rng.random((3, steps)) < 0.8)
    cached = jnp.array([0, 1, 2], jnp.int32)
    mask = memory_token_mask(exists, cached, cache_size, memory_tokens)
    x = jnp.asarray(rng.standard_normal((3, mask.shape[2], width)))
    layer = AbsorbedAttention(width, heads=2, head_width=4, param_dtype=jnp.float64)
    params = jax.jit(layer.init)(jax.random.key(0), x, mask)
    spans = memory_token_spans(steps, cache_size, memory_tokens)[which]
    asked = np.concatenate([np.arange(mask.shape[1])[queries] for queries, _ in spans])

    def outcome(compute):
        def loss(params, x):
            y = compute(params, x)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    assert_close(
        outcome(lambda params, x: layer.apply(params, x, mask)[:, asked]),
        outcome(lambda params, x: layer.apply(params, x, mask, spans=spans)),
        atol=1e-12,
        rtol=1e-12,
    )
    record = jax.jit(functools.partial(layer.apply, spans=spans, mutable="attention"))
    _, recorded = record(params, x, mask)
    (weights,) = recorded["attention"]["weights"]
    assert weights.shape == (3, 2, len(asked), mask.shape[2])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
