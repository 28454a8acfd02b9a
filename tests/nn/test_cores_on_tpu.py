"""Acting and learning of every core, compiled for a TPU that is not here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.parallel.hlo import collectives
from gtrxl_jax.parallel.topologies import devices_of
from tests.nn.cores import LAYERS, WIDTH, small_core
from tests.tiers import slow_except
from tests.topologies import needs_libtpu

pytestmark = [needs_libtpu, pytest.mark.integration]

BATCH, STEPS = 8, 6


def rollout(core, params, memory, x_BTD, first_BT):
    """Return the memory and the outputs of acting for some steps."""
    cache = core.apply(params, memory, STEPS, method="start")

    def step(cache, inputs):
        return core.apply(params, cache, *inputs, method="step")

    inputs = x_BTD.swapaxes(0, 1), first_BT.swapaxes(0, 1)
    cache, y_TBD = jax.lax.scan(step, cache, inputs)
    return core.apply(params, cache, method="finish"), y_TBD


def gradient(core, params, memory, x_BTD, first_BT):
    """Return the gradient of a loss on a segment."""

    def loss(params):
        return jnp.mean(core.apply(params, memory, x_BTD, first_BT)[1] ** 2)

    return jax.grad(loss)(params)


@pytest.mark.parametrize("name", slow_except(CORES, {"gtrxl"}))
def test_collectives(name):
    """Acting exchanges nothing, and learning the gradient, once: a loop, that of each layer."""
    core = small_core(name, jnp.float32)
    mesh = Mesh(np.array(devices_of("v5e:2x2")), "data")

    def place(tree, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        shape = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
        return jax.tree.map(lambda x: shape(x.shape, x.dtype), tree)

    batch = (
        jax.eval_shape(lambda: core.initial_memory(BATCH)),
        jax.ShapeDtypeStruct((BATCH, STEPS, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((BATCH, STEPS), jnp.bool_),
    )
    params = {"params": jax.eval_shape(core.init, jax.random.key(0), *batch)["params"]}
    arguments = place(params), *place(batch, "data")

    def exchanged(function):
        with jax.set_mesh(mesh):
            lowered = jax.jit(functools.partial(function, core)).lower(*arguments)
            return collectives(lowered.compile().as_text())

    assert exchanged(rollout) == []
    sent = exchanged(gradient)
    assert {one.kind for one in sent} == {"all-reduce"}
    assert {one.times for one in sent} <= {1, LAYERS if "trxl" in name else 1}
    # Gradients may be of products of the parameters, or in bfloat16.
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(one.num_bytes for one in sent) <= 1.5 * 4 * size
