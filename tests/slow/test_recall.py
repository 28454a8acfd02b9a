"""A small recall task is learned however its observations and rewards are declared and scaled."""

import dataclasses

import pytest

from gtrxl_jax.envs.registry import register_env
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import EnvConfig, EvaluationConfig, preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import train
from tests.recall import SHOWN, UNITS, Recall

pytestmark = pytest.mark.slow


def final_return(name, **settings):
    """Train the default agent on a `Recall`; return its mean return."""
    task = f"Recall-{name.replace(' ', '-')}-v0"
    register_env(task, lambda: Recall(*SHOWN[settings.pop("shown", "flags")], **settings))
    config = dataclasses.replace(
        preset(),
        env=EnvConfig(task),
        core=core_config("gtrxl", "small", memory_size=16),
        evaluation=EvaluationConfig(episodes=256),
        total_steps=80_000,
    )
    trained = train(OnlineTrainer(config))
    return trained.result.evaluation["return"].mean


@pytest.mark.parametrize("name", SHOWN)
def test_observations(name):
    assert final_return(name, shown=name) > 9.0


@pytest.mark.parametrize("name", UNITS)
def test_units_of_rewards(name):
    assert final_return(f"unit {name}", hidden=True, unit=UNITS[name]) / UNITS[name] > 9.0
