"""The interface of memory cores, for every core."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.comparison import assert_close
from tests.nn.cores import (
    ALL_CORES,
    LAYERS,
    MEMORY_SIZE,
    TRANSFORMERS,
    WIDTH,
    WITH_ONE_GATE,
    random_params,
    random_segment,
    small_core,
)
from tests.tiers import slow_except

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.integration]
# A transformer with all parts that the others have.
QUICK = {"gtrxl/gru"}
every_core = pytest.mark.parametrize("name", slow_except(WITH_ONE_GATE, QUICK))
every_transformer = pytest.mark.parametrize(
    "name", slow_except([name for name in WITH_ONE_GATE if name in TRANSFORMERS], QUICK)
)


@functools.partial(jax.jit, static_argnums=0)
def segment(core, params, memory, x_BTD, first_BT):
    return core.apply(params, memory, x_BTD, first_BT)


@functools.partial(jax.jit, static_argnums=0)
def step(core, params, cache, x_BD, first_B):
    return core.apply(params, cache, x_BD, first_B, method="step")


@functools.partial(jax.jit, static_argnums=(0, 3))
def start(core, params, memory, num_steps):
    return core.apply(params, memory, num_steps, method="start")


@functools.partial(jax.jit, static_argnums=0)
def finish(core, params, cache):
    return core.apply(params, cache, method="finish")


def act(core, params, memory, x_BTD, first_BT, num_steps):
    """Return the memory and the outputs of stepping through a segment."""
    cache = start(core, params, memory, num_steps)
    outputs = []
    for t in range(x_BTD.shape[1]):
        cache, y_BD = step(core, params, cache, x_BTD[:, t], first_BT[:, t])
        outputs.append(y_BD)
    return finish(core, params, cache), jnp.stack(outputs, axis=1)


def live(memory):
    """Return the memory with unused slots set to zero, so that two memories can be compared."""
    if not hasattr(memory, "length"):
        return memory
    size = memory.inputs.shape[2]
    alive_BM = jnp.arange(size, dtype=jnp.int32)[None, :] >= size - memory.length[:, None]
    return memory.replace(inputs=jnp.where(alive_BM[:, None, :, None], memory.inputs, 0.0))


@pytest.mark.parametrize("name", slow_except(ALL_CORES, {"lstm", "gtrxl/gru"}))
@pytest.mark.parametrize("seed", slow_except(range(2), {0}))
def test_stepping_equals_segment_for_any_cut(name, seed):
    rng = np.random.default_rng(seed)
    core = small_core(name)
    params = random_params(core, seed)
    x_BTD, first_BT = random_segment(rng, batch=3, steps=23, dtype=jnp.float64)
    whole = segment(core, params, core.initial_memory(3), x_BTD, first_BT)

    # Shorter and longer than the memory; in any order, so that both seeds share programs.
    cuts = [0, *np.cumsum(rng.permutation([2, 4, 6, 11]))]
    memory_acting = memory_learning = core.initial_memory(3)
    acted, learned = [], []
    for index, (begin, end) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
        part = x_BTD[:, begin:end], first_BT[:, begin:end]
        announced = None if index % 2 else int(end - begin)
        memory_acting, y_BTD = act(core, params, memory_acting, *part, announced)
        acted.append(y_BTD)
        memory_learning, y_BTD = segment(core, params, memory_learning, *part)
        learned.append(y_BTD)
        assert_close(live(memory_acting), live(memory_learning))

    assert_close(jnp.concatenate(acted, axis=1), whole[1])
    assert_close(jnp.concatenate(learned, axis=1), whole[1])
    assert_close(live(memory_acting), live(whole[0]))


@every_core
def test_no_information_crosses_episode_boundary(name):
    core = small_core(name)
    params = random_params(core)
    x_BTD, _ = random_segment(np.random.default_rng(0), batch=2, steps=9, dtype=jnp.float64)
    start = 4
    first_BT = jnp.zeros((2, 9), bool).at[:, start].set(True)
    memory, _ = segment(core, params, core.initial_memory(2), x_BTD, jnp.zeros((2, 9), bool))

    _, y_BTD = segment(core, params, memory, x_BTD, first_BT)
    fresh = core.initial_memory(2)
    _, fresh_BTD = segment(core, params, fresh, x_BTD[:, start:], first_BT[:, start:])
    assert_close(y_BTD[:, start:], fresh_BTD)

    def later(x_BTD):
        return jnp.sum(segment(core, params, memory, x_BTD, first_BT)[1][:, start:] ** 2)

    gradient = jax.jit(jax.grad(later))(x_BTD)
    assert np.all(gradient[:, :start] == 0)
    assert np.all(np.any(gradient[:, start:] != 0, axis=-1))


@every_core
def test_causal_without_gradient_into_memory(name):
    core = small_core(name)
    params = random_params(core)
    rng = np.random.default_rng(1)
    x_BTD, _ = random_segment(rng, batch=1, steps=7, dtype=jnp.float64)
    first_BT = jnp.zeros((1, 7), bool)
    memory, _ = segment(core, params, core.initial_memory(1), x_BTD, first_BT)

    def output(x_BTD, memory):
        return segment(core, params, memory, x_BTD, first_BT)[1][0]

    jacobian_TDTD = jax.jit(jax.jacobian(lambda x: output(x[None], memory)))(x_BTD[0])
    influence_TT = np.any(np.asarray(jacobian_TDTD) != 0, axis=(1, 3))
    # In a segment shorter than the window, a step depends on itself and all steps before it.
    within_window = np.tril(np.ones((7, 7), bool), k=0)
    if name in TRANSFORMERS:
        within_window &= ~np.tril(np.ones((7, 7), bool), k=-(LAYERS * MEMORY_SIZE) - 1)
    np.testing.assert_array_equal(influence_TT, within_window)

    def loss(floating_memory):
        if hasattr(memory, "inputs"):
            floating_memory = memory.replace(inputs=floating_memory)
        return jnp.sum(output(x_BTD, floating_memory) ** 2)

    floats = memory.inputs if hasattr(memory, "inputs") else memory
    assert all(np.all(g == 0) for g in jax.tree.leaves(jax.jit(jax.grad(loss))(floats)))
    other = jax.tree.map(lambda z: jnp.asarray(rng.standard_normal(z.shape)), floats)
    assert loss(other) != loss(floats), "the memory has no influence at all"


@every_transformer
@pytest.mark.parametrize("layers", [1, 2])
def test_attention_window_of_each_layer(name, layers):
    """Each layer sees M steps back, the whole stack layers * M."""
    core = small_core(name, layers=layers)
    params = random_params(core)
    steps, reach = 2 * MEMORY_SIZE + 4, layers * MEMORY_SIZE
    x_BTD, _ = random_segment(np.random.default_rng(2), batch=1, steps=steps, dtype=jnp.float64)
    first_BT = jnp.zeros((1, steps), bool)

    def last_output(x_BTD):
        return segment(core, params, core.initial_memory(1), x_BTD, first_BT)[1][0, -1].sum()

    influence_T = np.any(np.asarray(jax.jit(jax.grad(last_output))(x_BTD)[0]) != 0, axis=-1)
    np.testing.assert_array_equal(influence_T, np.arange(steps) >= steps - 1 - reach)

    # The reach is the same for inputs of an earlier segment, through memory.
    @jax.jit
    def through_memory(early_BTD):
        memory, _ = segment(core, params, core.initial_memory(1), early_BTD, first_BT[:, :-1])
        return segment(core, params, memory, x_BTD[:, -1:], first_BT[:, -1:])[1]

    reference = through_memory(x_BTD[:, :-1])
    for s in range(steps - 1):
        moved = through_memory(x_BTD[:, :-1].at[:, s].multiply(jnp.linspace(-1.0, 1.0, WIDTH)))
        assert np.any(moved != reference) == (s >= steps - 1 - reach), s


@every_transformer
def test_unwritten_memory_has_no_influence(name):
    core = small_core(name)
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(3), 4, 6, jnp.float64)
    memory = core.initial_memory(4).replace(length=jnp.array([0, 2, MEMORY_SIZE, 1], jnp.int32))
    dead_BM = np.arange(MEMORY_SIZE)[None, :] < MEMORY_SIZE - np.asarray(memory.length)[:, None]

    def filled(value):
        return memory.replace(inputs=jnp.where(dead_BM[:, None, :, None], value, memory.inputs))

    expected = segment(core, params, filled(0.0), x_BTD, first_BT)[1]
    for value in (1.0, -1e6):
        actual = segment(core, params, filled(value), x_BTD, first_BT)[1]
        np.testing.assert_array_equal(actual, expected)
        _, acted = act(core, params, filled(value), x_BTD, first_BT, None)
        assert_close(acted, expected)


@every_transformer
def test_step_does_not_project_memory(name):
    """No operand of a product in a step has both the slot axis and the width of the stream."""
    core = small_core(name, memory_size=37)
    params = random_params(core)
    cache = core.apply(params, core.initial_memory(2), None, method="start")
    x_BD, first_B = jnp.zeros((2, WIDTH)), jnp.zeros(2, bool)
    jaxpr = jax.make_jaxpr(lambda c: core.apply(params, c, x_BD, first_B, method="step"))(cache)
    operands = [
        [v.aval.shape for v in e.invars]
        for e in _equations(jaxpr.jaxpr)
        if e.primitive.name == "dot_general"
    ]
    assert operands
    for left, right in operands:
        projects = any(WIDTH in shape and 37 in shape for shape in (left, right))
        assert not projects, (left, right)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for sub in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _equations(sub)


def test_more_steps_than_announced_return_nan_memory():
    core = small_core("gtrxl/gru")
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(4), 2, 4, jnp.float64)
    memory, y_BTD = act(core, params, core.initial_memory(2), x_BTD, first_BT, num_steps=3)
    _, expected_BTD = segment(core, params, core.initial_memory(2), x_BTD, first_BT)
    assert_close(y_BTD[:, :3], expected_BTD[:, :3])
    assert np.all(np.isfinite(y_BTD))
    assert np.all(np.isnan(memory.inputs))
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        core.apply(params, core.initial_memory(2), 0, method="start")


@every_core
def test_remat_preserves_gradients(name):
    core = small_core(name)
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(5), 2, 6, jnp.float64)

    def gradient(core):
        def loss(params):
            return jnp.sum(segment(core, params, core.initial_memory(2), x_BTD, first_BT)[1] ** 2)

        return jax.jit(jax.grad(loss))(params)

    assert_close(gradient(core.clone(remat=True)), gradient(core), atol=1e-8)


@every_core
def test_vmap_over_parameters_and_scan_over_steps(name):
    core = small_core(name)
    seeds = [random_params(core, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
    x_BTD, first_BT = random_segment(np.random.default_rng(6), 2, 6, jnp.float64)

    def rollout(params):
        def step(cache, inputs):
            return core.apply(params, cache, *inputs, method="step")

        cache = core.apply(params, core.initial_memory(2), 6, method="start")
        cache, y_TBD = jax.lax.scan(step, cache, (x_BTD.swapaxes(0, 1), first_BT.T))
        return core.apply(params, cache, method="finish"), y_TBD.swapaxes(0, 1)

    memories, outputs = jax.jit(jax.vmap(rollout))(stacked)
    for index, params in enumerate(seeds):
        memory, y_BTD = segment(core, params, core.initial_memory(2), x_BTD, first_BT)
        assert_close(outputs[index], y_BTD)
        assert_close(live(jax.tree.map(lambda z, i=index: z[i], memories)), live(memory))


@every_core
def test_sharded_batch_equals_one_device(name):
    core = small_core(name)
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(7), 8, 6, jnp.float64)
    memory = core.initial_memory(8)
    expected = segment(core, params, memory, x_BTD, first_BT)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    by_row = NamedSharding(mesh, PartitionSpec("data"))
    inputs = jax.device_put((memory, x_BTD, first_BT), by_row)
    actual = jax.jit(core.apply)(params, *inputs)
    assert actual[1].sharding.is_equivalent_to(by_row, 3)
    assert_close(actual, expected)


@every_core
def test_bfloat16_keeps_parameters_in_float32(name):
    core = small_core(name, param_dtype=jnp.float32, dtype="bfloat16")
    params = random_params(core)
    x_BTD, first_BT = random_segment(np.random.default_rng(8), 2, 6, jnp.float32)
    memory, y_BTD = segment(core, params, core.initial_memory(2), x_BTD, first_BT)
    assert y_BTD.dtype == jnp.bfloat16
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(params))
    _, acted_BTD = act(core, params, core.initial_memory(2), x_BTD, first_BT, None)
    assert acted_BTD.dtype == jnp.bfloat16
    exact_core = core.clone(dtype=None)
    exact = segment(exact_core, params, exact_core.initial_memory(2), x_BTD, first_BT)
    scale = float(jnp.std(exact[1]))
    for low_BTD in (y_BTD, acted_BTD):
        error = jnp.sqrt(jnp.mean((low_BTD.astype(jnp.float32) - exact[1]) ** 2))
        assert float(error) < 0.05 * scale
