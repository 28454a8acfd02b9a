"""Splitting of arrays over devices, and errors for invalid splits."""

import itertools

import jax
import pytest
from flax import struct
from jax.sharding import PartitionSpec

from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.placement import (
    batch_field,
    gather_parameters,
    make_mesh,
    shardings,
    split_batch,
    split_gradients,
)
from tests.jobs import small_job
from tests.tiers import slow_except


def test_mesh_shapes():
    assert make_mesh(0, 16).shape == {"data": 8, "model": 1}
    assert make_mesh(2, 6).shape == {"data": 2, "model": 1}
    assert make_mesh(4, 24, num_tasks=3).shape == {"data": 4, "model": 1}
    assert make_mesh(8, 16, parameter_shards=4).shape == {"data": 2, "model": 4}


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ((9, 9), {}, "devices is 9, but only 8 are available: lower it"),
        ((0, 12), {}, "env.num_envs 12 does not divide over 8 devices: make it a multiple of 8"),
        ((2, 3), {"field": "batch_size"}, "batch_size 3 does not divide over 2 devices"),
        ((4, 8), {"num_tasks": 3}, "4 devices and 3 tasks: make it a multiple of 12"),
        ((4, 8), {"parameter_shards": 3}, "parameter_shards 3 does not divide 4 devices"),
    ],
)
def test_invalid_splits_raise(arguments, changes, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(*arguments, **changes)


@pytest.mark.parametrize(
    ("seeds", "shards"),
    slow_except(itertools.product([False, True], [1, 2, 4]), [(False, 1), (False, 4), (True, 2)]),
)
def test_shardings_of_batch_and_parameters(seeds, shards):
    tasks = ({"corridor_length": 3}, {"corridor_length": 5})
    trainer = OnlineTrainer(small_job(env__num_envs=16, env__tasks=tasks))
    init = jax.vmap(trainer.init) if seeds else trainer.init
    state = jax.eval_shape(init, jax.numpy.arange(3) if seeds else 0)
    mesh = make_mesh(8, 16, num_tasks=2, parameter_shards=shards)
    placed = shardings(state, mesh, seeds=seeds)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    lead = (None,) if seeds else ()
    leaves = zip(jax.tree.leaves_with_path(placed), jax.tree.leaves(state), strict=True)
    num_split = 0
    for (path, sharding), leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if path[0].name == "actor":
            expected = PartitionSpec(*lead, ("data", "model"))
            assert leaf.shape[int(seeds)] in (8, 16)
        elif name.endswith("kernel") and leaf.shape[-1] % shards == 0:
            expected = PartitionSpec(*(None,) * (leaf.ndim - 1), "model")
            num_split += 1
        else:
            expected = PartitionSpec()
        assert sharding.spec == expected, name
    assert num_split > 40


def test_without_mesh_arrays_are_unchanged():
    tree = {"kernel": jax.numpy.ones((4, 4))}
    for place in (split_batch, split_gradients, gather_parameters):
        assert place(tree)["kernel"] is tree["kernel"]


def test_batch_fields_of_nested_states_are_split():
    @struct.dataclass
    class Own:
        moments: jax.Array
        noise: jax.Array = batch_field()

    @struct.dataclass
    class State:
        own: Own
        buffer: jax.Array = batch_field()

    array = jax.ShapeDtypeStruct((8, 3), jax.numpy.float32)
    placed = shardings(State(Own(array, array), array), make_mesh(4, 8), seeds=False)
    split = PartitionSpec(("data", "model"))
    assert placed.buffer.spec == placed.own.noise.spec == split
    assert placed.own.moments.spec == PartitionSpec()
