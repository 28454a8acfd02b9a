"""Auxiliary losses in training, with every algorithm. Only traced."""

import jax
import pytest

from gtrxl_jax.online.trainer import OnlineTrainer
from tests.jobs import small_job

IMAGES = {
    "env__name": "TwoColors-v0",
    "env__params": {"height": 16, "width": 16},
    "agent__encoder": "mlp",
    "agent__pixel_control": 0.1,
}


def metrics_of(algorithm, **changes):
    trainer = OnlineTrainer(small_job("lstm", algorithm__name=algorithm, **changes))
    state = jax.eval_shape(trainer.init, 0)
    after, (metrics, _) = jax.eval_shape(trainer.update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    return state.params, {name for name in metrics if name.startswith("loss/")}


@pytest.mark.parametrize("algorithm", ["ppo", "vmpo", "r2d2"])
def test_reconstruction_is_part_of_loss(algorithm):
    params, losses = metrics_of(algorithm, agent__reconstruction=0.1)
    assert "loss/reconstruction" in losses
    assert "reconstruction" in params


def test_pixel_control_is_part_of_loss():
    params, losses = metrics_of("vmpo", **IMAGES)
    assert "loss/pixel_control" in losses
    assert "pixel_control" in params


def test_without_cost_there_is_none():
    params, losses = metrics_of("ppo")
    assert params.keys() == {"encoder", "core", "policy_head", "value_head"}
    assert losses == {"loss/policy", "loss/value", "loss/entropy"}


def test_task_without_image_is_refused():
    with pytest.raises(ValueError, match="pixel_control needs an image, which the observation has"):
        OnlineTrainer(small_job("lstm", agent__pixel_control=0.1))
