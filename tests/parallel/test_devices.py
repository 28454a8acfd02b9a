"""Equal runs on one device and on several, with replicated or split parameters."""

import functools
import itertools
import re

import jax
import numpy as np
import pytest

from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import checkpoint
from gtrxl_jax.runs.arrays import by_name
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import lock_folder
from gtrxl_jax.runs.programs import Programs
from tests.jobs import changed, small_job
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

ONLINE = small_job(
    algorithm__popart=True,
    env__num_envs=16,
    env__tasks=({"corridor_length": 1}, {"corridor_length": 3}),
    evaluation__episodes=8,
    algorithm__target_period=3,
    total_steps=2 * 2 * 7 * 16,  # two iterations of two updates
)
OFFLINE = changed(
    preset("debug"),
    evaluation__lengths=(8,),
    total_updates=6,
    updates_per_iteration=2,
    bptt=0,
    data__validation=0.25,
)
SPLIT = (8, 4)
"""Numbers of devices and of parameter shards. The data are split in two, the parameters in four."""


@functools.cache
def trajectories():
    return trajectories_of(OFFLINE)


def trainer_of(kind, devices, shards, **changes):
    changes |= {"devices": devices, "parameter_shards": shards}
    if kind == "online":
        return OnlineTrainer(changed(ONLINE, **changes))
    return OfflineTrainer(changed(OFFLINE, **changes), trajectories())


def outcome(trainer, iterations=2):
    """Return the state after some iterations, the metrics of each, and the programs."""
    programs = Programs(trainer)
    state, metrics = programs.init(), []
    for stage, data in itertools.islice(programs.feed(1), iterations):
        state, numbers = programs.iteration(stage, data)(state, data)
        metrics.append(jax.device_get(numbers))
    return state, metrics, programs


def numbers_of(state):
    """Return the arrays of a state by name, without PRNG keys."""
    return {
        name: leaf
        for name, leaf in by_name(state).items()
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


def assert_close(actual, expected, tolerance):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True
    ):
        name = jax.tree_util.keystr(path)
        # Environments' statistics are float32 even in 64-bit mode.
        most = max(tolerance, 1e-6 if np.asarray(a).dtype == np.float32 else 0)
        np.testing.assert_allclose(a, b, rtol=most, atol=most, err_msg=name)


@pytest.mark.slow  # test_resume_with_different_split is quicker
@pytest.mark.parametrize("kind", ["online", "offline"])
def test_split_run_matches_single_device(kind, x64):
    (state, metrics, programs), (expected, expected_metrics, others) = (
        outcome(trainer_of(kind, *division)) for division in (SPLIT, (1, 1))
    )
    assert_close(numbers_of(state), numbers_of(expected), 1e-9)
    assert_close(metrics, expected_metrics, 1e-9)
    assert_close(programs.evaluate(state.params, 1), others.evaluate(expected.params, 1), 1e-9)


@pytest.mark.slow
def test_float32_differs_only_by_summation_order():
    """One update only: Adam's second would amplify the rounding errors of zero gradients.

    Without split parameters; `test_resume_with_different_split` has such a part online.
    """
    kind, changes = "offline", {"updates_per_iteration": 1}
    state, metrics, _ = outcome(trainer_of(kind, 8, 1, **changes), iterations=1)
    expected = outcome(trainer_of(kind, 1, 1, **changes), iterations=1)
    assert_close(metrics, expected[1], 1e-5)
    rate = 1e-3  # size of Adam's first step, for any gradient
    moments = {n: x for n, x in numbers_of(state).items() if re.search(r"/[mn]u/", n)}
    assert_close(moments, {n: numbers_of(expected[0])[n] for n in moments}, 1e-6)
    assert_close(state.params, expected[0].params, 2 * rate)


@pytest.mark.parametrize("kind", slow_except(["online", "offline"], ["offline"]))
def test_parameters_moments_and_batch_are_split(kind):
    programs = Programs(trainer_of(kind, 8, 2))
    state = programs.init()
    split = set()
    for name, leaf in numbers_of(state).items():
        (shape,) = {shard.data.shape for shard in leaf.addressable_shards}
        assert len(leaf.addressable_shards) == 8
        if name.split("/")[0] == "actor":
            assert shape == (leaf.shape[0] // 8, *leaf.shape[1:]), name
        elif name.endswith("/kernel") and leaf.shape[-1] % 2 == 0:
            assert shape == (*leaf.shape[:-1], leaf.shape[-1] // 2), name
            split.add(name.removeprefix("learner/").split("/")[0] + "/mu" * ("/mu/" in name))
        else:
            assert shape == leaf.shape, name
    online = {"trainable", "algorithm", "optimizer", "optimizer/mu"}
    assert split == (online if kind == "online" else {"params", "optimizer", "optimizer/mu"})


@pytest.mark.slow  # runs/test_loop.py and test_placement.py have quick ones
def test_several_seeds_are_split():
    kind = "offline"
    changes = {"num_seeds": 2, "updates_per_iteration": 1, "model__name": "bc-lstm"}
    state, metrics, _ = outcome(trainer_of(kind, 4, 2, **changes), iterations=1)
    split = 0
    for name, leaf in numbers_of(state).items():
        assert leaf.shape[0] == 2
        if name.endswith("/kernel") and leaf.shape[-1] % 2 == 0:
            shape = leaf.addressable_shards[0].data.shape
            assert shape == (*leaf.shape[:-1], leaf.shape[-1] // 2)
            split += 1
    assert split > 3
    expected = outcome(trainer_of(kind, 1, 1, **changes), iterations=1)
    assert_close(metrics, expected[1], 1e-5)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.slow
def test_resume_with_different_split(devices, tmp_path, x64):
    """The placement is not part of a run's identity."""
    first, second = trainer_of("online", devices, 1), trainer_of("online", 4, 2)
    programs = Programs(first)
    state = programs.init()
    for iteration, (stage, data) in enumerate(programs.feed(1)):
        if iteration == 1:
            with lock_folder(tmp_path, first.config_json), Saver(tmp_path) as saver:
                saver.save(first.steps_per_iteration, state)
        state, _ = programs.iteration(stage, data)(state, data)
    programs = Programs(second)
    with lock_folder(tmp_path, second.config_json):
        resumed, _ = checkpoint.restore(tmp_path, programs.like)
    ((stage, data),) = programs.feed(2)
    resumed, _ = programs.iteration(stage, data)(resumed, data)
    assert_close(numbers_of(resumed), numbers_of(state), 1e-9)
