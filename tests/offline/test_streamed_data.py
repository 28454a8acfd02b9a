"""Runs whose data are read from disk as they are sampled equal runs with data in memory."""

import dataclasses
import operator
import os
import re
import shutil
import sys
from typing import ClassVar

import h5py
import jax
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.data import datasets, minari, sample_segments, select
from gtrxl_jax.extras import install_command
from gtrxl_jax.loading import load
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.imitation import ImitationConfig
from gtrxl_jax.offline.trainer import OfflineTrainer, _run_keys, _update_keys
from gtrxl_jax.parallel.placement import local_rows
from gtrxl_jax.runs import programs
from gtrxl_jax.runs.loop import train
from gtrxl_jax.segments import OPTIONAL
from tests.comparison import lines
from tests.jobs import changed
from tests.offline.test_run import Crash, CrashAt

pytestmark = pytest.mark.integration

CONFIG = changed(
    preset("debug"),
    total_updates=8,
    updates_per_iteration=2,
    checkpoint__interval=2,
    curriculum=True,
    devices=2,
    data__start="uniform",
    data__validation=0.2,
    model__name="bc-lstm",
    evaluation__lengths=(8,),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tmaze"
    minari.save(trajectories_of(CONFIG), path)
    return path


def config_of(path, stream=True, **changes):
    return changed(CONFIG, data__path=str(path), data__stream=stream, **changes)


@pytest.mark.slow  # tests/offline/test_dataset_alone.py has one that is not interrupted
def test_resumed_streamed_run_matches_in_memory_run(path, tmp_path, monkeypatch):
    """Bit-identical over the stages of a curriculum, on two devices."""
    # The older emitters, which tests use where jax has them, round a value differently in each
    # kernel that computes it.
    has_both = "use_fusion_emitters" in os.environ["XLA_FLAGS"]
    options = {"xla_cpu_use_fusion_emitters": True} if has_both else None
    monkeypatch.setattr(programs, "compiler_options", lambda **_: options)
    held = train(OfflineTrainer(config_of(path, stream=False)), folder=tmp_path / "held")
    with pytest.raises(Crash):
        train(OfflineTrainer(config_of(path)), folder=tmp_path / "run", writers=[CrashAt(6)])
    streamed = train(OfflineTrainer(config_of(path)), folder=tmp_path / "run")
    assert lines(tmp_path / "run") == lines(tmp_path / "held")
    assert all("loss/validation" in line for line in lines(tmp_path / "run") if "loss" in line)
    jax.tree.map(np.testing.assert_array_equal, streamed.params_per_seed, held.params_per_seed)
    assert streamed.result.evaluation == held.result.evaluation


def test_feed_splits_batches_over_devices(path):
    trainer = OfflineTrainer(config_of(path, model__name="rate"))
    mesh = trainer.mesh()
    np.testing.assert_array_equal(local_rows(mesh, 8), np.arange(8))
    feed = trainer.feed(2, mesh)
    stages, (second, third, _) = zip(*feed, strict=True)
    assert stages == (0, 1, 1)
    (second, held_second), (third, held_third) = second, third
    assert second.mask.shape == (2, 8, 1, 4)
    assert third.mask.shape == (2, 8, 2, 4)
    assert {shard.data.shape for shard in third.mask.addressable_shards} == {(2, 4, 2, 4)}
    assert held_second.mask.shape == (8, 1, 4)
    assert {shard.data.shape for shard in held_third.mask.addressable_shards} == {(4, 2, 4)}


@pytest.mark.usefixtures("unchecked")
def test_mismatched_data_raise_before_compilation(path, monkeypatch, tmp_path):
    def compiled(*_):
        raise AssertionError

    monkeypatch.setattr("gtrxl_jax.runs.programs.Programs.init", compiled)
    with pytest.raises(ValueError, match="choose a matching pair"):
        train(OfflineTrainer(config_of(path, env__name="AssociativeRetrieval-v0")))
    with pytest.raises(ValueError, match="curriculum requires episodes of at most 2 steps"):
        train(OfflineTrainer(config_of(path, unroll=2)))
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(ImportError, match=re.escape(install_command("offline"))):
        train(OfflineTrainer(config_of(path)))


@pytest.mark.slow
def test_streamed_run_loads_without_data(path, monkeypatch, tmp_path):
    def load_all(*_):
        raise AssertionError

    monkeypatch.setattr("gtrxl_jax.offline.trainer.trajectories_of", load_all)
    shutil.copytree(path, tmp_path / "data")
    command = (
        "train-offline --preset debug --model.name bc-mlp --baselines bc-mlp --data.stream "
        "--total-updates 2 --updates-per-iteration 2 --evaluation.episodes 8 "
        "--evaluation.lengths 8 "
        f"--no-plots --data.path {tmp_path / 'data'} --folder {tmp_path / 'run'}"
    )
    main(command.split())
    assert len(lines(tmp_path / "run" / "bc-mlp")) == 1
    shutil.rmtree(tmp_path / "data")
    assert load(tmp_path / "run" / "bc-mlp").config.evaluation.target_return == 1.0


def damage(path):
    """Damage two episodes: a number in the middle of one, an array of another; return a copy."""
    copy = path.parent / "damaged"
    shutil.copytree(path, copy)
    with h5py.File(copy / "data" / "main_data.hdf5", "a") as file:
        file["episode_3/observations"][2] = np.nan
        del file["episode_7/actions"]
    return copy


@pytest.fixture(scope="module")
def damaged(path):
    return damage(path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("stream", [False, True])
def test_bad_episode_ends_run_before_it_starts(damaged, stream, tmp_path, monkeypatch):
    monkeypatch.setattr("gtrxl_jax.runs.programs.Programs.init", None)
    message = (
        rf"^{damaged}/data: episode 3, step 2: observations\[0\] is nan, not finite; repair "
        "it, or leave out all bad episodes with data.skip_bad$"
    )
    with pytest.raises(ValueError, match=message):
        train(OfflineTrainer(config_of(damaged, stream)), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bad_episodes_are_left_out_and_named(path, damaged, capsys):
    """Streamed or not, the batches are those of the rest of the data."""
    rest = select(
        datasets.load(path), [e for e in range(datasets.load(path).num_episodes) if e not in (3, 7)]
    )
    batches, fingerprints = [], set()
    for stream in (False, True):
        config = config_of(damaged, stream, data__skip_bad=True, devices=1)
        trainer = OfflineTrainer(config)
        feed = trainer.feed(1, trainer.mesh())
        _, (data, _) = next(feed)
        feed.close()
        summary, first, second = capsys.readouterr().err.splitlines()
        assert summary == f"2 of {rest.num_episodes + 2} episodes are left out:"
        assert "episode 3, step 2: observations[0] is" in first
        assert "episode 7 cannot be read as a Minari dataset" in second
        fingerprints.add(trainer._data.fingerprint())
        batches.append(data)
    (held, of_stages), streamed = batches
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(held), rest)
    key, _ = _update_keys(_run_keys(CONFIG.seed)[0])

    @jax.jit
    def sample(data, key, episodes):
        return sample_segments(data, key, 8, 1, 4, "uniform", "uniform", episodes)

    for update in range(2):
        expected = sample(rest, jax.random.fold_in(key, update), of_stages[0])
        read = jax.tree.map(operator.itemgetter(update), streamed)
        jax.tree.map(np.testing.assert_array_equal, expected, read)
    assert len(fingerprints) == 1
    assert OfflineTrainer(config_of(path, devices=1))._data.fingerprint() not in fingerprints


def test_all_episodes_are_bad(path, tmp_path):
    shutil.copytree(path, tmp_path / "data")
    with h5py.File(tmp_path / "data" / "data" / "main_data.hdf5", "a") as file:
        for episode in file.values():
            episode["rewards"][0] = np.nan
    trainer = OfflineTrainer(config_of(tmp_path / "data", data__skip_bad=True))
    with pytest.raises(ValueError, match="all of its 64 episodes are bad"):
        next(trainer.feed(1, trainer.mesh()))


def test_skipping_requires_data_on_disk():
    with pytest.raises(ValueError, match="data.skip_bad requires a dataset on disk"):
        OfflineTrainer(changed(CONFIG, data__skip_bad=True))


@dataclasses.dataclass(frozen=True)
class NeedsAll(ImitationConfig):
    name: str = f"{__name__}:NeedsAll"
    needs: ClassVar[tuple[str, ...]] = OPTIONAL


@dataclasses.dataclass(frozen=True)
class NeedsUnknown(ImitationConfig):
    name: str = f"{__name__}:NeedsUnknown"
    needs: ClassVar[tuple[str, ...]] = ("reward",)


def test_algorithms_get_the_fields_that_they_need(path):
    """Streamed or not, to train on and held out."""
    algorithm = NeedsAll()
    batches = []
    for stream in (False, True):
        trainer = OfflineTrainer(config_of(path, stream, algorithm=algorithm, devices=1))
        feed = trainer.feed(1, trainer.mesh())
        _, (_, held_out) = next(feed)
        feed.close()
        assert all(getattr(held_out, name) is not None for name in OPTIONAL)
        batches.append(held_out)
    jax.tree.map(np.testing.assert_array_equal, *batches)
    with pytest.raises(ValueError, match="needs of NeedsUnknown 'reward': did you mean 'rewards'"):
        OfflineTrainer(config_of(path, algorithm=NeedsUnknown()))
