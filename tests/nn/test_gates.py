"""Initial values, gradients and dtypes of the gates' biases.

`test_reference` tests the gates' equations, at random biases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.cores.gtrxl import GATES, make_gate
from gtrxl_jax.nn.cores.registry import core_config

WIDTH = 6
BIASES = {"output": 1.0, "highway": 1.0, "sigtanh": 1.0, "gru": 2.0}
"""The paper's biases, for the gates that have one."""


def made(name, bias=None, dtype=None):
    gate = make_gate(name, bias, dtype, jnp.float32)
    x, y = jax.random.normal(jax.random.key(0), (2, 3, 5, WIDTH), dtype or jnp.float32)
    params = gate.init(jax.random.key(1), x, y)["params"]
    return gate, params, x, y


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("bias", [None, 0.0, -1.5])
def test_bias_is_vector_initialized_to_b(name, bias):
    _, params, *_ = made(name, bias)
    assert params["bias"].dtype == jnp.float32
    expected = BIASES[name] if bias is None else bias
    np.testing.assert_array_equal(params["bias"], np.full(WIDTH, expected))


def test_only_input_gate_has_no_bias():
    assert {*GATES} == {*BIASES, "input"}
    assert "bias" not in made("input")[1]


@pytest.mark.parametrize("name", BIASES)
def test_every_bias_element_has_gradient(name):
    gate, params, x, y = made(name)
    gradient = jax.grad(lambda params: jnp.sum(gate.apply({"params": params}, x, y) ** 2))(params)
    assert np.all(gradient["bias"] != 0)


@pytest.mark.parametrize("name", BIASES)
def test_large_bias_makes_gate_identity_per_feature(name):
    gate, params, x, y = made(name)
    bias = params["bias"].at[::2].set(50.0)
    out = gate.apply({"params": params | {"bias": bias}}, x, y)
    np.testing.assert_allclose(out[..., ::2], x[..., ::2], atol=1e-6)
    assert np.all(np.abs(out - x)[..., 1::2] > 1e-6)


@pytest.mark.parametrize("name", GATES)
def test_bfloat16_keeps_parameters_in_float32(name):
    gate, params, x, y = made(name, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    out = gate.apply({"params": params}, x, y)
    assert out.dtype == jnp.bfloat16
    exact = make_gate(name, None, None, jnp.float32)
    expected = exact.apply({"params": params}, x.astype(jnp.float32), y.astype(jnp.float32))
    np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trxl", "core.gate_order swapped has no effect, since trxl has no gates: use core.name"),
        ("trxl-i", "core.gate_order swapped has no effect, since trxl-i has no gates"),
        ("agalite", "unknown setting of agalite 'gate_order'"),
    ],
)
def test_gate_order_without_gates_raises(name, message):
    core_config("gtrxl", gate_order="swapped")
    with pytest.raises(ValueError, match=message):
        core_config(name, gate_order="swapped")


@pytest.mark.parametrize("name", ["trxl", "trxl-i"])
def test_gate_of_core_without_gates_raises(name):
    core_config(name, gate="gru", gate_bias=None)
    with pytest.raises(ValueError, match=f"core.gate output has no effect, since {name} has"):
        core_config(name, gate="output")
    with pytest.raises(ValueError, match="core.gate_bias 0.0 has no effect.* or leave it at None"):
        core_config(name, gate_bias=0.0)
