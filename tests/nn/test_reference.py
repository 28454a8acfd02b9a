"""The segment form of every core against independent plain loops in float64.

The loops have no segments: they step through the whole history of a row, keep every step of the
current episode, and let a layer see the last M of them. The equations are those of Parisotto et al.
2019 (sections 2, 3 and appendix C), Hochreiter and Schmidhuber 1997, and Cho et al. 2014.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.cores.registry import core_config, make_core
from gtrxl_jax.nn.layers import RelativeAttention, unstack_layers
from tests.nn.cores import (
    ALL_CORES,
    LAYERS,
    MEMORY_SIZE,
    TRANSFORMERS,
    WIDTH,
    random_params,
    random_segment,
    small_core,
)

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
HEADS, HEAD_WIDTH = 2, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def norm(p, x):
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    return x * p["scale"] + p["bias"]


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def phi(distance):
    half = (WIDTH + 1) // 2
    angles = [distance / 10000 ** (i / half) for i in range(half)]
    return np.array([np.sin(a) for a in angles] + [np.cos(a) for a in angles])[:WIDTH]


def attention(p, query_input, seen):
    """Attend to the inputs in `seen`, oldest first; the last is the query's own."""
    inner = HEADS * HEAD_WIDTH
    key_matrix, value_matrix = np.split(p["key_value"]["kernel"], 2, axis=1)
    out = np.zeros(inner)
    for h in range(HEADS):
        part = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
        query = (query_input @ p["query"]["kernel"])[part]
        scores, values = [], []
        for index, x in enumerate(seen):
            distance = len(seen) - 1 - index
            key = (x @ key_matrix)[part]
            position = (phi(distance) @ p["position"]["kernel"])[part]
            content = (query + p["content_bias"][h]) @ key
            relative = (query + p["position_bias"][h]) @ position
            scores.append((content + relative) / np.sqrt(HEAD_WIDTH))
            values.append((x @ value_matrix)[part])
        weights = np.exp(np.array(scores) - max(scores))
        weights /= weights.sum()
        out[part] = sum(w * v for w, v in zip(weights, values, strict=True))
    return out @ p["output"]["kernel"]


def gate(name, p, x, y):
    if name is None:
        return x + y

    def matrices(part, count):
        return np.split(p[part]["kernel"], count, axis=1)

    if name == "input":
        return sigmoid(x @ matrices("x", 1)[0]) * x + y
    if name == "output":
        return x + sigmoid(x @ matrices("x", 1)[0] - p["bias"]) * y
    if name == "highway":
        s = sigmoid(x @ matrices("x", 1)[0] + p["bias"])
        return s * x + (1 - s) * y
    if name == "sigtanh":
        w, u = matrices("y", 2)
        return x + sigmoid(y @ w - p["bias"]) * np.tanh(y @ u)
    w_r, w_z, w_g = matrices("y", 3)
    u_r, u_z = matrices("x", 2)
    (u_g,) = matrices("reset_x", 1)
    r = sigmoid(y @ w_r + x @ u_r)
    z = sigmoid(y @ w_z + x @ u_z - p["bias"])
    h = np.tanh(y @ w_g + (r * x) @ u_g)
    return (1 - z) * x + z * h


def feedforward(p, x):
    return linear(p["Dense_1"], relu(linear(p["Dense_0"], x)))


def transformer(name, params, xs, firsts, swapped=False):
    core, _, gate_name = name.partition("/")
    gate_name = gate_name or None
    episode = [[] for _ in range(LAYERS)]
    outputs = []
    for x, first in zip(xs, firsts, strict=True):
        if first:
            episode = [[] for _ in range(LAYERS)]
        for layer in range(LAYERS):
            p = unstack_layers(params["blocks"])[layer]
            episode[layer].append(x)
            seen = episode[layer][-(MEMORY_SIZE + 1) :]
            if core == "trxl":
                y = norm(p["attention_norm"], x + attention(p["attention"], x, seen))
                x = norm(p["feedforward_norm"], y + feedforward(p["feedforward"], y))
                continue
            normed = [norm(p["attention_norm"], e) for e in seen]
            attended = relu(attention(p["attention"], normed[-1], normed))
            y = gate(gate_name, p.get("attention_gate"), x, attended)
            processed = feedforward(p["feedforward"], norm(p["feedforward_norm"], y))
            arguments = (processed, relu(y)) if swapped else (y, relu(processed))
            x = gate(gate_name, p.get("feedforward_gate"), *arguments)
        outputs.append(x)
    return outputs


def lstm_cell(p, carry, x):
    cell, hidden = carry

    def pre(gate):
        begin = WIDTH * "ifgo".index(gate)
        w, u, b = (
            kernel[..., begin : begin + WIDTH]
            for kernel in (p["input"]["kernel"], p["hidden"]["kernel"], p["hidden"]["bias"])
        )
        return x @ w + hidden @ u + b

    cell = sigmoid(pre("f")) * cell + sigmoid(pre("i")) * np.tanh(pre("g"))
    hidden = sigmoid(pre("o")) * np.tanh(cell)
    return (cell, hidden), hidden


def gru_cell(p, hidden, x):
    def pre(g):
        return linear(p["i" + g], x), linear(p["h" + g], hidden)

    r, z = sigmoid(sum(pre("r"))), sigmoid(sum(pre("z")))
    from_input, from_hidden = pre("n")
    hidden = (1 - z) * np.tanh(from_input + r * from_hidden) + z * hidden
    return hidden, hidden


def recurrent(name, params, xs, firsts):
    zero = np.zeros(WIDTH)
    fresh = [(zero, zero) if name == "lstm" else zero] * LAYERS
    cell = lstm_cell if name == "lstm" else gru_cell
    carries, outputs = fresh, []
    for x, first in zip(xs, firsts, strict=True):
        carries = list(fresh if first else carries)
        for layer in range(LAYERS):
            carries[layer], x = cell(params[f"cells_{layer}"], carries[layer], x)
        outputs.append(x)
    return outputs


@pytest.mark.parametrize("name", ALL_CORES)
def test_segments_equal_plain_loops(name):
    core = small_core(name)
    params = random_params(core, seed=3)
    rng = np.random.default_rng(3)
    x_BTD, first_BT = random_segment(rng, batch=2, steps=18, dtype=np.float64)
    memory, parts = core.initial_memory(2), []
    apply = jax.jit(core.apply)
    for part in (slice(0, 6), slice(6, 12), slice(12, 18)):
        memory, y_BTD = apply(params, memory, x_BTD[:, part], first_BT[:, part])
        parts.append(y_BTD)
    actual_BTD = np.concatenate(parts, axis=1)

    weights = jax.tree.map(np.asarray, params["params"])
    reference = transformer if name in TRANSFORMERS else recurrent
    for row in range(2):
        expected_TD = reference(name, weights, np.asarray(x_BTD[row]), np.asarray(first_BT[row]))
        np.testing.assert_allclose(actual_BTD[row], expected_TD, rtol=0, atol=1e-9)


def test_swapped_gate_order_equals_plain_loops():
    """With another gate order, the same parameters give another output."""
    core = small_core("gtrxl/gru", gate_order="swapped")
    params = random_params(core, seed=3)
    x_BTD, first_BT = random_segment(np.random.default_rng(3), batch=1, steps=8, dtype=np.float64)
    _, actual_BTD = jax.jit(core.apply)(params, core.initial_memory(1), x_BTD, first_BT)
    weights = jax.tree.map(np.asarray, params["params"])
    inputs = weights, np.asarray(x_BTD[0]), np.asarray(first_BT[0])
    expected_TD = transformer("gtrxl/gru", *inputs, swapped=True)
    np.testing.assert_allclose(actual_BTD[0], expected_TD, rtol=0, atol=1e-9)
    assert np.all(np.abs(actual_BTD[0] - np.array(transformer("gtrxl/gru", *inputs))) > 1e-9)


def count(core):
    first_BT = np.zeros((1, 1), bool)
    x_BTD = np.zeros((1, 1, core.width), np.float32)
    shapes = jax.eval_shape(core.init, jax.random.key(0), core.initial_memory(1), x_BTD, first_BT)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


@pytest.mark.parametrize("width", [64, 127])
def test_recency_is_the_initial_power_of_the_distance(width):
    """Of the weights without content, which positions alone decide."""
    heads, head_width, memory = 4, 16, 400
    attention = RelativeAttention(width, heads, head_width, recency=2.0)
    x_BSD = jax.random.normal(jax.random.key(0), (1, memory + 1, width), jnp.float32)
    mask_BTS = jnp.ones((1, 1, memory + 1), bool)
    params = attention.init(jax.random.key(1), x_BSD, mask_BTS)["params"]
    params["query"]["kernel"] *= 0
    _, found = attention.apply({"params": params}, x_BSD, mask_BTS, mutable="attention")
    weight_HD = np.asarray(found["attention"]["weights"][0])[0, :, 0, ::-1]  # nearest first
    distances = np.array([4, 8, 16, 32, 64, 128])
    powers = np.polyfit(np.log(distances), np.log(weight_HD[:, distances]).T, 1)[0]
    np.testing.assert_allclose(-powers, [0, 0.5, 1, 2], rtol=0.2, atol=1e-3)

    plain = RelativeAttention(width, heads, head_width).init(jax.random.key(1), x_BSD, mask_BTS)
    assert not plain["params"]["position_bias"].any()
    rest = np.delete(plain["params"]["position"]["kernel"], np.s_[::head_width], axis=1)
    same = np.delete(params["position"]["kernel"], np.s_[::head_width], axis=1)
    np.testing.assert_array_equal(rest, same)


def test_gates_add_exactly_their_matrices_and_biases():
    """24 gates of D x D matrices: 6.3, 12.6 and 37.7 million parameters at the paper's width.

    The bias, which all but the Input gate have, adds D.
    """
    assert core_config("gtrxl", "paper").layers == 12
    plain = make_core("trxl", "paper", layers=1)
    assert count(make_core("trxl-i", "paper", layers=1)) == count(plain)
    for gate_name, matrices in dict(input=1, output=1, highway=1, sigtanh=2, gru=6).items():
        gated = make_core("gtrxl", "paper", layers=1, gate=gate_name)
        biases = 0 if gate_name == "input" else 1
        added = matrices * plain.width**2 + biases * plain.width
        assert count(gated) - count(plain) == 2 * added
    assert plain.width == 512
    assert 24 * plain.width**2 * 6 == 37_748_736
