"""Agents of several different environments, and normalized scores."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.cli.arguments import parse_train
from gtrxl_jax.loading import load
from gtrxl_jax.online.config import EnvConfig
from gtrxl_jax.online.normalized import normalized_scores, read_returns, returns_of_tasks
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.results import read_result
from tests.comparison import lines
from tests.jobs import small_job

TABLE = {
    "CartPole-v1": {"random": 20, "reference": 500},
    "TMazePassive-v0": {"random": 0.0, "reference": 1.0},
}


def two_tasks(**changes):
    tasks = ({"corridor_length": 1}, {"name": "CartPole-v1"})
    return EnvConfig(params={"max_steps_in_episode": 9}, tasks=tasks, num_envs=8, **changes)


def test_scores_are_capped_means(x64):
    return_NE = np.array([[10.0, 30.0], [7.0, 9.0], [-3.0, -5.0]])
    scores = normalized_scores(
        jnp.asarray(return_NE), np.array([0.0, 2.0, -2.0]), np.array([10.0, 14.0, 2.0])
    )
    by_task = [scores[f"normalized/task_{k}"] for k in range(3)]
    np.testing.assert_allclose(np.concatenate(by_task), [1.0, 0.5, -0.5], rtol=1e-15)
    np.testing.assert_allclose(scores["normalized"], [1 / 3], rtol=1e-15)
    np.testing.assert_allclose(scores["normalized/uncapped"], [2 / 3], rtol=1e-15)
    single = normalized_scores(jnp.asarray(return_NE[:1]), np.zeros(1), np.full(1, 40.0))
    assert single.keys() == {"normalized", "normalized/uncapped"}
    assert single["normalized"] == 0.5


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_table_is_read_for_each_task(tmp_path, suffix):
    path = tmp_path / f"returns.{suffix}"
    toml = "[CartPole-v1]\nrandom = 20\nreference = 500\n[task_0]\nrandom = 0\nreference = 1\n"
    entries = {"CartPole-v1": TABLE["CartPole-v1"], "task_0": TABLE["TMazePassive-v0"]}
    path.write_text(toml if suffix == "toml" else json.dumps(entries))
    table = read_returns(path)
    assert table == entries
    np.testing.assert_array_equal(
        returns_of_tasks(two_tasks(reference_returns=table)), [[0.0, 20.0], [1.0, 500.0]]
    )
    assert returns_of_tasks(two_tasks()) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, r"must have an entry CartPole-v1 \(or task_1\)"),
        ({"random": 1.0}, "with the numbers random and reference, got {'random'"),
        ({"random": 1.0, "reference": float("nan")}, "with the numbers"),
        ({"random": 1.0, "reference": 1.0}, "equal random and reference returns for CartPole"),
    ],
)
def test_invalid_tables_raise(entry, message):
    table = TABLE | {"CartPole-v1": entry}
    with pytest.raises(ValueError, match=message):
        returns_of_tasks(two_tasks(reference_returns=table))


def test_unreadable_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="env.references .* does not exist"):
        read_returns(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("x")
    with pytest.raises(ValueError, match="neither TOML nor JSON"):
        read_returns(tmp_path / "bad.toml")


def test_parameters_belong_to_named_environment():
    assert two_tasks().members == (
        ("TMazePassive-v0", {"max_steps_in_episode": 9, "corridor_length": 1}),
        ("CartPole-v1", {}),
    )
    arguments = ["--env.name", "CartPole-v1", "MemoryChain-v0", "--env.params", "masspole", "0.2"]
    env = parse_train([*arguments, "--env.num-envs", "4"]).config.env
    assert env.members == (("CartPole-v1", {"masspole": 0.2}), ("MemoryChain-v0", {}))
    assert parse_train(["--env.name", "CartPole-v1"]).config.env.members == (("CartPole-v1", {}),)


@pytest.mark.slow  # test_agents has the metrics
def test_training_reports_scores_of_each_task(tmp_path):
    path = tmp_path / "returns.json"
    path.write_text(json.dumps(TABLE))
    config = small_job(
        env=two_tasks(references=str(path)), evaluation__episodes=4, total_steps=224, devices=1
    )
    train(OnlineTrainer(config), folder=tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    for name in ("episode/return", "popart/mean", "popart/scale"):
        assert {f"{name}/task_0", f"{name}/task_1"} <= last.keys()
    scores = read_result(tmp_path / "run").evaluation
    by_task = [scores[f"normalized/task_{k}"].mean for k in range(2)]
    returns = [scores[f"return/task_{k}"].mean for k in range(2)]
    np.testing.assert_allclose(
        by_task, [min(returns[0], 1), min((returns[1] - 20) / 480, 1)], rtol=1e-5
    )
    np.testing.assert_allclose(scores["normalized"].mean, np.mean(by_task), rtol=1e-5)
    path.unlink()
    assert load(tmp_path / "run").trainer.stream.action_space.n == 4
