"""Plans of runs on TPUs, compiled without a TPU."""

import jax
import pytest

from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.topologies import devices_of
from gtrxl_jax.runs.plan import NeedsMemoryError, plan
from tests.jobs import small_job
from tests.topologies import needs_libtpu

pytestmark = pytest.mark.integration


def size_of(tree):
    return sum(
        x.size * (8 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize)
        for x in jax.tree.leaves(tree)
    )


@pytest.fixture(scope="module")
def trainer():
    """A trainer with large arrays, whose padding in memory is small, and few operations."""
    return OnlineTrainer(small_job("lstm", core__width=512, env__num_envs=64))


@pytest.fixture(scope="module")
def made(trainer):
    return plan(trainer, "v5e:2x2")


@needs_libtpu
def test_bytes_are_those_of_the_arrays(trainer, made):
    state = jax.eval_shape(trainer.init, 0)
    assert made.state["learner/trainable"] == size_of(state.learner.trainable)
    assert made.state["actor/memory"] == size_of(state.actor.memory) // 4
    held = sum(made.state.values())
    assert held <= made.arguments <= 1.2 * held
    assert made.needed < made.memory
    assert (made.devices, made.hosts, made.kind) == (4, 1, "TPU v5 lite")
    # Learning exchanges every gradient once, and acting nothing.
    (exchange,) = (one for one in made.exchanges if one.part == "learn")
    assert exchange.kind == "all-reduce"
    assert exchange.num_bytes == pytest.approx(size_of(state.params), rel=0.01)
    assert not [one for one in made.exchanges if one.part in ("act", "env")]


@needs_libtpu
def test_estimates_are_of_the_parts_of_an_update(made):
    assert set(made.cycles) >= {"act", "env", "learn"}
    assert made.seconds["act"] == made.cycles["act"] / 1.5e9
    total = sum(made.seconds.values()) + made.exchange_seconds
    assert made.steps_per_second == pytest.approx(made.steps / total)
    assert made.steps == 64 * 7


@needs_libtpu
def test_offline_plan_has_data():
    made = plan(OfflineTrainer(preset("debug")), "v5e:2x2")
    trajectories = OfflineTrainer(preset("debug"))
    (data, _), *_ = (data for _, data in trajectories.feed(2, trajectories.mesh()))
    assert made.data == size_of(data)
    assert set(made.cycles) >= {"learn"}


@needs_libtpu
def test_hosts_of_topology():
    devices = devices_of("v5e:4x4")
    assert len(devices) == 16
    assert {device.process_index for device in devices} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="processes of this run have 16: set it to 0"):
        OnlineTrainer(small_job(devices=8)).mesh(devices)


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:1x1", "v4:2x2x4", "v6e:4x4", "v3:2x2", "tpu7x:2x2x1"])
def test_topologies_exist(topology):
    expected = {"v5e:1x1": 1, "v4:2x2x4": 16, "v6e:4x4": 16, "v3:2x2": 8, "tpu7x:2x2x1": 8}
    assert len(devices_of(topology)) == expected[topology]


@needs_libtpu
@pytest.mark.slow
def test_program_that_does_not_fit():
    job = small_job(core__memory_size=20_000_000)
    with pytest.raises(NeedsMemoryError, match=r"needs [\d.]+ GiB of each TPU v5 lite, which has "):
        plan(OnlineTrainer(job), "v5e:2x2")
