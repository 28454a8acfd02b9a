"""Sequence models in environments on the host."""

import json
from pathlib import Path

import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.offline import OfflineTrainer, preset
from gtrxl_jax.offline.config import OfflineEnvConfig
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.plugins import import_plugins
from tests.jobs import changed

pytestmark = pytest.mark.integration

CARTPOLE = ["--env.name", "gymnasium:CartPole-v1", "--env.params", "max_episode_steps", "40"]


@pytest.mark.slow
def test_data_are_collected_learned_from_and_acted_on(tmp_path, capsys):
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    main(["collect", data, "--policy", "random", "--episodes", "12", "--quiet", *CARTPOLE])
    sizes = ["--preset", "debug", "--devices", "1", "--no-plots", "--evaluation.episodes", "3"]
    sizes += ["--baselines"]  # none
    main(["train-offline", *sizes, "--data.path", data, "--folder", run, *CARTPOLE])
    folder = Path(run, "rate", "result.json")
    scores = json.loads(folder.read_text())["evaluation"]
    assert set(scores) == {"return", "length"}
    assert 0 < scores["return"]["mean"] <= 40
    main(["evaluate", str(folder.parent), "--episodes", "2"])
    main(["play", str(folder.parent)])
    assert (folder.parent / "play.gif").exists()


def test_oracles_on_the_host_generate_data():
    import_plugins(["tests.hosts:Guided"])
    config = changed(preset("debug"), env=OfflineEnvConfig("tests.hosts:Guided"))
    config = changed(config, evaluation__lengths=(), data__episodes=6)
    trajectories = trajectories_of(config)
    assert trajectories.num_episodes == 6
    steps = trajectories.observations[:, :-1, 2]
    length = trajectories.length[:, None]
    within = np.arange(steps.shape[1])[None] < length
    np.testing.assert_array_equal(trajectories.actions[within], steps[within] % 2)


def test_other_data_must_be_named_on_the_host():
    config = changed(preset("debug"), env=OfflineEnvConfig("gymnasium:CartPole-v1"))
    config = changed(config, evaluation__lengths=())
    with pytest.raises(ValueError, match="has no oracle_action that generates data: set data.path"):
        OfflineTrainer(config).measure_statistics()
