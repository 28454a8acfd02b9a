"""Trained agents reach the expected scores, and the controls do not.

These tests take minutes each on two cores and are marked slow: run `make slow`, or

    python -m pytest -m slow -s tests/slow/test_learning.py

to also print the progress and the success of every seed. The jobs run the command line in separate
processes, without the settings that reduce compilation time in other tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def gtrxl(*arguments, folder=ROOT):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    subprocess.run(
        [sys.executable, "-m", "gtrxl_jax.cli", *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=True,
    )


def success_of_each_seed(folder, *arguments):
    """Run `gtrxl train` and return the success on held-out episodes, `[S]`."""
    gtrxl("train", "--folder", folder, *arguments)
    result = json.loads((folder / "result.json").read_text())
    success = np.array(result["evaluation"]["success"]["per_seed"])
    print(
        f"\n{result['command']}\n"
        f"success of each seed {success.tolist()}; "
        f"{result['compile_seconds']:.0f} s of compilation and {result['train_seconds']:.0f} s of "
        f"training on {result['device']}"
    )
    return success


def test_default_job_solves_corridor_of_thirty(tmp_path):
    success = success_of_each_seed(tmp_path / "run", "--num-seeds", "10")
    assert len(success) == 10
    assert np.sum(success >= 0.95) >= 9


def test_memoryless_agent_stays_at_chance(tmp_path):
    """For a meaningful control, some seed must learn to walk to the junction and to turn.

    Not every seed learns to turn, since the expected reward of a guess is half as large.
    """
    success = success_of_each_seed(tmp_path / "run", "--num-seeds", "3", "--agent.memoryless")
    assert np.all(success <= 0.6)
    assert np.max(success) >= 0.4


def test_offline_rate_generalizes_beyond_dt_window(tmp_path):
    """Train on 90 steps in segments of 30.

    With 64 episodes, 0.75 is 4 standard deviations above the success of a guess.
    """
    gtrxl("train-offline", "--folder", tmp_path)
    success = {}
    for model in ("rate", "dt"):
        evaluation = json.loads((tmp_path / model / "result.json").read_text())["evaluation"]
        success[model] = {n: evaluation[f"success/{n}"]["mean"] for n in (30, 90, 150, 360, 900)}
        print(model, success[model])
    assert all(success[model][n] >= 0.95 for model in success for n in (30, 90))
    assert success["rate"][150] >= 0.95
    assert all(success["dt"][n] <= 0.75 for n in (150, 360, 900))


@pytest.mark.parametrize("algorithm", ["ppo", "vmpo"])
def test_agent_balances_cartpole(tmp_path, algorithm):
    folder = tmp_path / "run"
    gtrxl(
        *("train", "--folder", folder, "--algorithm.name", algorithm),
        *("--env.name", "CartPole-v1", "--total-steps", "300000", "--num-seeds", "3"),
    )
    evaluation = json.loads((folder / "result.json").read_text())["evaluation"]
    # The last policy of one seed may drift off the track slowly, depending on rounding.
    assert sum(mean >= 475 for mean in evaluation["return"]["per_seed"]) >= 2


@pytest.mark.parametrize("algorithm", ["ppo", "vmpo"])
def test_solved_task_with_a_time_limit_stays_solved(tmp_path, algorithm):
    """Each episode ends as all others, at its time limit, and each rollout has the same return.

    The value at the time limit is bootstrapped from and never learned.
    """
    options = ["--env.name", "CartPole-v1", "--env.params", "max_steps_in_episode", "50"]
    lengths = ["--total-steps", "1000000", "--updates-per-iteration", "100", "--num-seeds", "4"]
    gtrxl(
        *("train", "--folder", tmp_path / "run", "--preset", "debug", *options, *lengths),
        *("--algorithm.name", algorithm, "--evaluation.interval", "250000"),
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    late = [json.loads(line) for line in lines[len(lines) // 2 :]]
    assert np.mean([line["episode/return"] for line in late], axis=0).min() > 45
    assert np.max([line["popart/scale"] for line in late]) < 100
    assert np.min([line["popart/scale"] for line in late]) > 0.5


R2D2 = {
    "T-Maze": ((), 400_000, "success", 0.95),
    "CartPole": (("--env.name", "CartPole-v1"), 300_000, "return", 475),
    "Catch": (("--env.name", "Catch-bsuite"), 200_000, "return", 0.95),
    "MemoryChain": (
        ("--env.name", "MemoryChain-v0", "--env.params", "memory_length", "30"),
        400_000,
        "success",
        0.95,
    ),
}


@pytest.mark.parametrize("task", R2D2)
def test_r2d2_learns_with_one_setting(tmp_path, task):
    env, steps, score, goal = R2D2[task]
    gtrxl(
        *("train", "--folder", tmp_path / "run", "--algorithm.name", "r2d2", *env),
        *("--total-steps", str(steps), "--num-seeds", "3"),
    )
    evaluation = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]
    print(task, evaluation[score]["per_seed"])
    assert np.all(np.array(evaluation[score]["per_seed"]) >= goal)
