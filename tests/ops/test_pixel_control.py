"""Pixel control, against a naive one in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.pixel_control import cell_size, pixel_changes, pixel_control_loss

B, S, H, W, A, GAMMA = 3, 7, 2, 3, 4, 0.9


def naive_loss(q, change, action, discount, last):
    errors = []
    for b in range(B):
        for t in range(S - 1):
            if last[b, t]:
                continue
            for h in range(H):
                for w in range(W):
                    target, factor, s = 0.0, 1.0, t
                    while True:
                        s += 1
                        target += factor * change[b, s, h, w]
                        factor *= GAMMA * discount[b, s]
                        if last[b, s] or s == S - 1:
                            target += factor * q[b, s, h, w].max()
                            break
                    errors.append((target - q[b, t, h, w, action[b, t + 1]]) ** 2 / 2)
    return np.mean(errors)


def example():
    rng = np.random.default_rng(0)
    last, discount = np.zeros((B, S), bool), np.ones((B, S))
    last[0, 2] = last[1, 4] = last[1, 0] = last[2, S - 1] = True
    discount[0, 2] = discount[2, S - 1] = 0  # the others are truncated
    return {
        "q": rng.normal(size=(B, S, H, W, A)),
        "change": rng.uniform(size=(B, S, H, W)),
        "action": rng.integers(A, size=(B, S)),
        "discount": discount,
        "last": last,
    }


def loss(q, change, action, discount, last):
    return pixel_control_loss(
        q_BSHWA=jnp.asarray(q, jnp.float32),
        change_BSHW=jnp.asarray(change, jnp.float32),
        action_BS=jnp.asarray(action, jnp.int32),
        discount_BS=jnp.asarray(discount, jnp.float32),
        last_BS=jnp.asarray(last),
    )


def test_loss_is_naive_one():
    x = example()
    np.testing.assert_allclose(jax.jit(loss)(**x), naive_loss(**x), rtol=1e-5)


def test_gradient_is_of_taken_values_before_last_steps_only():
    """None flows to the targets, thus none to the last step or to the pixels."""
    x = example()
    of_q, of_change = jax.grad(lambda q, c: loss(**x | {"q": q, "change": c}), argnums=(0, 1))(
        jnp.asarray(x["q"], jnp.float32), jnp.asarray(x["change"], jnp.float32)
    )
    np.testing.assert_array_equal(of_change, 0)
    np.testing.assert_array_equal(of_q[:, -1], 0)
    taken = np.eye(A, dtype=bool)[x["action"][:, 1:]][:, :, None, None]
    taken = np.broadcast_to(taken & ~x["last"][:, :-1, None, None, None], of_q[:, :-1].shape)
    np.testing.assert_array_equal(np.asarray(of_q[:, :-1] != 0), taken)


def test_what_is_after_last_steps_does_not_matter():
    x = example()
    after = np.roll(x["last"], 1, axis=1)  # the first steps, of other episodes
    after[:, 0] = False
    changed = x["change"] + 100 * after[:, :, None, None]
    np.testing.assert_allclose(loss(**x | {"change": changed}), loss(**x), rtol=1e-6)


def test_loss_without_transitions_is_zero():
    x = example() | {"last": np.ones((B, S), bool)}
    assert loss(**x) == 0


@pytest.mark.parametrize(("height", "width", "cell"), [(84, 84, 4), (64, 100, 3), (16, 40, 1)])
def test_changes_are_means_of_cells(height, width, cell):
    assert cell_size(height, width) == cell
    images = np.random.default_rng(0).uniform(size=(1, 3, height, width, 3))
    rows, columns = height // cell, width // cell
    top, left = (height - rows * cell) // 2, (width - columns * cell) // 2
    expected = np.zeros((1, 3, rows, columns))
    for s in (1, 2):
        change = np.abs(images[0, s] - images[0, s - 1])
        for i in range(rows):
            for j in range(columns):
                y, x = top + i * cell, left + j * cell
                expected[0, s, i, j] = change[y : y + cell, x : x + cell].mean()
    found = pixel_changes(jnp.asarray(images, jnp.float32), cell)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
