"""Layers in a loop, the form on TPUs, equal unrolled layers, the form elsewhere."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.nn import layers
from gtrxl_jax.nn.cores import gtrxl
from gtrxl_jax.testing import check_core
from tests.comparison import assert_close
from tests.nn.cores import WIDTH, random_params, random_segment, small_core
from tests.tiers import slow_except

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
NAMES = ["trxl", "gtrxl/gru"]


@pytest.fixture
def tpu(monkeypatch):
    """Select the forms of TPUs, on this CPU."""

    def select():
        monkeypatch.setattr(layers, "platform", lambda: "tpu")
        jax.clear_caches()

    yield select
    jax.clear_caches()


@pytest.fixture
def loops_only(monkeypatch):
    """Unroll no steps of acting."""
    monkeypatch.setattr(gtrxl, "UNROLLED_STEPS", 0)


def learn(core, params, memory, x_BTD, first_BT):
    """Return the memory, the outputs, what the core reports, and the gradient."""

    def loss(params, x_BTD):
        (memory_after, y_BTD), reports = core.apply(
            params, memory, x_BTD, first_BT, mutable=["metrics", "attention"]
        )
        return jnp.sum(jnp.sin(y_BTD)), (memory_after, y_BTD, reports)

    gradient, returned = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x_BTD)
    return gradient, returned


def act(core, params, memory, x_BTD, first_BT):
    """Return the memory and the outputs of stepping through a segment."""

    def step(cache, inputs):
        return core.apply(params, cache, *inputs, method="step")

    def run(params, memory):
        cache = core.apply(params, memory, method="start")
        cache, y_TBD = jax.lax.scan(step, cache, (x_BTD.swapaxes(0, 1), first_BT.swapaxes(0, 1)))
        return core.apply(params, cache, method="finish"), y_TBD

    return jax.jit(run)(params, memory)


@pytest.mark.parametrize("remat", slow_except([False, True], [False]))
@pytest.mark.parametrize("name", slow_except(NAMES, {"gtrxl/gru"}))
def test_loop_equals_unrolled_layers(tpu, monkeypatch, name, remat):
    core = small_core(name, layers=3, remat=remat)
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(0), 2, 9, jnp.float64)
    memory = core.initial_memory(2)
    memory = memory.replace(
        inputs=jnp.asarray(np.random.default_rng(1).standard_normal(memory.inputs.shape)),
        length=jnp.array([0, 4], jnp.int32),
    )
    inputs = core, params, memory, x_BTD, first_BT
    expected = learn(*inputs), act(*inputs)
    tpu()
    assert_close((learn(*inputs), act(*inputs)), expected)
    monkeypatch.setattr(gtrxl, "UNROLLED_STEPS", 2)
    jax.clear_caches()
    assert_close(act(*inputs), expected[1])
    cache = core.apply(params, memory, method="start")
    assert jax.tree.leaves(cache.params)[0].shape[0] == 3, "layers are not in a loop"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_rounds_only_factors_and_what_is_stored(tpu, name):
    """The stream is in float32, so that errors are smaller than those of the form elsewhere."""
    params = random_params(small_core(name))
    x_BTD, first_BT = random_segment(np.random.default_rng(0), 2, 9, jnp.float64)

    def outputs(**settings):
        core = small_core(name, **settings)
        inputs = core, params, core.initial_memory(2), x_BTD, first_BT
        memory, acted_TBD = act(*inputs)
        _, (memory_after, learned_BTD, _) = learn(*inputs)
        assert acted_TBD.dtype == learned_BTD.dtype == settings.get("dtype", "float64")
        assert memory.inputs.dtype == memory_after.inputs.dtype == learned_BTD.dtype
        return np.asarray([acted_TBD.swapaxes(0, 1), learned_BTD], np.float64)

    def errors():
        return np.sqrt(np.mean((outputs(dtype="bfloat16") - exact) ** 2, axis=(1, 2, 3)))

    exact = outputs()
    elsewhere = errors()
    tpu()
    assert np.all(errors() < 0.85 * elsewhere), (errors(), elsewhere)


@pytest.mark.slow
def test_loop_satisfies_the_contract(tpu, loops_only):
    tpu()
    check_core(small_core("gtrxl/gru"), tolerance=1e-9)


def test_program_of_a_loop_does_not_grow_with_depth(tpu, loops_only):
    tpu()

    def products(num_layers):
        core = small_core("gtrxl/gru", layers=num_layers)
        x_BTD, first_BT = jnp.zeros((1, 4, WIDTH)), jnp.zeros((1, 4), bool)
        inputs = random_params(core), core.initial_memory(1), x_BTD, first_BT
        programs = (str(jax.make_jaxpr(partial(form, core))(*inputs)) for form in (learn, act))
        return [program.count("dot_general") for program in programs]

    assert products(2) == products(5)


@pytest.mark.parametrize("loop", slow_except([False, True], [True]))
def test_step_reports_the_gates_as_a_segment_does(tpu, loops_only, loop):
    core = small_core("gtrxl/gru", layers=2)
    params, memory = random_params(core), core.initial_memory(2)
    x_BTD, first_BT = random_segment(np.random.default_rng(0), 2, 1, jnp.float64)
    report = jax.jit(partial(core.apply, mutable=["metrics"]))
    _, expected = report(params, memory, x_BTD, first_BT)
    if loop:
        tpu()
    cache = core.apply(params, memory, method="start")
    step = x_BTD[:, 0], first_BT[:, 0]
    _, reports = core.apply(params, cache, *step, method="step", mutable=["metrics"])
    assert len(jax.tree.leaves(reports)) == 2 * 2
    assert_close(reports, expected)


def test_parameters_of_another_number_of_layers_are_refused():
    params, core = random_params(small_core("gtrxl/gru", layers=2)), small_core("gtrxl/gru")
    inputs = random_segment(np.random.default_rng(0), 2, 3, jnp.float64)
    core = core.clone(config=dataclasses.replace(core.config, layers=3))
    with pytest.raises(ValueError, match="layers is 3, the parameters are of 2"):
        core.apply(params, core.initial_memory(2), *inputs)
