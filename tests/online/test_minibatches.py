"""Minibatches: each row once per epoch, one of each group, in a random order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.online.on_policy import draw_minibatches, take_minibatch


@pytest.mark.parametrize(("batch", "minibatches"), [(12, 1), (12, 3), (12, 12)])
def test_epoch_has_each_row_once(batch, minibatches):
    places = draw_minibatches(jax.random.key(0), batch, minibatches, epochs=2)
    assert places.shape == (2 * minibatches, batch // minibatches)
    rows = {"x": jnp.arange(batch), "y": jnp.arange(2.0 * batch).reshape(batch, 2)}
    taken = [take_minibatch(rows, place_G) for place_G in places]
    for epoch in (taken[:minibatches], taken[minibatches:]):
        x = np.concatenate([part["x"] for part in epoch])
        np.testing.assert_array_equal(np.sort(x), rows["x"])
    for part in taken:
        np.testing.assert_array_equal(part["y"][:, 0], 2 * part["x"])
        np.testing.assert_array_equal(part["x"] // minibatches, np.arange(batch // minibatches))


def test_rows_of_a_group_are_drawn_uniformly():
    places = draw_minibatches(jax.random.key(0), 12, minibatches=3, epochs=4000)
    first = places.reshape(4000, 3, 4)[:, 0]
    for group in range(4):
        counts = np.bincount(first[:, group], minlength=3)
        np.testing.assert_allclose(counts / 4000, 1 / 3, atol=0.03)  # 4 standard deviations
    # Groups and epochs are independent.
    for other in (first[:, 1], np.roll(first[:, 0], 1)):
        np.testing.assert_allclose(np.mean(first[:, 0] == other), 1 / 3, atol=0.03)
