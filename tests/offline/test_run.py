"""Offline runs with the host's loop: saving, resuming, loading and evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.loading import evaluate, load
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.divergence import DivergedError
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train
from gtrxl_jax.timestep import zero_timestep
from tests.comparison import lines
from tests.jobs import changed
from tests.programs import compiled_once

pytestmark = pytest.mark.integration

CONFIG = changed(
    preset("debug"),
    total_updates=12,
    updates_per_iteration=3,
    checkpoint__interval=3,
    curriculum=True,
    model__dropout=0.1,
    evaluation__lengths=(8,),
    devices=1,
)


class Crash(Exception):
    """A simulated crash of the process."""


class CrashAt(MetricWriter):
    def __init__(self, step):
        self.step = step

    def write(self, step, metrics):
        if step == self.step:
            raise Crash


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_of(CONFIG)


@pytest.fixture(scope="module")
def trainer(trajectories):
    with compiled_once():
        yield OfflineTrainer(CONFIG, trajectories)


@pytest.fixture(scope="module")
def whole(trainer, tmp_path_factory):
    """The folder and result of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(trainer, folder=folder)


def test_resumed_run_is_bit_identical(whole, trainer, tmp_path):
    """The run crashes between the stages of its curriculum."""
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        train(trainer, folder=folder, writers=[CrashAt(9)])
    again = train(trainer, folder=folder)
    assert lines(folder) == lines(whole[0])
    jax.tree.map(np.testing.assert_array_equal, again.params_per_seed, whole[1].params_per_seed)
    assert again.result.evaluation == whole[1].result.evaluation


def test_loaded_run_acts_without_data(whole):
    folder, trained = whole
    loaded = load(folder)
    assert loaded.config.evaluation.target_return == 1.0
    assert "_data" not in vars(loaded.trainer)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, trained.params_per_seed[0])
    state = loaded.init(batch_size=3)
    timestep = zero_timestep(loaded.trainer.observation_space, loaded.trainer.action_space, 3)
    for n in range(6):  # beyond the end of a segment
        state, action, _ = loaded.act(state, timestep, jax.random.key(n))
        assert action.shape == (3,)
        assert action.dtype == jnp.int32


def test_evaluation_lengths(whole):
    scores, _ = evaluate(whole[0], episodes=8)
    assert set(scores) == {f"{s}/{n}" for s in ("success", "return", "length") for n in (8,)}


@pytest.mark.slow  # tests/online has the quick one
def test_seeds_match_separate_runs(trajectories):
    one = changed(CONFIG, model__name="bc-lstm", total_updates=3, evaluation__lengths=(8,))
    several = train(OfflineTrainer(changed(one, num_seeds=2), trajectories))
    second = train(OfflineTrainer(changed(one, seed=1), trajectories))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        several.params_per_seed[1],
        second.params_per_seed[0],
    )


def test_divergence_raises(trajectories):
    config = changed(CONFIG, optimizer__learning_rate=1e30, optimizer__clip_norm=None)
    with pytest.raises(
        DivergedError, match=r"(loss is|parameters are|gradient norm is) not finite"
    ):
        train(OfflineTrainer(config, trajectories))
