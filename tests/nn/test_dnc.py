"""The DNC against a plain loop over the paper's equations, and its auxiliary loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn.cores import LAYERS, MEMORY_SIZE, WIDTH, random_params, random_segment, small_core
from tests.nn.test_reference import linear, lstm_cell

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("x64")]
HEADS, GAMMA = 2, 0.7


def norm(x):
    return np.sqrt(x @ x + 1e-6)


def dnc(p, xs):
    """Return the outputs of an episode, and the steps that its rows remember at the end.

    A row is the step that it remembers. Its content is computed from all inputs so far, and its
    usage from the weights with which it was read.
    """
    carries = [(np.zeros(WIDTH), np.zeros(WIDTH)) for _ in range(LAYERS)]
    reads, rows, usage, outputs = np.zeros(HEADS * 2 * WIDTH), [], {}, []
    for t, x in enumerate(xs):
        below, hidden = [], []
        for layer in range(LAYERS):
            inputs = np.concatenate([x, reads, *below])
            carries[layer], h = lstm_cell(p[f"controller_{layer}"], carries[layer], inputs)
            below = [h]
            hidden.append(h)
        contents = {}
        for s in rows:
            later = sum((1 - GAMMA) * GAMMA ** (r - s - 1) * xs[r] for r in range(s + 1, t))
            contents[s] = np.concatenate([xs[s], later + np.zeros(WIDTH)])
        usage = {s: 0.95 * usage[s] for s in rows}
        reads = []
        for query in np.split(linear(p["query"], np.concatenate(hidden)), HEADS):
            key, strength = query[:-1], np.log1p(np.exp(query[-1]))
            scores = [strength * key @ m / norm(key) / norm(m) for m in contents.values()]
            weights = np.exp(scores) / np.sum(np.exp(scores))
            for s, w in zip(rows, weights, strict=True):
                usage[s] += w
            pairs = zip(contents.values(), weights, strict=True)
            reads.append(sum((w * m for m, w in pairs), np.zeros(2 * WIDTH)))
        reads = np.concatenate(reads)
        if len(rows) == MEMORY_SIZE:
            rows.remove(min(rows, key=usage.get))
        rows.append(t)
        usage[t] = 1.0
        outputs.append(linear(p["output"], np.concatenate([*hidden, reads])))
    return outputs, rows


def test_dnc_equals_plain_loop():
    core = small_core("dnc")
    params = random_params(core, seed=3)
    x_BTD, _ = random_segment(np.random.default_rng(3), 2, 26, jnp.float64)
    starts = [[0, 4, 7], [9]]
    first_BT = np.zeros((2, 26), bool)
    for row, begins in enumerate(starts):
        first_BT[row, begins] = True
    memory, parts = core.initial_memory(2), []
    apply = jax.jit(core.apply)
    for part in (slice(0, 13), slice(13, 26)):
        memory, y_BTD = apply(params, memory, x_BTD[:, part], jnp.asarray(first_BT[:, part]))
        parts.append(y_BTD)
    y_BTD = np.concatenate(parts, axis=1)
    weights, kept = jax.tree.map(np.asarray, params["params"]), []
    for row, begins in enumerate(starts):
        episodes = np.split(np.asarray(x_BTD[row]), [begin for begin in begins if begin])
        played = [dnc(weights, list(episode)) for episode in episodes]
        expected = np.concatenate([outputs for outputs, _ in played])
        np.testing.assert_allclose(y_BTD[row], expected, rtol=0, atol=1e-9)
        kept.append(played[-1][1])
        remembered = {tuple(episodes[-1][s]) for s in kept[-1]}
        assert {tuple(m) for m in np.asarray(memory.rows[row, :, :WIDTH])} == remembered
    # The reads, not the order of writing alone, decide which rows are erased.
    assert any(rows[-1] - rows[0] >= MEMORY_SIZE for rows in kept)


def test_prediction_loss_of_each_step():
    core = small_core("dnc", layers=1, prediction_cost=0.5)
    params = random_params(core)
    x_BTD, _ = random_segment(np.random.default_rng(0), 2, 5, jnp.float64)
    first_BT = jnp.zeros((2, 5), bool).at[1, 2].set(True)

    @jax.jit
    def run(x_BTD):
        memory = core.initial_memory(2)
        (_, y_BTD), state = core.apply(params, memory, x_BTD, first_BT, mutable=["losses"])
        (loss,) = jax.tree.leaves(state)
        return loss, y_BTD

    (loss, y_BTD), to_inputs = jax.value_and_grad(run, has_aux=True)(x_BTD)
    predictor = jax.tree.map(np.asarray, params["params"]["predictor"])
    predictions = linear(predictor, np.asarray(y_BTD))
    errors = [
        1 - p @ x / norm(p) / norm(x)
        for row in range(2)
        for t, (p, x) in enumerate(zip(predictions[row], np.asarray(x_BTD[row, 1:]), strict=False))
        if not first_BT[row, t + 1]
    ]
    assert len(errors) == 7
    np.testing.assert_allclose(loss, 0.5 * np.mean(errors), rtol=1e-12)
    influence_BT = np.any(np.asarray(to_inputs) != 0, axis=-1)
    # The last input is only a target, and so is the last of an episode.
    np.testing.assert_array_equal(influence_BT, [[1, 1, 1, 1, 0], [1, 0, 1, 1, 0]])
