"""Functions on attention weights, against plain loops."""

import jax.numpy as jnp
import numpy as np

from gtrxl_jax.ops.attention import by_distance


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
