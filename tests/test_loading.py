"""Loaded runs act as they did in training."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gtrxl_jax
from gtrxl_jax.inspection.episode import inspect_episode
from gtrxl_jax.loading import Loaded, environment_for, with_settings
from gtrxl_jax.online.config import to_json
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import lock_folder
from tests.jobs import small_job
from tests.saved import save

pytestmark = pytest.mark.integration

JOB = small_job("gtrxl", env__params={"corridor_length": 3}, num_seeds=2, seed=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder and state of an untrained run."""
    folder = tmp_path_factory.mktemp("run")
    trainer = OnlineTrainer(JOB)
    state = jax.jit(jax.vmap(trainer.init))(np.arange(4, 6))
    with lock_folder(folder, to_json(JOB)), Saver(folder) as saver:
        saver.save(10, state, {"best": None})
    return folder, state


@pytest.mark.parametrize("where", [np.asarray, jnp.asarray])
def test_observations_outside_their_space_are_refused(run, where):
    loaded = gtrxl_jax.load(run[0])
    _, timestep = jax.jit(loaded.trainer.stream.reset)(jax.random.key(0))
    state = loaded.init(len(timestep.first))
    bad = jax.device_get(timestep.observation).copy()
    bad[2, 1] = np.inf
    with pytest.raises(ValueError, match=r"observation\[1\] is inf, not finite"):
        loaded.act(state, timestep.replace(observation=where(bad)), jax.random.key(0))
    if where is np.asarray:
        wide = np.where(np.isinf(bad), 1e300, bad.astype(np.float64))
        with pytest.raises(ValueError, match=r"observation\[1\] is 1e\+300, too large for float32"):
            loaded.act(state, timestep.replace(observation=wide), jax.random.key(0))
    # In programs, the checks are those of the caller.
    jax.eval_shape(lambda x: loaded.act(state, x, jax.random.key(0))[1], timestep)


def test_actions_match_segment_form(run):
    folder, state = run
    loaded = gtrxl_jax.load(folder)
    assert (loaded.config, loaded.step, len(loaded.params_per_seed)) == (JOB, 10, 2)
    for params, index in zip(loaded.params_per_seed, range(2), strict=True):
        expected = jax.tree.map(lambda x, n=index: x[n], state.params)
        jax.tree.map(np.testing.assert_array_equal, params, expected)
        popart = jax.tree.map(lambda x, n=index: x[n], state.learner.popart)
        np.testing.assert_array_equal(loaded.value_units[index], [popart.mean_N, popart.scale_N])

    stream = loaded.trainer.stream
    reset, step_environments = jax.jit(stream.reset), jax.jit(stream.step)
    environments, timestep = reset(jax.random.key(0))
    timesteps, actions, values = [], [], []
    acting = loaded.init(batch_size=stream.num_envs)
    for step in range(7):
        acting, action, extras = loaded.act(acting, timestep, jax.random.key(step))
        timesteps.append(timestep)
        actions.append(action)
        values.append(extras.value)
        environments, timestep = step_environments(environments, action)

    timesteps_BT = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *timesteps)
    memory = loaded.agent.initial_memory(stream.num_envs)
    _, output = jax.jit(loaded.agent.apply)({"params": loaded.params}, memory, timesteps_BT)
    np.testing.assert_array_equal(np.stack(actions, axis=1), output.policy.mode())
    np.testing.assert_allclose(np.stack(values, axis=1), output.value, rtol=1e-4, atol=1e-5)


def test_forgetful_agent_takes_every_nth_step_for_the_first(run):
    loaded = with_settings(gtrxl_jax.load(run[0]), forget=3)
    plain, params = gtrxl_jax.load(run[0]), loaded.params
    key = jax.random.key(1)
    stream, timestep = jax.jit(plain.trainer.stream.reset)(key)
    state, expected = loaded.init(len(timestep.first)), plain.init(len(timestep.first))
    since_B, cuts = np.zeros(len(timestep.first), int), 0
    for _ in range(12):  # more than two episodes
        first_B = np.asarray(timestep.first) | (since_B == 3)
        cuts += np.sum(first_B & ~np.asarray(timestep.first))
        since_B = np.where(first_B, 1, since_B + 1)
        cut = timestep.replace(first=jnp.asarray(first_B))
        expected, action, output = plain.act(expected, cut, key)
        state, found, other = loaded.policy.act(params, state, timestep, key)
        np.testing.assert_array_equal(found, action)
        np.testing.assert_allclose(other.value, output.value, rtol=1e-5, atol=1e-6)
        stream, timestep = jax.jit(plain.trainer.stream.step)(stream, action)
    assert cuts > 0


def test_invalid_times_to_forget_raise(run):
    loaded = gtrxl_jax.load(run[0])
    with pytest.raises(ValueError, match="forget must be at least 1, got -1"):
        with_settings(loaded, forget=-1)
    with pytest.raises(TypeError, match="forget"):
        with_settings(loaded, forget=2.5)
    with pytest.raises(ValueError, match="an agent that forgets cannot be inspected"):
        inspect_episode(with_settings(loaded, forget=3))


@pytest.mark.slow
def test_forgetting_costs_what_memory_earns():
    success = {}
    for forget in (0, 1, 1000):
        scores, _ = gtrxl_jax.loading.evaluate("bundled://tmaze", 64, forget=forget)
        success[forget] = scores["success"].mean
    assert success[0] == success[1000] == 1
    assert success[1] < 0.8  # a coin for the turn


def test_other_batch_size_raises(run):
    loaded = gtrxl_jax.load(run[0])
    _, timestep = jax.jit(loaded.trainer.stream.reset)(jax.random.key(0))
    rows = loaded.trainer.stream.num_envs
    with pytest.raises(ValueError, match=f"start with {rows} rows, .* `init` of .* a loaded run"):
        loaded.act(loaded.init(batch_size=1), timestep, jax.random.key(0))


def test_actor_acts_as_the_loaded_run(run):
    loaded = gtrxl_jax.load(run[0])
    stream = dataclasses.replace(loaded.trainer.stream.tasks[0], num_envs=1)
    reset, step_environments = jax.jit(stream.reset), jax.jit(stream.step)
    environments, timestep = reset(jax.random.key(0))
    state, actor = loaded.init(batch_size=1), loaded.actor()
    for step in range(7):
        now = jax.tree.map(lambda x: np.asarray(x)[0], timestep)
        state, action, _ = loaded.act(state, timestep, jax.random.key(step))
        assert actor(now.observation, now.reward, now.first) == action[0]
        environments, timestep = step_environments(environments, action)


def test_core_whose_parameters_depend_on_the_size_raises(tmp_path):
    trainer = OnlineTrainer(small_job("dnc"))
    save(tmp_path, trainer)
    loaded = gtrxl_jax.load(tmp_path)
    with pytest.raises(ValueError, match="core dnc has no setting memory_size"):
        with_settings(loaded, memory_size=3)


def test_one_environment_for_a_run_of_several_tasks_has_to_be_named():
    lengths = ({"corridor_length": 5}, {"corridor_length": 9})
    config = small_job(env__params={"step_penalty": 0.5}, env__tasks=lengths)
    run = Loaded(OnlineTrainer(config), [None], 0, {}, [None])
    with pytest.raises(ValueError, match=r"has 2 env\.tasks: name one .* with env\.name"):
        with_settings(run, params={"step_penalty": 0.1})
    with pytest.raises(ValueError, match=r"has 2 env\.tasks: name one .* with env\.name"):
        environment_for(run, "", {})
    named = with_settings(run, env="TMazePassive-v0", params={"corridor_length": 7})
    assert named.environment[1] == {"step_penalty": 0.5, "corridor_length": 7}


def test_missing_best_checkpoint_raises(run):
    with pytest.raises(ValueError, match="has no best checkpoint: its config names no score"):
        gtrxl_jax.load(run[0], best=True)


def test_checkpoint_of_a_given_step(tmp_path):
    trainer = OnlineTrainer(small_job("gru"))
    for step in (1, 2):
        save(tmp_path, trainer, value=float(step), step=step)
    loaded = gtrxl_jax.load(tmp_path, step=1)
    assert loaded.step == 1
    assert {float(x) for leaf in jax.tree.leaves(loaded.params) for x in np.ravel(leaf)} == {1.0}
    with pytest.raises(ValueError, match=r"has no checkpoint of step 3; it has \[1, 2\]"):
        gtrxl_jax.load(tmp_path, step=3)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.1.0", "and this is .*, which reads runs of 0.3.0 and later: install 0.1.0, or train"),
        ("0.0.9", "install 0.0.9, or train again in another folder"),
        ("999.0", "by gtrxl_jax 999.0, and this is .*: upgrade gtrxl_jax"),
        ("0.3.10", "by gtrxl_jax 0.3.10, and this is .*: upgrade gtrxl_jax"),
        ("0.3.0", "holds no checkpoint"),
        (gtrxl_jax.__version__, "holds no checkpoint"),
    ],
)
def test_runs_of_other_versions(tmp_path, version, message):
    config = json.loads(to_json(JOB))
    assert config["version"] == gtrxl_jax.__version__
    (tmp_path / "config.json").write_text(json.dumps(config | {"version": version}))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        gtrxl_jax.load(tmp_path)
