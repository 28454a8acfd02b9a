"""Linear recurrences and linear attention against plain loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.ops.linear_attention import empty_memory, linear_attention
from gtrxl_jax.ops.recurrence import as_complex, as_real, linear_recurrence

pytestmark = pytest.mark.usefixtures("x64")
BATCH, STEPS = 2, 11


def starts(rng):
    return rng.random((BATCH, STEPS)) < 0.25


def random_numbers(rng, shape, dtype):
    z = rng.standard_normal((2, *shape))
    return z[0] + 1j * z[1] if dtype == "complex128" else z[0]


@pytest.mark.parametrize(
    ("dtype", "decay_axes"),
    [
        ("float64", (BATCH, STEPS, 3, 4)),
        ("float64", (BATCH, STEPS, 1, 4)),
        ("complex128", (1, 1, 3, 4)),
    ],
)
@pytest.mark.parametrize("parallel", [True, False])
def test_recurrence_and_its_gradient_equal_a_loop(parallel, dtype, decay_axes):
    rng = np.random.default_rng(0)
    decay, update, state = (
        random_numbers(rng, axes, dtype)
        for axes in (decay_axes, (BATCH, STEPS, 3, 4), (BATCH, 3, 4))
    )
    decay, first = decay / np.max(np.abs(decay)), starts(rng)
    weights = rng.standard_normal(update.shape)

    def loop(decay, update, state):
        decay, states = jnp.broadcast_to(decay, update.shape), []
        for t in range(STEPS):
            before = jnp.where(first[:, t, None, None], jnp.zeros_like(state), state)
            state = decay[:, t] * before + update[:, t]
            states.append(state)
        return jnp.stack(states, axis=1)

    def fast(decay, update, state):
        return linear_recurrence(decay, update, state, jnp.asarray(first), parallel=parallel)

    def result(form):
        def total(*inputs):
            states = form(*inputs)
            return jnp.sum(weights * (states.real + states.imag)), states

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))

    inputs = [jnp.asarray(z) for z in (decay, update, state)]
    for actual, expected in zip(
        jax.tree.leaves(result(fast)(*inputs)), jax.tree.leaves(result(loop)(*inputs)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-10, rtol=1e-10)


def test_complex_numbers_are_kept_as_real_pairs():
    z = jnp.asarray([[1 + 2j, 3 - 4j]])
    np.testing.assert_array_equal(as_real(z), [[1, 3, 2, -4]])
    np.testing.assert_array_equal(as_complex(as_real(z)), z)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_linear_attention_equals_a_loop(chunk):
    """The products with C, for gates from exp(-4) to exp(4)."""
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, BATCH, STEPS, 3, 4))
    v = rng.standard_normal((BATCH, STEPS, 3, 5))
    log_decay, log_input = rng.uniform(-4, 4, (2, BATCH, STEPS, 3))
    first = starts(rng)
    expected = np.zeros((BATCH, STEPS, 3, 5))
    for b in range(BATCH):
        for h in range(3):
            matrix = np.zeros((5, 4))
            for t in range(STEPS):
                matrix = np.zeros((5, 4)) if first[b, t] else matrix
                written = np.exp(log_input[b, t, h]) * np.outer(v[b, t, h], k[b, t, h])
                matrix = np.exp(log_decay[b, t, h]) * matrix + written
                expected[b, t, h] = matrix @ q[b, t, h]
    memory, parts = empty_memory(BATCH, 3, 4, 5, jnp.float64), []
    attend = jax.jit(functools.partial(linear_attention, chunk=chunk))
    for part in (slice(0, 6), slice(6, STEPS)):
        inputs = (jnp.asarray(z[:, part]) for z in (q, k, v, log_decay, log_input))
        memory, y, log_scale = attend(*inputs, memory, jnp.asarray(first[:, part]))
        parts.append(y * jnp.exp(log_scale)[..., None])
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-9, atol=1e-9)


def test_linear_attention_does_not_overflow():
    """With input gates up to exp(400), results and gradients in float32 are finite."""
    rng = np.random.default_rng(2)
    q, k, v = (jnp.asarray(z, jnp.float32) for z in rng.standard_normal((3, 1, STEPS, 1, 2)))
    first = jnp.zeros((1, STEPS), bool).at[:, 5].set(True)
    memory = empty_memory(1, 1, 2, 2, jnp.float32)

    def total(gates):
        return jnp.sum(linear_attention(q, k, v, *gates, memory, first, chunk=4)[1] ** 2)

    gates = jnp.asarray(rng.uniform(-400, 400, (2, 1, STEPS, 1)), jnp.float32)
    value, gradient = jax.jit(jax.value_and_grad(total))(gates)
    assert value > 0
    assert np.all(np.isfinite(gradient))
