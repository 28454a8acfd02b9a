"""ELMUR against independent plain loops in float64, and what is written to its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.sequence.elmur import EMPTY, LayerMemory
from tests.nn.models import BATCH, random_params, random_steps, run_segments, segment, small_model
from tests.nn.test_models import act
from tests.nn.test_rate import HEADS, WIDTH, attend, norm, softmax

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
BLEND, FARTHEST = 0.3, 5


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def feedforward(p, x):
    return linear(p["Dense_1"], np.maximum(linear(p["Dense_0"], x), 0))


def cross_attend(p, table, x, place, sources, places):
    """Compute the attention of x at `place` to sources, with the bias of their distances.

    Returns the output, and the weights of each head.
    """
    size = WIDTH // HEADS
    query = linear(p["query"], x)
    keys, values = np.split(linear(p["key_value"], np.stack(sources)), 2, axis=1)
    heads, weights = [], np.zeros((HEADS, len(sources)))
    for h in range(HEADS):
        cut = slice(h * size, (h + 1) * size)
        scores = []
        for key, other in zip(keys, places, strict=True):
            distance = max(-FARTHEST, min(FARTHEST, place - other))
            scores.append(query[cut] @ key[cut] / np.sqrt(size) + table[distance + FARTHEST, h])
        weights[h] = softmax(np.array(scores))
        heads.append(sum(w * v[cut] for w, v in zip(weights[h], values, strict=True)))
    return linear(p["output"], np.concatenate(heads)), weights


def naive_layer(p, vectors, anchors, stream, places):
    """Run a layer on one row's segment; return its outputs, and rewrite the lists in place."""
    seen = {i: list(range(i + 1)) for i in range(len(stream))}
    order = np.arange(len(stream))
    attended = attend(p["attention"], order, stream, order, seen.get)
    table = p["relative_bias"]
    outputs = []
    for x, a, place in zip(stream, attended, places, strict=True):
        y = norm(p["attention_norm"], x + a)
        read, _ = cross_attend(p["read"], table, y, place, vectors, anchors)
        y = norm(p["read_norm"], y + read)
        outputs.append(norm(p["feedforward_norm"], y + feedforward(p["feedforward"], y)))
    new = []
    for m, anchor in zip(vectors, anchors, strict=True):
        u, _ = cross_attend(p["write"], table, m, anchor, outputs, places)
        u = norm(p["write_norm"], m + u)
        new.append(norm(p["memory_norm"], u + feedforward(p["memory_feedforward"], u)))
    if -1 in anchors:
        j = anchors.index(-1)
        vectors[j] = new[j]
    else:
        j = anchors.index(min(anchors))
        vectors[j] = BLEND * new[j] + (1 - BLEND) * vectors[j]
    anchors[j] = places[-1]
    return outputs


def test_segments_equal_plain_loops():
    """Of five segments: the third and the fourth blend into slots that are filled."""
    model, _, context = small_model("elmur", return_scale=1.0)
    steps = random_steps(5, context)
    params = random_params(model, steps)
    memory, logits = run_segments(model, params, steps)
    numbers = jax.tree.map(np.asarray, params["params"])
    embed, blocks = numbers["embedding"], [numbers["blocks_0"], numbers["blocks_1"]]
    for row in range(BATCH):
        vectors = [list(p["initial_vectors"]) for p in blocks]
        anchors = [[-1, -1] for _ in blocks]
        for n in range(5):
            stream, places = [], []
            for t in range(context):
                to_go = np.array([steps.returns_to_go[row, n, t]])
                observation = np.asarray(steps.observations[row, n, t])
                action = np.eye(4)[steps.actions[row, n, t]]
                stream.append(linear(embed["return_projection"], to_go))
                stream.append(linear(embed["observation_projection"], observation))
                stream.append(linear(embed["action_projection"], action))
                places += [n * context + t] * 3
            for p, m, anchor in zip(blocks, vectors, anchors, strict=True):
                stream = naive_layer(p, m, anchor, stream, places)
            expected = [linear(numbers["head"]["output"], x) for x in stream[1::3]]
            got = logits[row, n * context : (n + 1) * context]
            np.testing.assert_allclose(got, np.stack(expected), atol=1e-9, rtol=0)
        for layer, m, anchor in zip(memory.layers, vectors, anchors, strict=True):
            np.testing.assert_allclose(layer.vectors[row], np.stack(m), atol=1e-9)
            np.testing.assert_array_equal(layer.anchors[row], anchor)
    assert anchors[0] == [5 * context - 1, 4 * context - 1]


def test_attention_to_slots_is_reported():
    model, _, _ = small_model("elmur", layers=1)
    params = random_params(model, random_steps(1, 4))
    rng = np.random.default_rng(0)
    x, slots = rng.standard_normal((1, 5, WIDTH)), rng.standard_normal((1, 2, WIDTH))
    places, anchors = np.arange(20, 25)[None], np.array([[EMPTY, 19]])

    def read(model):
        (block,) = model.blocks
        source = block.read.project(jnp.asarray(slots))
        return block.read(
            jnp.asarray(x), source, block.biases(*map(jnp.asarray, (places, anchors)))
        )

    out, reported = model.apply(params, mutable="attention", method=read)
    p = jax.tree.map(np.asarray, params["params"]["blocks_0"])
    (weights,) = reported["attention"]["blocks_0"]["read"]["weights"]
    for t, place in enumerate(places[0]):
        expected = cross_attend(p["read"], p["relative_bias"], x[0, t], place, slots[0], anchors[0])
        np.testing.assert_allclose(out[0, t], expected[0], atol=1e-12)
        np.testing.assert_allclose(weights[0, :, t], expected[1], atol=1e-12)


def test_one_slot_is_rewritten():
    """The first empty one by what is new, then the one that was written least recently, in part."""
    model, _, _ = small_model("elmur", memory_slots=3, layers=1)
    steps = random_steps(1, 4)
    params = random_params(model, steps)
    rng = np.random.default_rng(0)
    y, vectors = (jnp.asarray(rng.standard_normal((1, n, WIDTH))) for n in (12, 3))
    places = jnp.repeat(jnp.arange(20, 24, dtype=jnp.int32), 3)[None]

    @jax.jit
    def rewrite(anchors):
        memory = LayerMemory(vectors, anchors[None])
        exists = jnp.ones((1, 12), bool)
        return model.apply(params, method=lambda m: m.blocks[0].rewrite(memory, y, places, exists))

    for anchors, slot, part in [
        ([EMPTY, EMPTY, EMPTY], 0, 1.0),
        ([9, EMPTY, EMPTY], 1, 1.0),
        ([9, 19, EMPTY], 2, 1.0),
        ([9, 7, 19], 1, BLEND),
    ]:
        after = rewrite(jnp.array(anchors, jnp.int32))
        changed = np.any(after.vectors != vectors, axis=-1)[0]
        np.testing.assert_array_equal(changed, np.arange(3) == slot)
        expected = list(anchors)
        expected[slot] = 23
        np.testing.assert_array_equal(after.anchors[0], expected)
        if part == 1:  # LN(...), with the trained scale and bias
            p = params["params"]["blocks_0"]["memory_norm"]
            unit = (after.vectors[0, slot] - p["bias"]) / p["scale"]
            np.testing.assert_allclose(np.mean(unit), 0, atol=1e-6)


@pytest.mark.slow  # the segments of RATE have a quick one
def test_memory_learns_through_segments():
    """What a segment writes is trained by the segments that read it."""
    model, _, context = small_model("elmur", return_scale=1.0)
    steps = random_steps(2, context)
    params = random_params(model, steps)

    def last(params, first):
        memory = model.apply(params, BATCH, method="initial_memory")
        memory, _ = model.apply(params, memory, first)
        return jnp.sum(model.apply(params, memory, segment(steps, 1))[1].logits ** 2)

    of_params, of_first = jax.jit(jax.grad(last, argnums=(0, 1), allow_int=True))(
        params, segment(steps, 0)
    )
    for part in ("write", "memory_feedforward"):
        assert all(np.any(x != 0) for x in jax.tree.leaves(of_params["params"]["blocks_0"][part]))
    assert np.all(np.any(of_first.observations != 0, axis=(0, 2)))


@pytest.mark.slow  # the contract of all models has the quick one
def test_acting_beyond_filled_memory():
    """Five segments, and a row in which an episode begins in the middle of one."""
    model, _, context = small_model("elmur", return_scale=1.0)
    steps = random_steps(5, context)
    params = random_params(model, steps)
    in_time = jax.tree.map(lambda x: x.reshape(BATCH, -1, *x.shape[3:]), steps)
    state = model.apply(params, BATCH, method="start")
    begins, logits = 6, []
    step_once = jax.jit(lambda state, step, first: act(model, params, state, step, first))
    for t in range(5 * context):
        step = jax.tree.map(lambda x, t=t: x[:, t], in_time)
        first = jnp.array([t == 0, t in (0, begins)])
        state, policy = step_once(state, step, first)
        logits.append(policy.logits)
    logits = np.stack(logits, axis=1)
    whole = run_segments(model, params, steps)[1]
    np.testing.assert_allclose(logits[0], whole[0], atol=1e-9)
    np.testing.assert_allclose(logits[1, :begins], whole[1, :begins], atol=1e-9)
    later = jax.tree.map(
        lambda x: x[:, begins : begins + 3 * context].reshape(BATCH, 3, context, *x.shape[2:]),
        in_time,
    )
    again = run_segments(model, params, later)[1]
    np.testing.assert_allclose(logits[1, begins : begins + 3 * context], again[1], atol=1e-9)
