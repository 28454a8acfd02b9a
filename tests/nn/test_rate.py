"""RATE against independent plain loops in float64, and its gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.nn.sequence.registry import make_model, model_config
from gtrxl_jax.nn.sequence.trajectory import ActionHead
from gtrxl_jax.nn.sequence.valves import VALVES, MemoryTokens, make_valve
from gtrxl_jax.ops.distributions import Categorical, Gaussian, Hybrid
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import ActionSpec
from gtrxl_jax.validation import validate
from tests.nn.cores import random_values
from tests.nn.models import (
    BATCH,
    random_params,
    random_steps,
    run_segments,
    segment,
    small_model,
)

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
HEADS, WIDTH = 2, 16


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(p, x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * p["scale"] + p["bias"]


def phi(distance):
    rates = 10000.0 ** (-np.arange(WIDTH // 2) / (WIDTH // 2))
    return np.concatenate([np.sin(distance * rates), np.cos(distance * rates)])


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def attend(p, places, inputs, queries, seen):
    """Compute the attention of `queries` (indices) to the tokens that each may see."""
    size = WIDTH // HEADS
    keys, values = np.split(np.stack(inputs) @ p["key_value"]["kernel"], 2, axis=1)
    outputs = []
    for i in queries:
        heads = []
        for h in range(HEADS):
            cut = slice(h * size, (h + 1) * size)
            q = (inputs[i] @ p["query"]["kernel"])[cut]
            scores = []
            for j in seen(i):
                r = (phi(places[i] - places[j]) @ p["position"]["kernel"])[cut]
                content = (q + p["content_bias"][h]) @ keys[j][cut]
                scores.append((content + (q + p["position_bias"][h]) @ r) / np.sqrt(size))
            weights = softmax(np.array(scores))
            heads.append(sum(w * values[j][cut] for w, j in zip(weights, seen(i), strict=True)))
        outputs.append(np.concatenate(heads) @ p["output"]["kernel"])
    return outputs


def naive_segment(params, memory, caches, steps, memory_tokens, cache_size):
    """Run one row's segment through TrXL blocks; return write token outputs, caches, logits."""
    embed = params["embedding"]

    def linear(p, x):
        return x @ p["kernel"] + p["bias"]

    tokens = []
    for observation, action, to_go in steps:
        tokens.append(linear(embed["return_projection"], np.array([to_go / 2])))
        tokens.append(linear(embed["observation_projection"], observation))
        tokens.append(linear(embed["action_projection"], np.eye(4)[action]))
    stream = [*memory, *tokens, *memory]
    steps_end = memory_tokens + len(tokens)
    new_caches = []
    for n, cache in enumerate(caches):
        p = params[f"blocks_{n}"]
        everything = [*cache, *stream]
        offset = len(cache)
        # A cache that is not full yet has only the tokens written so far.
        places = np.arange(len(everything))

        def seen(i, offset=offset, everything=everything):
            read = range(offset, offset + memory_tokens)
            k = i - offset
            if k < memory_tokens:
                return list(read)
            if k < steps_end:
                return list(range(i + 1))
            return list(range(offset, len(everything)))

        queries = range(offset, len(everything))
        attended = attend(p["attention"], places, everything, queries, seen)
        new_caches.append([*cache, *stream[memory_tokens:steps_end]][-cache_size or 10**9 :])
        after = []
        for x, a in zip(stream, attended, strict=True):
            y = norm(p["attention_norm"], x + a)
            f = p["feedforward"]
            hidden = np.maximum(linear(f["Dense_0"], y), 0)
            after.append(norm(p["feedforward_norm"], y + linear(f["Dense_1"], hidden)))
        stream = after
    logits = [
        linear(params["head"]["output"], stream[memory_tokens + 3 * t + 1])
        for t in range(len(steps))
    ]
    return stream[steps_end:], new_caches, logits


@pytest.mark.parametrize("cache_size", [0, 5, 20])
def test_segments_equal_plain_loops(cache_size):
    model, segments, context = small_model(
        "rate", valve="none", cache_size=cache_size, return_scale=2.0
    )
    steps = random_steps(segments, context)
    params = random_params(model, steps)
    _, logits = run_segments(model, params, steps)
    numbers = jax.tree.map(np.asarray, params["params"])
    for row in range(BATCH):
        memory, caches = list(numbers["initial_tokens"]), [[], []]
        for n in range(segments):
            parts = (steps.observations, steps.actions, steps.returns_to_go)
            triples = list(zip(*(np.asarray(x[row, n]) for x in parts), strict=True))
            memory, caches, expected = naive_segment(
                numbers, memory, caches, triples, 2, cache_size
            )
            got = logits[row, n * context : (n + 1) * context]
            np.testing.assert_allclose(got, np.stack(expected), atol=1e-9, rtol=0)


def naive_valve(name, p, old, new):
    """Apply a valve to one row, tokens `[m, D]`; return the new ones, and what it reports."""

    def attention(asking, answering):
        q = asking @ p["query"]["kernel"]
        k, v = np.split(answering @ p["key_value"]["kernel"], 2, axis=1)
        out, weights = np.zeros_like(q), np.zeros((2, len(q), len(k)))
        for h in range(2):
            cut = slice(h * WIDTH // 2, (h + 1) * WIDTH // 2)
            for i in range(len(q)):
                weights[h, i] = softmax(q[i, cut] @ k[:, cut].T / np.sqrt(WIDTH / 2))
                out[i, cut] = weights[h, i] @ v[:, cut]
        return out @ p["output"]["kernel"], weights

    if name == "none":
        return new, None
    if name == "ca-2":
        return attention(old, np.maximum(new, 0))
    if name == "ca-1":
        return attention(new, old)
    if name == "g":
        w_r, w_z, w_g = np.split(old @ p["memory"]["kernel"], 3, axis=1)
        u_r, u_z = np.split(new @ p["written"]["kernel"], 2, axis=1)
        z = sigmoid(w_z + u_z - 2)
        u_g = (sigmoid(w_r + u_r) * new) @ p["reset_written"]["kernel"]
        return (1 - z) * old + z * np.tanh(w_g + u_g), z.mean(axis=1)[None, :, None]

    def dense(part, x):
        return x @ p["cell"][part]["kernel"] + p["cell"][part].get("bias", 0)

    if name == "gru":
        r = sigmoid(dense("ir", new) + dense("hr", old))
        z = sigmoid(dense("iz", new) + dense("hz", old))
        n = np.tanh(dense("in", new) + r * dense("hn", old))
        return (1 - z) * n + z * old, None
    i, f, g, o = np.split(dense("input", new) + dense("hidden", old), 4, axis=1)
    cell = sigmoid(f) * 0.3 + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), None


@pytest.mark.parametrize("name", VALVES)
def test_valves_equal_their_equations(name):
    rng = np.random.default_rng(0)
    old, new = rng.standard_normal((2, BATCH, 3, WIDTH))
    valve = make_valve(name, 2, None, jnp.float64)
    carry = valve.initial(jnp.asarray(old))
    if name == "lstm":
        assert np.all(carry.cell == 0)
        carry = MemoryTokens(carry.tokens, jnp.full_like(carry.tokens, 0.3))
    params = random_values(jax.eval_shape(valve.init, jax.random.key(0), carry, jnp.asarray(new)))
    apply = jax.jit(functools.partial(valve.apply, mutable="valve"))
    after, reported = apply(params, carry, jnp.asarray(new))
    for row in range(BATCH):
        numbers = jax.tree.map(np.asarray, params.get("params", {}))
        expected, weights = naive_valve(name, numbers, old[row], new[row])
        np.testing.assert_allclose(after.tokens[row], expected, atol=1e-12)
        if weights is None:
            assert not reported
        else:
            np.testing.assert_allclose(reported["valve"]["weights"][0][row], weights, atol=1e-12)


@pytest.mark.parametrize(("name", "rectifies"), [("ca-2", True), ("ca-1", False)])
def test_only_ca_2_rectifies_written_tokens(name, rectifies):
    rng = np.random.default_rng(0)
    old, new = jnp.asarray(rng.standard_normal((2, BATCH, 3, WIDTH)))
    valve = make_valve(name, 2, None, jnp.float64)
    params = random_values(jax.eval_shape(valve.init, jax.random.key(0), valve.initial(old), new))
    apply = jax.jit(valve.apply)
    as_it_is, rectified = (
        apply(params, valve.initial(old), x).tokens for x in (new, jnp.maximum(new, 0))
    )
    assert np.allclose(as_it_is, rectified) == rectifies


def test_gradients_flow_through_tokens_not_cache():
    model, segments, context = small_model("rate", cache_size=5)
    steps = random_steps(segments, context)
    params = random_params(model, steps)

    def last(params, memory, first):
        memory, _ = model.apply(params, memory, first)
        for n in (1, 2):
            memory, policy = model.apply(params, memory, segment(steps, n))
        return jnp.sum(policy.logits**2)

    memory = model.apply(params, BATCH, method="initial_memory")
    gradient = jax.jit(jax.grad(last, argnums=(0, 1, 2), allow_int=True))
    of_params, of_memory, of_first = gradient(params, memory, segment(steps, 0))
    for leaf in jax.tree.leaves(of_params["params"]["valve"]):
        assert np.any(leaf != 0)
    assert np.any(of_memory.tokens.tokens != 0)
    assert all(np.all(leaf == 0) for leaf in of_memory.cache)
    assert np.any(of_first.observations != 0)


def test_no_gradient_through_cache_without_tokens():
    model, segments, context = small_model("rate, cache only")
    steps = random_steps(segments, context)
    params = random_params(model, steps)

    @jax.jit
    def last(first):
        memory = model.apply(params, BATCH, method="initial_memory")
        memory, _ = model.apply(params, memory, first)
        return jnp.sum(model.apply(params, memory, segment(steps, 1))[1].logits ** 2)

    first = segment(steps, 0)
    gradient = jax.grad(lambda x: last(dataclasses.replace(first, observations=x)))
    assert np.all(gradient(first.observations) == 0)
    # The cache still affects the outputs.
    other = dataclasses.replace(first, observations=first.observations + 1)
    assert last(first) != last(other)


def test_action_head_matches_action_spec():
    x = jnp.ones((2, 5))

    def policy(spec):
        return ActionHead(spec, jnp.float64).init_with_output(jax.random.key(0), x)[0]

    assert isinstance(policy(ActionSpec(discrete=(4,))), Categorical)
    bounded = policy(ActionSpec(continuous=((-2.0, 4.0), (-np.inf, np.inf))))
    assert isinstance(bounded, Gaussian)
    assert np.all((bounded.mean[:, 0] > -2) & (bounded.mean[:, 0] < 4))
    np.testing.assert_array_equal(bounded.scale, [[3, 1]] * 2)
    assert isinstance(policy(ActionSpec(((-1.0, 1.0),), (3, 2))), Hybrid)


def test_model_with_images_and_continuous_actions():
    images = spaces.Box(0, 255, (40, 40, 3), jnp.uint8)
    actions = spaces.Box(-1.0, 1.0, (2,), jnp.float32)
    model = make_model(model_config("rate", "debug", encoder="nature"), images, actions, 2)
    steps = Segments(
        observations=jnp.zeros((1, 2, 40, 40, 3), jnp.uint8),
        actions=jnp.zeros((1, 2, 2)),
        returns_to_go=jnp.zeros((1, 2)),
        timesteps=jnp.zeros((1, 2), jnp.int32),
        mask=jnp.ones((1, 2), bool),
    )

    def learn(model, steps):
        return model(model.initial_memory(1), steps)

    init = functools.partial(model.init, jax.random.key(0), steps, method=learn)
    params = random_values(jax.eval_shape(init))
    _, learned = jax.jit(functools.partial(model.apply, method=learn))(params, steps)
    assert learned.mean.shape == (1, 2, 2)
    state = jax.jit(functools.partial(model.apply, method="start"), static_argnums=1)(params, 1)
    first = (steps.returns_to_go[:, 0], steps.observations[:, 0], jnp.ones(1, bool))
    _, policy = jax.jit(functools.partial(model.apply, method="decode"))(params, state, *first)
    np.testing.assert_allclose(policy.mean, learned.mean[:, 0], atol=1e-5)


@pytest.mark.parametrize("settings", [{"gate": "output"}, {"gate_bias": 1.0}])
def test_gates_without_effect_are_refused(settings):
    with pytest.raises(ValueError, match="has no effect, since model.block trxl has no gates"):
        validate(model_config("rate", **settings))
    validate(model_config("dt", block="gtrxl", **settings))
