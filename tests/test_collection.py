"""Collection of datasets from a config: policies, saved metadata and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.data import check, datasets, minari
from gtrxl_jax.loading import load
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.config import EnvConfig, preset, to_json
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import lock_folder
from gtrxl_jax.timestep import zero_timestep
from tests.jobs import changed

pytestmark = pytest.mark.integration

MAZE = CollectionEnvConfig("TMazePassive-v0", {"corridor_length": 3, "step_penalty": 0.0}, 8)


def make(**changes):
    return dataclasses.replace(CollectionConfig(env=MAZE, episodes=10), **changes)


@pytest.fixture(scope="module")
def agent_run(tmp_path_factory):
    """The folder and config of a run with an untrained agent."""
    config = preset("debug")
    config = dataclasses.replace(
        config, env=EnvConfig(params={"corridor_length": 2, "max_steps_in_episode": 6}, num_envs=8)
    )
    folder = tmp_path_factory.mktemp("runs") / "agent"
    trainer = OnlineTrainer(config)
    with lock_folder(folder, to_json(config)), Saver(folder) as saver:
        saver.save(1, jax.jit(trainer.init)(0))
    return folder, config


def test_oracle_dataset_and_metadata(tmp_path):
    seen = []
    done = collect_dataset(make(seed=3), tmp_path / "set", seen.append)
    assert (done.episodes, done.steps, done.mean_return, done.success) == (10, 40, 1.0, 1.0)
    assert [so_far.episodes for so_far in seen] == sorted({so_far.episodes for so_far in seen})
    assert seen[-1] == done
    whole = datasets.load(tmp_path / "set")
    np.testing.assert_array_equal(whole.length, [4] * 10)
    assert (whole.observations[:, 0, 1] == 1).sum() == 5
    assert datasets.load_metadata(tmp_path / "set") == minari.Metadata(
        "TMazePassive-v0", MAZE.params, "oracle", 3
    )


def test_collection_is_deterministic(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        collect_dataset(make(policy="random", balance=False, seed=seed), tmp_path / name)
    a, b, c = (datasets.load(tmp_path / name) for name in "abc")
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert (a.observations[:, 0] != c.observations[:, 0]).any()


def test_explorer_dataset_has_unbounded_observations(tmp_path):
    env = CollectionEnvConfig("Numpad-v0", {"size": 2, "max_steps_in_episode": 100}, 8)
    done = collect_dataset(make(env=env, policy="explorer", episodes=8), tmp_path / "set")
    assert done.mean_return > 8
    assert datasets.load_metadata(tmp_path / "set").policy == "explorer"
    spaces = datasets.load(tmp_path / "set").spaces
    assert np.isinf(spaces.observation.high).any()
    assert spaces.action.shape == (3,)


@pytest.mark.slow
def test_agent_actions_match_segment_form(tmp_path, agent_run):
    """Collected actions are the modes of the policy that the network computes on whole segments."""
    folder, config = agent_run
    config = make(env=CollectionEnvConfig(num_envs=4), policy=str(folder), actions="mode")
    done = collect_dataset(config, tmp_path / "set")
    assert done.episodes == 10
    whole = datasets.load(tmp_path / "set")
    check(whole)
    metadata = datasets.load_metadata(tmp_path / "set")
    assert metadata.env_name == "TMazePassive-v0"
    assert metadata.env_params == {"corridor_length": 2, "max_steps_in_episode": 6}

    loaded = load(folder)
    trainer, (params,) = loaded.trainer, loaded.params_per_seed
    agent, zeros = trainer.agent, np.zeros((10, 1), np.float32)
    steps = whole.max_length
    timesteps = trainer.stream.reset(jax.random.key(0))[1].replace(
        observation=whole.observations[:, :steps],
        action=np.concatenate([zeros.astype(np.int32), whole.actions[:, :-1]], axis=1),
        reward=np.concatenate([zeros, whole.rewards[:, :-1]], axis=1),
        discount=np.ones((10, steps), np.float32),
        first=np.broadcast_to(np.arange(steps) == 0, (10, steps)),
        last=np.zeros((10, steps), bool),
    )
    memory = agent.initial_memory(10)
    _, output = jax.jit(agent.apply)({"params": params}, memory, timesteps)
    real = np.arange(steps) < whole.length[:, None]
    np.testing.assert_array_equal(output.policy.mode()[real], whole.actions[real])


def test_agent_with_other_environment_parameters(tmp_path, agent_run):
    env = CollectionEnvConfig(params={"corridor_length": 3}, num_envs=10)
    collect_dataset(make(env=env, policy=str(agent_run[0]), actions="sample"), tmp_path / "set")
    assert datasets.load_metadata(tmp_path / "set").env_params == {
        "corridor_length": 3,
        "max_steps_in_episode": 6,
    }


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(episodes=0), ValueError, "episodes must be at least 1, not 0"),
        (dict(seed=-1), ValueError, "seed must be at least 0, not -1"),
        (
            dict(policy="orakel"),
            FileNotFoundError,
            "policy 'orakel' is neither oracle,",
        ),
        (dict(actions="modes"), ValueError, "unknown actions 'modes': did you mean 'mode'"),
        (dict(actions="mode"), ValueError, "actions applies only to the agent of a run"),
        (dict(step=7), ValueError, "step applies only to the agent of a run"),
        (dict(env=CollectionEnvConfig()), ValueError, "env.name must be given"),
        (dict(env=CollectionEnvConfig("TMaze-v0")), ValueError, "unknown environment 'TMaze-v0'"),
        (dict(env=CollectionEnvConfig("CartPole-v1")), ValueError, "no oracle_action"),
        (dict(policy="explorer"), ValueError, "PassiveTMaze has no explorer_action"),
        (
            dict(env=dataclasses.replace(MAZE, params={"corridor": 3})),
            ValueError,
            "unknown parameter of TMazePassive-v0 'corridor'",
        ),
        (
            dict(env=dataclasses.replace(MAZE, num_envs=0)),
            ValueError,
            "env.num_envs must be at least 1, not 0",
        ),
    ],
)
def test_invalid_configs_raise_and_write_nothing(tmp_path, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        collect_dataset(make(**changes), tmp_path / "set")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_raises_before_collection(tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(FileExistsError, match="set exists already"):
        collect_dataset(make(policy="no such policy"), tmp_path / "set")


def test_mismatched_environment_raises(tmp_path, agent_run):
    env = CollectionEnvConfig("AssociativeRetrieval-v0")
    with pytest.raises(ValueError, match="has other observations than the env"):
        collect_dataset(make(env=env, policy=str(agent_run[0])), tmp_path / "set")


@pytest.mark.slow
def test_offline_model_uses_training_length(tmp_path):
    trainer = OfflineTrainer(changed(offline_config.preset("debug"), model__name="bc-lstm"))
    with lock_folder(tmp_path / "run", trainer.config_json), Saver(tmp_path / "run") as saver:
        saver.save(1, jax.jit(trainer.init)(0))
    config = CollectionConfig(policy=str(tmp_path / "run"), episodes=6, balance=False)
    done = collect_dataset(config, tmp_path / "set")
    assert done.episodes == 6
    whole = datasets.load(tmp_path / "set")
    # 2 segments of 4 steps: a corridor of 6 and a time limit of 8 actions.
    assert datasets.load_metadata(tmp_path / "set").env_params["corridor_length"] == 6
    assert whole.length.max() <= 8
    policy, params = trainer.policy, load(tmp_path / "run").params
    timestep = zero_timestep(trainer.observation_space, trainer.action_space, 6)
    timestep = dataclasses.replace(timestep, observation=jnp.asarray(whole.observations[:, 0]))
    state = policy.init(params, 6)
    _, action, _ = policy.act(params, state, timestep, jax.random.key(0))
    np.testing.assert_array_equal(action, whole.actions[:, 0])


def test_folder_without_run_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        collect_dataset(make(policy=str(tmp_path)), tmp_path / "set")
