"""What is split over devices, and what cannot be."""

import jax
import pytest
from jax.sharding import PartitionSpec

from gtrxl_jax.training.online import OnlineTrainer
from gtrxl_jax.training.placement import BATCHED, data_mesh, shardings
from tests.training.jobs import small_job


def test_the_mesh_has_the_devices_asked_for():
    assert data_mesh(0, 16).shape == {"data": 8}
    assert data_mesh(2, 6).shape == {"data": 2}
    assert data_mesh(4, 24, num_tasks=3).shape == {"data": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((9, 9), "devices is 9, but there are 8: ask for fewer"),
        ((0, 12), "env.num_envs 12 does not divide over 8 devices: make it a multiple of 8, or"),
        ((4, 8, 3), "env.num_envs 8 does not divide over 4 devices and 3 tasks: make it .* of 12"),
        ((8, 24, 3), None),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    if message is None:
        data_mesh(*arguments)
    else:
        with pytest.raises(ValueError, match=message):
            data_mesh(*arguments)


@pytest.mark.parametrize("seeds", [False, True])
def test_the_batch_is_split_and_the_rest_is_everywhere(seeds):
    tasks = ({"corridor_length": 3}, {"corridor_length": 5})
    trainer = OnlineTrainer(small_job(env__num_envs=16, env__tasks=tasks))
    init = jax.vmap(trainer.init) if seeds else trainer.init
    state = jax.eval_shape(init, jax.numpy.arange(3) if seeds else 0)
    placed = shardings(state, data_mesh(8, 16, 2), seeds=seeds)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    for path, sharding in jax.tree.leaves_with_path(placed):
        batched = path[0].name in BATCHED
        axes = (None, "data") if seeds else ("data",)
        assert sharding.spec == (PartitionSpec(*axes) if batched else PartitionSpec()), path
    for field in BATCHED:
        for leaf in jax.tree.leaves(getattr(state, field)):
            assert leaf.shape[int(seeds)] in (8, 16)
