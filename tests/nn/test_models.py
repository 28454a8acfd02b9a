"""Properties of all sequence models."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn.sequence.model import MODELS as NAMES
from gtrxl_jax.nn.sequence.model import register_model
from gtrxl_jax.nn.sequence.registry import (
    PRESETS,
    make_model,
    model_config,
)
from gtrxl_jax.offline.config import OfflineConfig, from_json, to_json
from gtrxl_jax.plugins import with_name
from tests.nn.models import (
    ACTIONS,
    BATCH,
    CONTEXT,
    MODELS,
    OBSERVATIONS,
    SEGMENTS,
    VALVES_ALONE,
    Shallow,
    param_shapes,
    random_params,
    random_steps,
    run_segments,
    segment,
    small_model,
)
from tests.tiers import slow_except

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
# These have all the parts that the others combine, except other valves.
QUICK = {"rate, long cache, gtrxl", "dt-gpt"}
every_model = pytest.mark.parametrize("name", slow_except(MODELS, QUICK))
# For properties within a segment, whose quick models attend and recur.
with_one_valve = pytest.mark.parametrize(
    "name",
    slow_except(
        [n for n in MODELS if n not in VALVES_ALONE], {"rate, long cache, gtrxl", "bc-lstm"}
    ),
)


@functools.partial(jax.jit, static_argnums=0)
def act(model, params, state, step, first=None):
    """Return the state after a step `[B]`, and the policy."""
    first = jnp.zeros(step.mask.shape, bool) if first is None else first
    seen = step.returns_to_go, step.observations, first
    state, policy = model.apply(params, state, *seen, method="decode")
    return model.apply(params, state, step.actions, method="observe_action"), policy


@pytest.mark.parametrize("name", slow_except(MODELS, QUICK | {"elmur", "dmamba"}))
def test_acting_step_by_step_equals_segments(name):
    """At every step of every segment, including those after commits of the memory."""
    model, segments, context = small_model(name)
    steps = random_steps(segments, context)
    params = random_params(model, steps)

    @jax.jit
    def acted(params, steps_SB):
        state = model.apply(params, BATCH, method="start")
        return jax.lax.scan(functools.partial(act, model, params), state, steps_SB)[1].logits

    in_time = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(BATCH, -1, *x.shape[3:]), 1, 0), steps)
    stepped = jnp.moveaxis(acted(params, in_time), 0, 1)
    np.testing.assert_allclose(stepped, run_segments(model, params, steps)[1], atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["dt", "dt-gpt"])
def test_window_slides_beyond_context(name):
    """Beyond its context a model without memory sees exactly the last T steps."""
    model, _, context = small_model(name)
    longer = random_steps(1, context + 3)
    params = random_params(model, longer)
    state = model.apply(params, BATCH, method="start")
    for t in range(context + 3):
        step = jax.tree.map(lambda x, t=t: x[:, 0, t], longer)
        state, policy = act(model, params, state, step)
    last = jax.tree.map(lambda x: x[:, :, 3:], longer)
    np.testing.assert_allclose(
        policy.logits, run_segments(model, params, last)[1][:, -1], atol=1e-9, rtol=0
    )


@with_one_valve
def test_predictions_do_not_depend_on_future(name):
    model, segments, context = small_model(name)
    steps = random_steps(segments, context)
    params = random_params(model, steps)

    def early(observations, returns_to_go):
        changed = steps.replace(observations=observations, returns_to_go=returns_to_go)
        return jnp.sum(run_segments(model, params, changed)[1][:, : segments * context // 2] ** 2)

    gradient = jax.jit(jax.grad(early, argnums=(0, 1)))
    gradients = gradient(steps.observations, steps.returns_to_go)
    for gradient in gradients:
        in_time = gradient.reshape(BATCH, segments * context, -1)
        assert np.all(in_time[:, segments * context // 2 :] == 0)
    assert np.any(gradients[0] != 0)


@every_model
def test_prediction_does_not_depend_on_its_action(name):
    model, segments, context = small_model(name)
    steps = random_steps(segments, context)
    params = random_params(model, steps)
    logits = run_segments(model, params, steps)[1]
    others = steps.replace(actions=steps.actions.at[:, -1, -1].add(1) % 4)
    np.testing.assert_array_equal(run_segments(model, params, others)[1], logits)


@with_one_valve
def test_padding_has_no_influence(name):
    """Padding changes neither earlier predictions nor gradients, and causes no NaN."""
    model, segments, context = small_model(name)
    steps = random_steps(segments, context)
    params = random_params(model, steps)
    exists = jnp.arange(segments * context) < segments * context - 2
    mask = jnp.broadcast_to(exists.reshape(segments, context), steps.mask.shape)

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(params, steps):
        logits = run_segments(model, params, steps)[1]
        return jnp.sum(jnp.where(mask.reshape(BATCH, -1, 1), logits, 0) ** 2)

    padded = steps.replace(mask=mask)
    other = padded.replace(
        observations=jnp.where(mask[..., None], steps.observations, 7.0),
        returns_to_go=jnp.where(mask, steps.returns_to_go, -3.0),
    )
    results = [loss_and_gradient(params, x) for x in (padded, other, steps)]
    for result in results[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9, rtol=1e-9), results[0], result
        )
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(results[0]))


@with_one_valve
def test_deterministic_disables_dropout(name):
    attends = hasattr(config_of(name), "attention_dropout")
    of_attention = {"attention_dropout": 0.2} if attends else {}
    model, segments, context = small_model(name, dropout=0.5, **of_attention)
    steps = random_steps(segments, context)
    params = random_params(model, steps)
    memory = model.apply(params, BATCH, method="initial_memory")

    @functools.partial(jax.jit, static_argnums=0)
    def logits(deterministic, key):
        rngs = {"dropout": jax.random.key(key)}
        _, policy = model.apply(params, memory, segment(steps, 0), deterministic, rngs=rngs)
        return policy.logits

    np.testing.assert_array_equal(logits(True, 0), logits(True, 1))
    assert np.any(logits(False, 0) != logits(False, 1))


def config_of(name):
    """Return the config of the model called `name` in `MODELS`, or registered so."""
    settings = {
        "name": name,
        **({"name": "rate"} if name in MODELS else {}),
        **MODELS.get(name, {}),
    }
    return model_config(**settings)


def in_float32(steps):
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, steps)


@every_model
def test_bfloat16_keeps_parameters_and_policies_in_float32(name):
    with jax.enable_x64(False):
        model, segments, context = small_model(name, dtype="bfloat16")
        steps = in_float32(random_steps(segments, context))
        # Dtypes are known without computing anything.
        params = param_shapes(model, steps)
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
        memory, logits = jax.eval_shape(functools.partial(run_segments, model), params, steps)
        assert logits.dtype == jnp.float32
        # Sums over many steps stay in float32.
        is_wide = hasattr(model, "core") and name != "bc-lstm"
        assert is_wide or all(x.dtype != jnp.float32 for x in jax.tree.leaves(memory))
        first = segment(segment(steps, 0), 0)
        before = jax.eval_shape(lambda p: model.apply(p, BATCH, method="start"), params)
        after, policy = jax.eval_shape(functools.partial(act, model), params, before, first)
        assert policy.logits.dtype == jnp.float32
        assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, before)
        assert is_wide or all(x.dtype != jnp.float32 for x in jax.tree.leaves(after))


@pytest.mark.parametrize(
    "name",
    slow_except(
        ["rate", "rate, lstm", "rate, cache only", "dt-gpt", "bc-lstm"],
        quick=["rate, cache only", "bc-lstm"],
    ),
)
def test_bfloat16_predictions_are_close_to_float32(name):
    """The error, over all segments, is a small part of the spread of the logits."""
    with jax.enable_x64(False):
        exact, segments, context = small_model(name)
        low = small_model(name, dtype="bfloat16")[0]
        steps = in_float32(random_steps(segments, context))
        params = random_params(exact, steps)
        (_, logits), (_, expected) = (run_segments(m, params, steps) for m in (low, exact))
        first = segment(segment(steps, 0), 0)
        _, acted = act(low, params, low.apply(params, BATCH, method="start"), first)
    spread = np.std(expected)
    assert 0 < np.sqrt(np.mean((logits - expected) ** 2)) < 0.05 * spread
    assert np.sqrt(np.mean((acted.logits - expected[:, 0]) ** 2)) < 0.05 * spread


def test_decision_transformer_equals_rate_without_memory():
    steps = random_steps(1, SEGMENTS * CONTEXT)
    dt = small_model("dt")[0]
    rate = make_model(
        model_config("rate", "debug", layers=2, memory_tokens=0, cache_size=0),
        OBSERVATIONS,
        ACTIONS,
        SEGMENTS * CONTEXT,
        jnp.float64,
    )
    params = random_params(dt, steps)
    np.testing.assert_array_equal(
        run_segments(dt, params, steps)[1], run_segments(rate, params, steps)[1]
    )


@pytest.mark.parametrize(
    ("name", "settings", "of_rate"),
    [
        ("rmt", {}, {"valve": "none"}),
        ("trxl", {"cache_size": 7}, {"memory_tokens": 0, "cache_size": 7}),
    ],
)
def test_parts_of_rate_by_name(name, settings, of_rate):
    """The same modules, but for a valve that is not used."""
    part, whole = (
        make_model(model_config(kind, "debug", **more), OBSERVATIONS, ACTIONS, 4)
        for kind, more in ((name, settings), ("rate", of_rate))
    )
    assert config_of(name).is_recurrent
    assert part == whole.clone(valve=part.valve)


def test_settings_of_the_core_reach_it():
    config = model_config("core", core="gtrxl", layers=3, core_settings={"memory_size": 5})
    core = make_model(config, OBSERVATIONS, ACTIONS, 4).core.config
    assert (core.name, core.memory_size, core.width, core.layers) == ("gtrxl", 5, 64, 3)
    assert from_json(to_json(OfflineConfig(model=config))).model == config


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_can_be_built(name, preset):
    # The heads of these divide the width; RATE's need not.
    heads = {"heads": 2} if name in ("dt-gpt", "elmur") else {}
    config = model_config(name, preset, encoder="linear", **heads)
    make_model(config, OBSERVATIONS, ACTIONS, 4)


@pytest.mark.parametrize("name", ["shallow", "tests.nn.models:Shallow"])
def test_model_of_ones_own(name):
    register_model("shallow", Shallow)
    config = model_config(name, "debug", hidden=4)
    assert type(config) is Shallow
    assert make_model(config, OBSERVATIONS, ACTIONS, 4).widths == (4,)
    run = OfflineConfig(model=config)
    assert from_json(to_json(run)) == run
    assert run.shape == (run.segments, run.unroll)
    assert with_name(model_config("dt", width=24), name) == Shallow(name=name, width=24)
    with pytest.raises(ValueError, match="hidden must be at least 1"):
        model_config(name, hidden=0)


def test_registered_names_are_kept():
    with pytest.raises(ValueError, match="model.name 'rate' is already registered"):
        register_model("rate", Shallow)
    with pytest.raises(ValueError, match="'rate' is a RATEConfig, but this is a Shallow"):
        make_model(Shallow(name="rate"), OBSERVATIONS, ACTIONS, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "rat"}, ["model.name", "rat", "'rate'"]),
        ({"valve": "ca2"}, ["model.valve", "'ca-2'"]),
        ({"block": "gtrx"}, ["model.block", "'gtrxl'"]),
        ({"block": ""}, ["unknown model.block ''", "gtrxl"]),
        ({"encoder": "natur"}, ["model.encoder", "'nature'"]),
        ({"name": "dt-gpt", "width": 31}, ["model.width", "31", "model.heads"]),
        ({"valve_heads": 3}, ["model.valve_heads", "3"]),
        ({"layers": 0}, ["model.layers", "at least 1"]),
        ({"memory_tokens": -1}, ["model.memory_tokens", "at least 0"]),
        ({"cache_size": 1.5}, ["model.cache_size", "1.5"]),
        ({"dropout": 1.0}, ["model.dropout", "below 1"]),
        ({"return_scale": 0.0}, ["model.return_scale", "above 0"]),
        ({"name": "core", "core": "mlstn"}, ["core.name", "'mlstm'"]),
        ({"name": "core", "core_settings": {"head": 2}}, ["setting of mamba2", "'heads'"]),
        ({"name": "core", "core_settings": {"width": 2}}, ["model.core_settings", "model.width"]),
        (
            {"name": "core", "core": "gtrxl", "core_settings": {"memory_size": 0}},
            ["model.core gtrxl with model.core_settings", "memory_size"],
        ),
        (
            {"name": "core", "core": "dnc", "core_settings": {"prediction_cost": 0.5}},
            ["model.core_settings", "prediction_cost", "no effect"],
        ),
        ({"gate_bias": float("nan")}, ["model.gate_bias", "finite"]),
    ],
)
def test_invalid_configs_are_rejected(settings, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words[0])) as error:
        model_config(settings.pop("name", "rate"), **settings)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)
