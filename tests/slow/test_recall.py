"""A small recall task is learned however its observations and rewards are declared and scaled."""

import json

import pytest

from tests.recall import SHOWN
from tests.slow.test_learning import ROOT, gtrxl

pytestmark = pytest.mark.slow


def final_return(folder, total_steps=60_000, **settings):
    """Train the default agent on a `Recall`; return its mean return."""
    parameters = [str(x) for pair in settings.items() for x in pair]
    command = ["train", "--folder", folder, "--env.name", "recall:Recall", "--env.params"]
    size = ["--core.memory-size", "16", "--total-steps", str(total_steps)]
    gtrxl(*command, *parameters, *size, folder=ROOT / "tests")
    return json.loads((folder / "result.json").read_text())["evaluation"]["return"]["mean"]


@pytest.mark.parametrize("shown", SHOWN)
def test_observations(tmp_path, shown):
    """Rewards alone, by trying each action, would give 9.0."""
    assert final_return(tmp_path / "run", shown=shown) > 9.5


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e3, 1e6])
def test_units_of_rewards(tmp_path, unit):
    """Only the rewards tell which action is right."""
    assert final_return(tmp_path / "run", hidden=True, unit=unit) / unit > 9.0


def test_an_offset_of_rewards(tmp_path):
    """Ten times their differences. It makes learning slower, not only another unit."""
    steps = 11
    score = final_return(tmp_path / "run", 120_000, hidden=True, offset=-10.0)
    assert score + 10 * steps > 9.0
