"""Images are bytes from the environment to the encoder, and models learn from them."""

import h5py
import jax
import numpy as np
import pytest

from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data import sample_segments
from gtrxl_jax.offline.config import OfflineEnvConfig, preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.loop import train
from tests.comparison import lines
from tests.jobs import changed, small_job

pytestmark = pytest.mark.integration

NAME = "MiniGrid-Memory"
# The smallest images that the Nature encoder takes, 36 x 36.
PARAMS = {
    "size": 7,
    "view_size": 3,
    "tile_size": 12,
    "num_actions": 3,
    "observation": "rgb",
    "max_steps_in_episode": 24,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A dataset of two rounds."""
    path = tmp_path_factory.mktemp("data") / "minigrid"
    env = CollectionEnvConfig(NAME, PARAMS, num_envs=12)
    assert collect_dataset(CollectionConfig(env=env, episodes=16), path).success == 1
    return path


def config_of(path, **changes):
    fixed = changed(
        preset("debug"),
        env=OfflineEnvConfig(NAME, PARAMS),
        evaluation__lengths=(),
        evaluation__episodes=2,
        data__path=str(path),
        unroll=6,
        updates_per_iteration=5,
        devices=1,
    )
    return changed(fixed, **changes)


def test_files_and_batches_hold_bytes(path):
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        assert {episode["observations"].dtype for episode in file.values()} == {np.dtype(np.uint8)}
    trainer = OfflineTrainer(config_of(path, data__stream=True))
    feed = trainer.feed(1, trainer.mesh())
    _, (training, _) = next(feed)
    read = training.observations
    feed.close()
    assert (read.dtype, read.shape) == (np.uint8, (5, 8, 2, 6, 36, 36, 3))
    trainer = OfflineTrainer(config_of(path))
    (held, _), _ = next(trainer.feed(1, trainer.mesh()))[1]
    assert held.observations.dtype == np.uint8
    assert len(np.unique(held.observations)) > 5
    batch = jax.eval_shape(lambda held: sample_segments(held, jax.random.key(0), 4, 2, 6), held)
    assert batch.observations.dtype == np.uint8


@pytest.mark.slow  # test_presets trains on images
def test_loss_falls_and_run_is_evaluated(path, tmp_path):
    config = config_of(path, model__encoder="nature", total_updates=20)
    result = train(OfflineTrainer(config), folder=tmp_path / "run").result
    losses = [line["loss"] for line in lines(tmp_path / "run") if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]
    assert 0 <= result.evaluation["success"].mean <= 1


def test_rollouts_hold_bytes():
    env = EnvConfig("MemoryMaze-9x9-v0", num_envs=8)
    trainer = OnlineTrainer(small_job(env=env, agent__encoder="resnet", unroll=2))

    def play(seed):
        state = trainer.init(seed)
        return state, trainer.act(state.params, state.actor, state.key)[1]

    state, experience = jax.eval_shape(play, 0)
    assert state.actor.timestep.observation.dtype == np.uint8
    images = experience.timesteps.observation
    assert (images.dtype, images.shape) == (np.uint8, (8, 3, *trainer.observation_space.shape))
