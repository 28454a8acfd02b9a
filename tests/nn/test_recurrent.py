"""Initialization of the recurrent cores."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn.cores import LAYERS, WIDTH, small_core

GATES = {"lstm": 4, "gru": 3}
every_cell = pytest.mark.parametrize("cell", sorted(GATES))
KEYS = jax.random.split(jax.random.key(0), 3)


def init(cell):
    """Return a function from a key to parameters."""
    core = small_core(cell, jnp.float32)
    x_BTD, first_BT = jnp.zeros((1, 1, WIDTH)), jnp.zeros((1, 1), bool)
    return lambda key: core.init(key, core.initial_memory(1), x_BTD, first_BT)["params"]


@every_cell
def test_recurrent_kernels_are_orthogonal_and_differ(cell):
    stacked = jax.jit(jax.vmap(init(cell)))(KEYS)
    kernels = [
        kernel
        for layer in stacked.values()
        for name, gate in layer.items()
        if name.startswith("h")
        for kernel in np.split(np.asarray(gate["kernel"]), gate["kernel"].shape[-1] // WIDTH, -1)
    ]
    assert len(kernels) == LAYERS * GATES[cell]
    for kernel_SDD in kernels:
        products = np.einsum("sij,skj->sik", kernel_SDD, kernel_SDD)
        np.testing.assert_allclose(products, np.stack([np.eye(WIDTH)] * 3), atol=1e-5)
    assert len({k.tobytes() for kernel in kernels for k in kernel}) == 3 * len(kernels)
    for seed, key in enumerate(KEYS):
        alone = jax.jit(init(cell))(key)
        jax.tree.map(lambda a, b, s=seed: np.testing.assert_array_equal(a[s], b), stacked, alone)


@every_cell
def test_vmapped_initialization_has_no_batched_qr(cell):
    """Concurrent batched QRs hang on CPU, but only sometimes, so check the jaxpr for them."""
    ranks = list(_qr_ranks(jax.make_jaxpr(jax.vmap(init(cell)))(KEYS).jaxpr))
    assert len(ranks) >= LAYERS * GATES[cell]
    assert set(ranks) == {2}


def test_lstm_forget_gates_are_initialized_open():
    """A step without input keeps sigmoid(1) = 0.73 of the cell state, not a half."""
    core, params = small_core("lstm", jnp.float32), init("lstm")(KEYS[0])
    zeros_BD = jnp.zeros((1, WIDTH))
    cache = tuple((zeros_BD + 1, zeros_BD) for _ in range(LAYERS))
    cache, _ = core.apply({"params": params}, cache, zeros_BD, jnp.zeros(1, bool), method="step")
    first_layer = cache[0]
    np.testing.assert_allclose(first_layer[0], jax.nn.sigmoid(zeros_BD + 1), rtol=1e-6)


def _qr_ranks(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "qr":
            yield equation.invars[0].aval.ndim
        for sub in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _qr_ranks(sub)
