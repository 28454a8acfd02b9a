"""Detection of divergence, and how a run reacts to it."""

import dataclasses
import json

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.online.algorithm import AlgorithmConfig
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import divergence
from gtrxl_jax.runs.directory import available_steps, list_runs
from gtrxl_jax.runs.divergence import (
    DivergedError,
    Divergence,
    is_finite,
    is_in_range,
    pop_report,
    reduce_checks,
)
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.params import params_of
from gtrxl_jax.runs.results import read_result
from tests.jobs import Clock, small_job
from tests.runs.counter import Counter

pytestmark = pytest.mark.integration

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "sound"), [(0.0, True), (-1e30, True), (NAN, False), (INF, False), (-INF, False)]
)
def test_finite(value, sound):
    tree = {"a": jnp.zeros((2, 3)), "b": [jnp.arange(3), jnp.zeros(4).at[2].set(value)]}
    assert is_finite(tree) == sound


@pytest.mark.parametrize(
    ("value", "sound"),
    [(1e-8, True), (10.0, True), (0.0, False), (-1.0, False), (1e7, False), (NAN, False)],
)
def test_multipliers_in_range(value, sound):
    assert is_in_range({"mean": jnp.ones(()), "covariance": jnp.asarray(value)}) == sound


OF_ONE = {"reward": [True] * 4, "loss": [True] * 4, "of mine": [True] * 4}


def reported(*changes):
    """Return the metrics of seeds, each with changes of `OF_ONE`."""
    checks = [{n: jnp.array(OF_ONE[n] if n not in c else c[n]) for n in OF_ONE} for c in changes]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *checks)
    return jax.device_get(jax.vmap(reduce_checks)(stacked)) | {"loss": np.zeros(len(changes))}


def test_first_failure_of_each_seed():
    late = [True, True, False, True]
    metrics = reported({}, {"reward": late, "of mine": late}, {"loss": [False] * 4})
    found = pop_report(metrics, first_seed=7, begin=1000, steps_per_update=10)
    assert found == [
        Divergence(seed=8, quantity="reward", step=1030),
        Divergence(seed=9, quantity="loss", step=1010),
    ]
    assert set(metrics) == {"loss"}
    # The earliest update counts, and any name.
    metrics = reported({"reward": late, "of mine": [True, False, True, True]})
    (found,) = pop_report(metrics, 0, 0, 10)
    assert str(found) == ("seed 0 diverged: its of mine is not finite, or out of range, at step 20")


def test_error_in_an_update_is_named_in_the_order_of_its_causes():
    names = [*divergence.ORDER, "of mine"]
    for k, name in enumerate(names):
        checks = {other: jnp.array([names.index(other) < k]) for other in names}
        (found,) = pop_report(jax.device_get(reduce_checks(checks)), 0, 0, 1)
        assert found.quantity == name


def test_value_outside_its_space_is_told():
    outside_U4 = jnp.array([[-1, 0, 0, 0], [0, 0, 1, 5]], jnp.int32)
    metrics = jax.device_get(reduce_checks({"observation": outside_U4[:, 0] == -1}, outside_U4))
    found = pop_report(metrics, 0, 0, 10, spaces.Discrete(3))
    assert found == [Divergence(0, "observation", 20, "observation is 5, outside Discrete(3)")]
    assert str(found[0]) == "seed 0 stopped: observation is 5, outside Discrete(3), at step 20"


class Broken(Clock):
    """A clock with a discrete action, whose reward or observation becomes NaN after a while."""

    shows = False

    def step_env(self, key, state, action, params):
        observation, state, reward, done, info = super().step_env(key, state, action, params)
        nan = jnp.where(state.time == 2, jnp.nan, 0.0)
        if self.shows:
            return observation + nan, state, reward, done, info
        return observation, state, reward + nan, done, info

    def action_space(self, params=None):
        return spaces.Discrete(2)


class Blind(Broken):
    """The variant whose observation becomes NaN."""

    shows = True


gymnax.register("Broken-v0", Broken)
gymnax.register("Blind-v0", Blind)


def test_message_about_parameters():
    line = "seed 1 diverged: its parameters are not finite, or out of range, at step 2,000"
    assert str(Divergence(1, "parameters", 2000)) == line


class Outside(Broken):
    """The variant whose observation leaves its space."""

    def step_env(self, key, state, action, params):
        observation, state, reward, done, info = Clock.step_env(self, key, state, action, params)
        return self.spoiled(observation, state), state, reward, done, info

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return self.spoiled(observation, state), state

    def spoiled(self, observation, state):
        return {"clock": observation, "id": jnp.where(state.time == 2, 5, 1)}

    def observation_space(self, params=None):
        return spaces.Dict({"clock": super().observation_space(), "id": spaces.Discrete(3)})


gymnax.register("Outside-v0", Outside)

LINES = {
    "Broken-v0": "diverged: its reward is not finite, or out of range, at step 56",
    "Blind-v0": "stopped: observation[0] is nan, not finite, at step 56",
    "Outside-v0": "stopped: observation['id'] is 5, outside Discrete(3), at step 56",
}


@pytest.mark.slow  # tests/bad_inputs/test_environments.py is quick
@pytest.mark.parametrize("name", LINES)
def test_values_from_environment_stop_run(name, tmp_path):
    env = EnvConfig(name=name, num_envs=8)
    job = small_job("lstm", env=env, devices=1, checkpoint__interval=1)
    with pytest.raises(DivergedError) as error:
        train(OnlineTrainer(job), folder=tmp_path)
    assert str(error.value) == f"seed 0 {LINES[name]}"
    assert available_steps(tmp_path) == []
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert not any(key.startswith("diverged/") for key in row)
    assert row["diverged"] == 1
    (run,) = list_runs(tmp_path)
    assert run.state == "diverged"
    assert read_result(tmp_path) is None


JOB = small_job(
    "lstm",
    env__params={"corridor_length": 2},
    sweep={"learning_rate": (1e-5, 1e38)},
    optimizer__warmup=0.5,
    total_steps=900,
    num_seeds=4,
    seed=3,
    devices=1,
    checkpoint__interval=1,
)


@pytest.fixture(scope="module")
def survivors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survivors")
    job = dataclasses.replace(JOB, on_divergence="continue")
    return folder, train(OnlineTrainer(job), folder=folder)


def test_diverged_seeds_are_counted_others_continue(survivors):
    folder, trained = survivors
    result = trained.result
    gone = {one.seed - JOB.seed for one in result.diverged}
    assert 0 < len(gone) < JOB.num_seeds
    record = json.loads((folder / "result.json").read_text())
    assert record["num_diverged"] == len(gone)
    for n in range(JOB.num_seeds):
        params = jax.tree.leaves(trained.params_per_seed[n])
        assert all(np.all(np.isfinite(x)) for x in params) == (n not in gone)
        assert np.isnan(result.per_seed["return"][n]) == (n in gone)
    assert read_result(folder).diverged == result.diverged


def test_stopped_run_names_its_first_seed(survivors, tmp_path):
    _, trained = survivors
    first = min(trained.result.diverged, key=lambda one: one.step)
    with pytest.raises(DivergedError, match=f"seed {first.seed} diverged: .* step {first.step}"):
        train(OnlineTrainer(JOB), folder=tmp_path)
    assert all(step < first.step for step in available_steps(tmp_path))


class Diverges(Counter):
    """Diverges in its fifth update, at step 25."""

    def summarize(self, metrics, state, data):
        return {"count": metrics["count"][-1], **reduce_checks({"loss": metrics["count"] < 5})}


def test_stopped_run_keeps_its_checkpoints(tmp_path):
    with pytest.raises(DivergedError, match="step 25"):
        train(Diverges(), folder=tmp_path)
    steps = available_steps(tmp_path)  # that of 20 may be postponed while 10 is being written
    assert steps
    assert steps[-1] < 25
    (params,), step, *_ = params_of(Diverges(), tmp_path)
    assert (step, int(params["count"])) == (steps[-1], steps[-1] // 5)


@pytest.mark.slow
def test_run_ends_when_all_seeds_diverged(tmp_path):
    job = small_job("lstm", optimizer__learning_rate=1e38, devices=1, on_divergence="continue")
    result = train(OnlineTrainer(job), folder=tmp_path).result
    again = train(OnlineTrainer(job), folder=tmp_path)
    assert again.result.diverged == result.diverged
    assert again.params_per_seed == []
    assert [one.seed for one in result.diverged] == [0]
    assert np.isnan(result.evaluation["return"].mean)
    assert result.steps < job.num_iterations * job.steps_per_iteration
    assert available_steps(tmp_path) == []


@pytest.mark.parametrize("algorithm", ["ppo", "vmpo"])
def test_what_is_checked_online(algorithm):
    trainer = OnlineTrainer(
        small_job("lstm", devices=1, algorithm=AlgorithmConfig.named(algorithm)())
    )
    _, (metrics, _) = jax.eval_shape(trainer.update, jax.eval_shape(trainer.init, 0))
    checked = {name.removeprefix("finite/") for name in metrics if name.startswith("finite/")}
    of_algorithm = {"temperature", "multiplier of the KL"} if algorithm == "vmpo" else set()
    # Legal actions are checked in environments that restrict them.
    assert checked == {*divergence.ORDER, *of_algorithm} - {"legal actions"}
