"""Folded attention is relative attention: the same function of the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.attention import RelativeAttention
from gtrxl_jax.nn.folded_attention import FoldedAttention
from gtrxl_jax.ops.attention import sinusoids
from gtrxl_jax.ops.folded_attention import turn

pytestmark = pytest.mark.usefixtures("x64")
MEMORY, STEPS = 3, 5


@pytest.mark.parametrize(("width", "head_width"), [(8, 8), (8, 3), (7, 4)])
def test_outputs_and_gradients_are_those_of_the_projected_form(width, head_width):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, MEMORY + STEPS, width)))
    distance = np.arange(STEPS)[:, None] + MEMORY - np.arange(MEMORY + STEPS)
    mask = jnp.asarray(
        np.broadcast_to((distance >= 0) & (distance <= MEMORY), (2, *distance.shape))
    )
    projected, folded = (
        kind(width, heads=2, head_width=head_width, param_dtype=jnp.float64)
        for kind in (RelativeAttention, FoldedAttention)
    )
    params = projected.init(jax.random.key(0), x, mask)
    assert jax.tree.structure(params) == jax.tree.structure(folded.init(jax.random.key(0), x, mask))
    params = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape), params)

    def outcome(layer):
        def loss(params, x):
            y = layer.apply(params, x, mask)
            return jnp.sum(y**2), y

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        outcome(projected),
        outcome(folded),
    )


def test_turning_gives_distances_of_either_sign():
    place = jnp.arange(6, dtype=jnp.int32)
    phi = sinusoids(place, 8, jnp.float64)
    p = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 1, 8)))
    scores = turn(p, phi)[0, :, 0] @ phi.T
    distance = np.subtract.outer(np.arange(6), np.arange(6))
    expected = np.zeros((6, 6))
    for i, j in np.ndindex(6, 6):
        at = sinusoids(jnp.array([distance[i, j]], jnp.int32), 8, jnp.float64)[0]
        expected[i, j] = np.dot(p[0, i, 0], at)
    np.testing.assert_allclose(scores, expected, atol=1e-12)
