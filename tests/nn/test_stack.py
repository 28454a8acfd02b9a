"""The recurrent cores of `StackCore`: the contract, and plain loops over the papers' equations.

The contract is also that of the DNC, which has no blocks.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.cores.registry import core_config, make_core
from gtrxl_jax.nn.cores.s5 import hippo_normal
from gtrxl_jax.testing import check_core
from tests.comparison import assert_close
from tests.nn.cores import LAYERS, STACKS, WIDTH, random_params, random_segment, small_core
from tests.nn.test_reference import feedforward, gate, linear, norm, relu, sigmoid
from tests.tiers import slow_except

pytestmark = pytest.mark.integration
every_stack = pytest.mark.parametrize("name", STACKS)
with_dnc = pytest.mark.parametrize("name", slow_except([*STACKS, "dnc"], {"mingru", "ffm", "dnc"}))


def one_layer(name):
    """Return the core with one layer, without a gate around it."""
    return small_core(name, layers=1, **({} if name == "dnc" else {"gate": "none"}))


@pytest.mark.slow
@with_dnc
@pytest.mark.usefixtures("x64")
def test_core_satisfies_the_whole_contract(name):
    check_core(one_layer(name), tolerance=1e-9)


@with_dnc
@pytest.mark.usefixtures("x64")
def test_steps_equal_segment_and_resets_stop_gradients(name):
    """The points of the contract that depend on the layer, in one program."""
    core = one_layer(name)
    params = random_params(core)
    x_BTD, _ = random_segment(np.random.default_rng(0), 2, 7, jnp.float64)
    start, end = 3, 5
    first_BT = jnp.zeros((2, 7), bool).at[0, start].set(True)

    def step(cache, inputs):
        return core.apply(params, cache, *inputs, method="step")

    @jax.jit
    def run(x_BTD):
        memory, _ = core.apply(params, core.initial_memory(2), x_BTD[:, ::-1], first_BT)
        stepped = jax.lax.scan(step, memory, (jnp.moveaxis(x_BTD, 1, 0), first_BT.T))

        def total(memory, x_BTD):
            after, y_BTD = core.apply(params, memory, x_BTD, first_BT)
            later, earlier = y_BTD[0, start:], y_BTD[1, :end]
            return jnp.sum(later**2) + jnp.sum(earlier**2), (after, jnp.moveaxis(y_BTD, 1, 0))

        gradients, segment = jax.grad(total, (0, 1), has_aux=True, allow_int=True)(memory, x_BTD)
        floats = [g for g in jax.tree.leaves(gradients[0]) if g.dtype != jax.dtypes.float0]
        return stepped, segment, floats, gradients[1]

    stepped, segment, of_memory, of_inputs = run(x_BTD)
    assert_close(stepped, segment)
    assert all(np.all(g == 0) for g in of_memory)
    influence_BT = np.any(np.asarray(of_inputs) != 0, axis=-1)
    expected = [[t >= start for t in range(7)], [t < end for t in range(7)]]
    np.testing.assert_array_equal(influence_BT, expected)


# The output of a layer at the last step of an episode, from its inputs since the first.


def mingru(p, xs):
    h = np.zeros(WIDTH)
    for x in xs:
        z, candidate = np.split(linear(p["input"], x), 2)
        h = (1 - sigmoid(z)) * h + sigmoid(z) * candidate
    return h


def complex_rows(p, xs):
    """Return B x for each step."""
    return [real + 1j * imag for real, imag in (np.split(linear(p["input"], x), 2) for x in xs)]


def complex_output(p, h, x):
    real, minus_imag = np.split(p["output"]["kernel"], 2)
    return norm(p["norm"], (h @ (real - 1j * minus_imag)).real) + p["skip"] * x


def lru(p, xs):
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    h = sum(decay**age * row for age, row in enumerate(reversed(complex_rows(p, xs))))
    return complex_output(p, np.exp(p["gamma"]) * h, xs[-1])


def s5(p, xs):
    pole = -np.exp(p["log_real"]) + 1j * p["imag"]
    decay = np.exp(pole * np.exp(p["log_step"]))
    h = sum(decay**age * row for age, row in enumerate(reversed(complex_rows(p, xs))))
    return complex_output(p, (decay - 1) / pole * h, xs[-1])


def ffm(p, xs):
    factor = np.exp(-np.abs(p["rate"])[:, None] + 1j * p["frequency"][None, :])
    state = 0
    for age, x in enumerate(reversed(xs)):
        trace, opening = np.split(linear(p["input"], x), 2)
        state = state + factor**age * (trace * sigmoid(opening))[:, None]
    z = linear(p["mix"], np.concatenate([state.real.ravel(), state.imag.ravel()]))
    opening, skip = np.split(linear(p["gate"], xs[-1]), 2)
    return sigmoid(opening) * norm(p["norm"], z) + (1 - sigmoid(opening)) * skip


def agalite(p, xs, heads=2, features=2, terms=4):
    outputs = []
    for head in range(heads):

        def projected(x, part, count, head=head):
            return np.split(np.split(linear(p[part], x), heads)[head], count)

        total, keys, values = 0, [0] * terms, [0] * terms
        for t, x in enumerate(xs, start=1):
            k, q, v, b, g = projected(x, "attention", 5)
            p1, p2, p3 = projected(x, "features", 3)
            key = np.outer(relu(p1), relu(k)).ravel()
            query = np.outer(relu(p2), relu(q)).ravel()
            g = np.outer(sigmoid(p3), sigmoid(g)).ravel()
            b = sigmoid(b)
            total = (1 - g) * total + g * key
            for r in range(terms):
                wave = np.cos((-np.pi + 2 * np.pi * r / (terms - 1)) * t)
                keys[r] = (1 - g) * keys[r] + wave * g * key
                values[r] = (1 - b) * values[r] + wave * b * v
        attended = sum(value * (key @ query) for key, value in zip(keys, values, strict=True))
        outputs.append(attended / (2 * terms * total @ query + 1e-5))
    return norm(p["norm"], linear(p["output"], np.concatenate(outputs)))


def mlstm(p, xs, heads=2, head_width=3):
    outputs = []
    for head in range(heads):
        matrix, total = np.zeros((head_width, head_width)), np.zeros(head_width)
        for x in xs:
            q, k, v, o = (np.split(z, heads)[head] for z in np.split(linear(p["input"], x), 4))
            i, f = (z[head] for z in np.split(linear(p["gates"], x), 2))
            k = k / np.sqrt(head_width)
            matrix = sigmoid(f) * matrix + np.exp(i) * np.outer(v, k)
            total = sigmoid(f) * total + np.exp(i) * k
        outputs.append(sigmoid(o) * (matrix @ q) / max(abs(total @ q), 1))
    return linear(p["output"], np.concatenate(outputs))


def mamba2(p, xs, heads=2, size=5):
    inner = 2 * WIDTH
    parts = [np.split(linear(p["input"], x), [inner, 2 * inner + 2 * size]) for x in xs]
    padded = [np.zeros(inner + 2 * size)] * 3 + [part[1] for part in parts]
    matrix = np.zeros((heads, inner // heads, size))
    for t, (z, _, step) in enumerate(parts):
        mixed = sum(p["kernel"][lag] * padded[t + 3 - lag] for lag in range(4)) + p["bias"]
        v, key, query = np.split(mixed * sigmoid(mixed), [inner, inner + size])
        step = np.log1p(np.exp(step + p["step_bias"]))
        v = v.reshape(heads, -1)
        decay = np.exp(-np.exp(p["log_rate"]) * step)
        matrix = decay[:, None, None] * matrix + np.einsum("h,hp,n->hpn", step, v, key)
        y = (matrix @ query + p["skip"][:, None] * v).ravel() * z * sigmoid(z)
    y = y / np.sqrt(np.mean(y**2) + 1e-10) * p["scale"]
    return linear(p["output"], y)


REFERENCES = dict(
    mingru=mingru, lru=lru, s5=s5, ffm=ffm, agalite=agalite, mlstm=mlstm, mamba2=mamba2
)


@every_stack
@pytest.mark.usefixtures("x64")
def test_stack_equals_plain_loop(name):
    core = small_core(name, gate="gru" if name != "lru" else "none")
    params = random_params(core, seed=3)
    x_BTD, first_BT = random_segment(np.random.default_rng(3), 2, 12, jnp.float64)
    memory, parts = core.initial_memory(2), []
    apply = jax.jit(functools.partial(core.apply, mutable="metrics"))
    for part in (slice(0, 6), slice(6, 12)):
        (memory, y_BTD), state = apply(params, memory, x_BTD[:, part], first_BT[:, part])
        parts.append(y_BTD)
    for block in state["metrics"].values():
        (retention,) = block["layer"]["retention"]
        assert 0 < retention < 1
    weights = jax.tree.map(np.asarray, params["params"])
    gated = name != "lru"
    for row in range(2):
        seen = [[] for _ in range(LAYERS)]
        for t in range(12):
            x = np.asarray(x_BTD[row, t])
            for layer in range(LAYERS):
                p = weights[f"blocks_{layer}"]
                seen[layer] = [*([] if first_BT[row, t] else seen[layer]), norm(p["layer_norm"], x)]
                y = REFERENCES[name](p["layer"], seen[layer])
                x = gate("gru", p["layer_gate"], x, relu(y)) if gated else x + y
                y = feedforward(p["feedforward"], norm(p["feedforward_norm"], x))
                x = gate("gru", p["feedforward_gate"], x, relu(y)) if gated else x + y
            np.testing.assert_allclose(parts[t // 6][row, t % 6], x, rtol=0, atol=1e-9)


def initial_params(name, **settings):
    core = make_core(name, layers=1, **settings)
    x_BTD, first_BT = jnp.zeros((1, 1, core.width)), jnp.zeros((1, 1), bool)
    params = jax.jit(core.init)(jax.random.key(0), core.initial_memory(1), x_BTD, first_BT)
    return params["params"]["blocks_0"]["layer"]


@pytest.mark.parametrize(
    ("name", "share"),
    slow_except(
        [("lru", 0.1), ("s5", 0.03), ("ffm", 0.03), ("agalite", 0.1), ("mamba2", 0.03)],
        quick=[("lru", 0.1), ("ffm", 0.03)],
    ),
)
def test_initial_layer_remembers_for_thirty_steps(name, share):
    """A cue changes the output 30 steps later by a share of what all other inputs change.

    With the papers' initialization those of the first four are 0.08, 0.02, 0.014 and 0.013.
    """
    layer = core_config(name).make_layer(width=64)
    rng = np.random.default_rng(0)
    direction, mean = rng.normal(size=(2, 64))
    x_BTD = mean + rng.choice([-1, 0, 1], (256, 31, 1)) * rng.normal(size=64)
    x_BTD[:, 0] = mean + rng.choice([-1, 1], (256, 1)) * direction
    other_BTD = x_BTD.copy()
    other_BTD[:, 0] = 2 * mean - x_BTD[:, 0]
    first_BT = jnp.zeros((256, 31), bool).at[:, 0].set(True)

    @jax.jit
    def last(x_BTD):
        state = layer.initial_state(256)
        params = layer.init(jax.random.key(0), state, x_BTD, first_BT)
        return layer.apply(params, state, x_BTD, first_BT)[1][:, -1]

    outputs = [np.asarray(last(norm_of(x))) for x in (x_BTD, other_BTD)]
    effect = np.sqrt(np.mean((outputs[0] - outputs[1]) ** 2)) / 2
    spread = np.mean(outputs[0].std(0))
    assert effect > share * spread
    assert 0.5 < np.sqrt(np.mean(outputs[0] ** 2)) < 2


def norm_of(x_BTD):
    x_BTD = x_BTD - x_BTD.mean(-1, keepdims=True)
    return jnp.asarray(x_BTD / x_BTD.std(-1, keepdims=True), jnp.float32)


def test_lru_is_initialized_in_a_ring():
    p = initial_params("lru", radius=(0.5, 0.8), max_phase=0.3)
    radius, phase = np.exp(-np.exp(p["nu"])), np.exp(p["theta"])
    assert 0.5 <= radius.min() < 0.6 < 0.7 < radius.max() <= 0.8
    assert 0 < phase.min() < 0.1 < 0.2 < phase.max() <= 0.3
    np.testing.assert_allclose(np.exp(p["gamma"]) ** 2, 1 - radius**2, rtol=1e-5)
    np.testing.assert_allclose(np.std(p["input"]["kernel"]), (2 * 64) ** -0.5, rtol=0.05)
    np.testing.assert_allclose(np.std(p["output"]["kernel"]), 64**-0.5, rtol=0.05)


@pytest.mark.parametrize("width", [32, 128])
def test_mamba2_convolves_each_channel_by_itself(width):
    """The fan-in of a channel is its four steps, as in the authors' depthwise convolution."""
    kernel = initial_params("mamba2", width=width)["kernel"]
    assert 0.45 < np.abs(kernel).max() <= 0.5
    np.testing.assert_allclose(np.std(kernel), 12**-0.5, rtol=0.1)


def test_two_terms_of_agalite_are_the_same_numbers():
    """The authors' setting has a single frequency, as the default has."""
    x_BTD = jax.random.normal(jax.random.key(0), (2, 9, 8))
    first_BT = jnp.zeros((2, 9), bool).at[1, 4].set(True)
    layer = core_config("agalite", width=8, terms=2).make_layer(width=8)
    inputs = layer.initial_state(2), x_BTD, first_BT
    (state, _), _ = jax.jit(layer.init_with_output)(jax.random.key(1), *inputs)
    assert np.all(state.values[:, 0] != 0)
    np.testing.assert_array_equal(state.keys[:, 0], state.keys[:, 1])
    np.testing.assert_array_equal(state.values[:, 0], state.values[:, 1])


def test_hippo_eigenvectors_diagonalise_its_normal_part():
    size = 6
    matrix = np.zeros((2 * size, 2 * size))
    for n in range(2 * size):
        for k in range(n + 1):
            matrix[n, k] = -(n + 1) if n == k else -np.sqrt((2 * n + 1) * (2 * k + 1))
    low_rank = np.sqrt(np.arange(2 * size) + 0.5)
    normal = matrix + np.outer(low_rank, low_rank)
    values, vectors = hippo_normal(size)
    assert np.all(values.imag > 0)
    np.testing.assert_allclose(normal @ vectors, vectors * values, atol=1e-9)
    # The conjugate pairs together are the whole map.
    rebuilt = 2 * ((vectors * values) @ vectors.conj().T).real
    np.testing.assert_allclose(rebuilt, normal, atol=1e-9)


def test_s5_is_initialized_in_the_eigenbasis():
    """B of the 2 N states can be recovered from its N rows in the eigenbasis."""
    p = initial_params("s5", width=4, state_size=3, timescale=(0.999, 1.0))
    values, vectors = hippo_normal(3)
    np.testing.assert_allclose(p["imag"], values.imag, rtol=1e-5)
    np.testing.assert_allclose(p["log_real"], np.log(0.5), rtol=1e-6)
    np.testing.assert_allclose(p["log_step"], 0, atol=1e-2)
    real, imag = np.split(np.asarray(p["input"]["kernel"]).T, 2)
    dense_input = 2 * (vectors @ (real + 1j * imag)).real
    np.testing.assert_allclose(vectors.conj().T @ dense_input, real + 1j * imag, atol=1e-5)
    assert 0.2 < np.std(dense_input) < 1


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lru", {"radius": (0.9, 1.0)}, "core.radius must be below 1, not"),
        ("lru", {"radius": (0.9, 0.5)}, "core.radius must be .low, high. with 0 < low < high"),
        ("s5", {"state_size": 0}, "core.state_size must be at least 1"),
        ("mlstm", {"heads": 3}, "core.width 64 does not divide into core.heads 3"),
        ("agalite", {"timescale": (1.0, 9.0)}, "core.timescale must be above 1"),
        ("agalite", {"gate": "gur"}, "unknown core.gate 'gur': did you mean 'gru'"),
    ],
)
def test_invalid_stack_settings_are_rejected(name, settings, message):
    with pytest.raises(ValueError, match=message):
        core_config(name, **settings)


@every_stack
def test_stack_presets_are_valid(name):
    for preset in ("large", "small", "debug"):
        core = make_core(name, preset)
        memory = jax.eval_shape(lambda core=core: core.initial_memory(3))
        assert {leaf.shape[0] for leaf in jax.tree.leaves(memory)} == {3}
