"""Plans of runs on devices that are not here, and what their programs exchange."""

import functools

import jax
import pytest

from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online import config as online_config
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.hlo import collectives
from gtrxl_jax.parallel.topologies import CHIPS, bandwidth, devices_of
from gtrxl_jax.runs.plan import NeedsMemoryError, plan, without_cache
from gtrxl_jax.runs.programs import Programs
from tests.jobs import changed, small_job
from tests.tiers import slow_except
from tests.topologies import needs_cuda, needs_libtpu

pytestmark = pytest.mark.integration

# Few operations, which compile fast, on large arrays, beside which padding and scalars are small.
WIDE = small_job("lstm", core__width=512, env__num_envs=64)
OFFLINE = changed(preset("debug"), updates_per_iteration=1)
IMAGES = {"size": 7, "view_size": 3, "observation": "rgb", "tile_size": 12}

ONLINE_JOBS = {
    "V-MPO": ("v5e:2x2", WIDE, 1),
    "PPO": (
        "v5e:2x2",
        changed(WIDE, algorithm=PPOConfig(epochs=2, minibatches=2)),
        4,
    ),
    "R2D2": (
        "v5e:2x2",
        changed(WIDE, algorithm=R2D2Config(replay_size=256, replay_start=128, optimizer_steps=2)),
        2,
    ),
    "GTrXL, two hosts": ("v5e:2x4", small_job("gtrxl", core__width=64), 1),
    "GTrXL, four hosts": ("v5e:4x4", small_job("gtrxl", core__width=64, env__num_envs=16), 1),
    "two seeds": ("v5e:2x2", changed(WIDE, num_seeds=2), 2),
    "segments, two tasks": (
        "v5e:2x2",
        changed(WIDE, segments=2, env__tasks=({"corridor_length": 1}, {"corridor_length": 3})),
        1,
    ),
    "images": (
        "v5e:2x2",
        changed(WIDE, env__name="MiniGrid-Memory", env__params=IMAGES, agent__encoder="nature"),
        1,
    ),
    "TPU v6e": ("v6e:2x2", WIDE, 1),
    "TPU v4": ("v4:2x2x1", WIDE, 1),
}
"""Topology, job, and how often an update exchanges the gradient."""


@functools.cache
def planned(job):
    """Return the trainer of an online job and its plan."""
    topology, config, _ = ONLINE_JOBS[job]
    trainer = OnlineTrainer(config)
    return trainer, plan(trainer, topology)


def size_of(tree):
    """Return the bytes of the arrays of a tree."""
    return sum(
        x.size * (8 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize)
        for x in jax.tree.leaves(tree)
    )


@needs_libtpu
@pytest.mark.parametrize("job", slow_except(ONLINE_JOBS, {"PPO"}))
def test_exchange(job):
    """Acting exchanges nothing, and learning gradients and scalars."""
    trainer, made = planned(job)
    parameters = size_of(jax.eval_shape(trainer.init, 0).params)
    times = ONLINE_JOBS[job][2]
    assert {(one.part, one.kind) for one in made.exchanges} <= {
        ("learn", "all-reduce"),
        ("learn", "all-gather"),  # V-MPO sorts the advantages of all devices
        ("", "all-reduce"),  # the same, in other compilations
    }
    sent = sum(one.num_bytes for one in made.exchanges)
    advantages = 4 * made.steps
    assert 0.95 * times * parameters <= sent <= 1.05 * times * (parameters + advantages) + 10_000


@needs_libtpu
def test_bytes_are_those_of_the_arrays():
    trainer, made = planned("PPO")
    state = jax.eval_shape(trainer.init, 0)
    assert made.state["learner/trainable"] == size_of(state.learner.trainable)
    assert made.state["learner/optimizer"] == size_of(state.learner.optimizer)
    assert made.state["actor/memory"] == size_of(state.actor.memory) // 4
    held = sum(made.state.values())
    assert held <= made.arguments <= 1.2 * held
    assert made.needed < made.memory
    assert (made.devices, made.hosts, made.kind) == (4, 1, "TPU v5 lite")


@needs_libtpu
def test_estimates_are_of_the_parts_of_an_update():
    _, made = planned("PPO")
    assert list(made.cycles)[:3] == ["act", "env", "learn"]
    assert made.seconds["act"] == made.cycles["act"] / 1.5e9
    (exchange,) = (one for one in made.exchanges if one.num_bytes > 1e5)
    assert made.exchange_seconds == pytest.approx(2 * exchange.num_bytes / (2 * 45e9), rel=0.01)
    total = sum(made.seconds.values()) + made.exchange_seconds
    assert made.steps_per_second == pytest.approx(made.steps / total)
    assert made.steps == 64 * 7


@needs_libtpu
@pytest.mark.slow  # test_exchange is quick
def test_offline():
    """Each segment's gradient is exchanged."""
    trainer = OfflineTrainer(OFFLINE)
    made = plan(trainer, "v5e:2x2")
    data, _ = next(trainer.feed(1, trainer.mesh()))[1]
    assert made.data == size_of(data)
    assert {(one.part, one.kind) for one in made.exchanges} == {("learn", "all-reduce")}
    assert made.cycles["learn"] > 0


@needs_libtpu
@pytest.mark.slow
def test_parameter_shards():
    """Acting gathers the parameters once, before its loop."""
    trainer = OnlineTrainer(small_job("gtrxl", core__width=64, parameter_shards=2))
    made = plan(trainer, "v5e:2x2")
    state = jax.eval_shape(trainer.init, 0)
    whole = size_of(state.learner.trainable)
    assert whole / 2 < made.state["learner/trainable"] < 0.6 * whole
    (acting,) = (one for one in made.exchanges if one.part == "act")
    assert acting.kind == "all-gather"
    # Some are gathered twice, for the rollout's start and for its loop; never in each step.
    assert acting.num_bytes <= 1.5 * size_of(state.params)


@needs_libtpu
@pytest.mark.slow
def test_parameter_shards_of_recurrent_core():
    """Gradients are summed once, and not in each step of the loop over time."""
    trainer = OnlineTrainer(changed(WIDE, parameter_shards=2))
    made = plan(trainer, "v5e:2x2")
    sums = sum(one.num_bytes for one in made.exchanges if one.kind == "all-reduce")
    parameters = size_of(jax.eval_shape(trainer.init, 0).params)
    assert parameters <= sums <= 1.05 * parameters + 10_000


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["online", "offline"])
def test_evaluation(kind):
    """It compiles too. Steps exchange single truths, such as whether all episodes have ended."""
    asked = changed(OFFLINE, evaluation__target_return=1.0)  # without computing it from the data
    trainer = OnlineTrainer(WIDE) if kind == "online" else OfflineTrainer(asked)
    programs = Programs(trainer, devices=devices_of("v5e:2x2"))
    with without_cache():
        text = programs.lower_evaluation().compile().as_text()
    assert {one.num_bytes for one in collectives(text) if "/while/" in one.origin} <= {4}


@needs_libtpu
@pytest.mark.slow
def test_images_offline():
    env = {"env__name": "MiniGrid-Memory", "env__params": IMAGES, "evaluation__lengths": ()}
    made = plan(OfflineTrainer(changed(OFFLINE, **env)), "v5e:2x2")
    assert {one.part for one in made.exchanges} == {"learn"}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_paper(dtype):
    """12 layers of 512 on 16 chips: they fit, and exchange the gradient."""
    trainer = OnlineTrainer(changed(online_config.preset("paper"), core__dtype=dtype))
    made = plan(trainer, "v5e:4x4")
    assert made.hosts == 4
    assert made.needed < 4e9
    assert {one.part for one in made.exchanges} <= {"learn", ""}
    parameters = size_of(jax.eval_shape(trainer.init, 0).params)
    assert sum(one.num_bytes for one in made.exchanges) <= 1.05 * parameters


@needs_libtpu
def test_hosts():
    devices = devices_of("v5e:4x4")
    assert len(devices) == 16
    assert {device.process_index for device in devices} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="processes of this run have 16: set it to 0"):
        OnlineTrainer(small_job(devices=8)).mesh(devices)


@needs_libtpu
def test_topologies_exist():
    expected = {"v5e:1x1": 1, "v4:2x2x4": 16, "v6e:4x4": 16, "v3:2x2": 8, "tpu7x:2x2x1": 8}
    assert {topology: len(devices_of(topology)) for topology in expected} == expected


def test_bandwidth():
    """One link for each axis, two for a ring."""
    chip = CHIPS["TPU v5 lite"]
    assert bandwidth("v5e:2x2", chip) == 2 * 45e9
    assert bandwidth("v5e:16x16", chip) == 4 * 45e9
    assert bandwidth("v5e:1x4", chip) == 45e9
    assert bandwidth("v5e:1x1", chip) is None


@needs_libtpu
@pytest.mark.slow
def test_program_that_does_not_fit():
    job = small_job(core__memory_size=100_000_000)
    with pytest.raises(NeedsMemoryError, match=r"needs [\d.]+ GiB of each TPU v5 lite, which has "):
        plan(OnlineTrainer(job), "v5e:2x2")


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["V-MPO", "GTrXL", "offline"])
def test_gpus(kind):
    """Every trainer compiles for an H100, whose kernels are counted."""
    job = {"V-MPO": WIDE, "GTrXL": small_job()}.get(kind)
    trainer = OnlineTrainer(job) if job else OfflineTrainer(OFFLINE)
    made = plan(trainer, "h100:2")
    assert (made.devices, made.hosts, made.kind) == (2, 1, "NVIDIA H100 80GB HBM3")
    assert made.kernels["learn"] > 0
    assert not made.cycles
    assert {one.part for one in made.exchanges} <= {"learn", ""}
