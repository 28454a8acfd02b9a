"""Agents learn what they should, and do not learn what they cannot.

Minutes each on two cores, so these tests are marked slow: `make slow`, or

    python -m pytest -m slow -s tests/slow/test_learning.py

which also shows the progress, and the success of every seed. The jobs are those of the command
line, in a process of their own, without the settings that make other tests compile fast.
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


def gtrxl(*arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    subprocess.run(
        [sys.executable, "-m", "gtrxl_jax.cli.main", *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=True,
    )


def success_of_each_seed(folder, *arguments):
    """Success on the held-out episodes of `gtrxl train` with these arguments."""
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


def test_the_default_job_learns_a_corridor_of_thirty(tmp_path):
    success = success_of_each_seed(tmp_path / "run", "--num-seeds", "10")
    assert len(success) == 10
    assert np.sum(success >= 0.95) >= 9


def test_without_memory_it_does_not_beat_chance(tmp_path):
    """The control must learn what needs no memory, the walk and a turn, for this to mean anything.

    Not every seed learns to turn: a turn is worth half as much to an agent that can only guess.
    """
    success = success_of_each_seed(tmp_path / "run", "--num-seeds", "3", "--agent.memoryless")
    assert np.all(success <= 0.6)
    assert np.max(success) >= 0.4


def test_offline_rate_remembers_beyond_its_segments_and_dt_does_not_beyond_its_window(tmp_path):
    """Trained on 90 steps in segments of 30. 64 episodes: 0.75 is 4 deviations from a guess."""
    gtrxl("train-offline", "--folder", tmp_path)
    success = {}
    for model in ("rate", "dt"):
        evaluation = json.loads((tmp_path / model / "result.json").read_text())["evaluation"]
        success[model] = {n: evaluation[f"success/{n}"]["mean"] for n in (30, 90, 150, 360, 900)}
        print(model, success[model])
    assert all(success[model][n] >= 0.95 for model in success for n in (30, 90))
    assert success["rate"][150] >= 0.95
    assert all(success["dt"][n] <= 0.75 for n in (150, 360, 900))
