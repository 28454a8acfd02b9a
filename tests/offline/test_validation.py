"""Held-out episodes: those of each stage, that they are not trained on, and their loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.data import held_out
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.data import episodes_of
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.programs import make_iteration
from tests.jobs import changed

CONFIG = changed(
    preset("debug"), model__name="bc-lstm", curriculum=True, data__validation=0.25, total_updates=40
)


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_of(CONFIG)


def first_data(trainer):
    return next(trainer.feed(1, trainer.mesh()))[1]


def test_stages_divide_their_episodes(trajectories):
    length = np.asarray(trajectories.length)
    for segments, number in ((1, 32), (2, 64)):
        training, validation = episodes_of(CONFIG, segments, length)
        assert len(validation) == number // 4
        both = np.sort(np.concatenate([training, validation]))
        np.testing.assert_array_equal(both, np.flatnonzero(length <= 4 * segments))


@pytest.mark.slow
@pytest.mark.integration
def test_held_out_episodes_are_not_trained_on(trajectories):
    """Other observations in them change the loss of the validation, and nothing else."""
    marked = held_out(np.asarray(trajectories.length), 0.25, 0)
    other = jnp.where(marked[:, None, None], -trajectories.observations, trajectories.observations)

    first = OfflineTrainer(CONFIG, trajectories)
    init, *iterations = map(
        jax.jit, (first.init, make_iteration(first, 0), make_iteration(first, 1))
    )

    def train(observations):
        trainer = OfflineTrainer(CONFIG, trajectories.replace(observations=observations))
        state, found = init(0), []
        for stage in (0, 1):
            data = list(trainer.feed(1, trainer.mesh()))[2 * stage][1]
            state, metrics = iterations[stage](state, data)
            found.append(metrics)
        return trainer.measure_statistics(), state.params, found

    (seen, params, metrics), (same_seen, same, others) = map(
        train, (trajectories.observations, other)
    )
    jax.tree.map(np.testing.assert_array_equal, (same_seen, same), (seen, params))
    for before, after in zip(metrics, others, strict=True):
        assert after["loss"] == before["loss"]
        assert after["loss/validation"] != before["loss/validation"]


@pytest.mark.integration
def test_loss_is_that_of_training_without_dropout(trajectories):
    """The windows that are held out, learned from: their loss before the update is the same."""
    config = changed(CONFIG, curriculum=False, model__dropout=0.0)
    trainer = OfflineTrainer(config, trajectories)
    dropping = OfflineTrainer(changed(config, model__dropout=0.5), trajectories)
    learner = jax.jit(trainer.init)(0).learner
    _, windows = first_data(trainer)
    _, learned = jax.jit(trainer.algorithm.update)(learner, windows, jax.random.key(0))
    for of in (trainer, dropping):
        found = jax.jit(of.algorithm.validate)(learner, windows)
        assert set(found) == {"loss", "accuracy", "accuracy/last_step"}
        for name, value in found.items():
            np.testing.assert_allclose(value, learned[name], rtol=1e-5)


@pytest.mark.integration
def test_without_validation_there_is_no_metric(trajectories):
    trainer = OfflineTrainer(changed(CONFIG, data__validation=0.0), trajectories)
    data = first_data(trainer)
    assert data[1] is None
    _, metrics = jax.eval_shape(make_iteration(trainer, 0), jax.jit(trainer.init)(0), data)
    assert not [name for name in metrics if "validation" in name]
    assert "loss/validation" not in trainer.progress_metrics


def test_too_few_episodes_raise(trajectories):
    config = changed(CONFIG, data__validation=0.02)
    with pytest.raises(ValueError, match="0.02 holds out none of 32 episodes of at most 4 steps"):
        first_data(OfflineTrainer(config, trajectories))


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_fraction_out_of_range_raises(fraction):
    with pytest.raises(ValueError, match="data.validation must be"):
        OfflineTrainer(changed(CONFIG, data__validation=fraction))
