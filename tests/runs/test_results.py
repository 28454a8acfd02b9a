"""The content of result.json."""

import json
import math
import os
import subprocess

import numpy as np

from gtrxl_jax.runs import results
from gtrxl_jax.runs.divergence import Divergence
from gtrxl_jax.runs.results import Score, scores_of
from tests.jobs import changed, small_job

CONFIG = small_job(seed=5, num_seeds=3)
RESULT = results.Result(
    evaluation={"success": Score([0.4, 0.5, 1.0], median=0.5, solved=1, interval=(0.1, 0.8))},
    steps=100,
    compile_seconds=1.0,
    train_seconds=2.0,
    steps_per_second=50.0,
)


def test_result_has_provenance_and_round_trips(tmp_path):
    results.write_result(tmp_path, results.record_of(CONFIG, RESULT))
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["seeds"] == [5, 6, 7]
    assert record["evaluation"]["success"] == {
        "per_seed": [0.4, 0.5, 1.0],
        "median": 0.5,
        "solved": 1,
        "interval": [0.1, 0.8],
    }
    assert record["device"].startswith("8 x cpu")
    assert set(record) >= {"command", "commit", "date", "steps", "compile_seconds"}
    assert results.read_result(tmp_path) == RESULT
    assert RESULT.per_seed == {"success": [0.4, 0.5, 1.0]}


def test_drawn_settings_are_recorded(tmp_path):
    drew = changed(RESULT, sampled={"learning_rate": [1e-4, 1e-3, 1e-2]})
    results.write_result(tmp_path, results.record_of(CONFIG, drew))
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["sampled"] == {"learning_rate": [1e-4, 1e-3, 1e-2]}
    assert results.read_result(tmp_path) == drew


def test_diverged_seeds_are_counted(tmp_path):
    diverged = [Divergence(seed=6, quantity="loss", step=40)]
    results.write_result(tmp_path, results.record_of(CONFIG, changed(RESULT, diverged=diverged)))
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["num_diverged"] == 1
    assert record["diverged"] == [{"seed": 6, "quantity": "loss", "step": 40, "detail": ""}]
    assert results.read_result(tmp_path).diverged == diverged


def test_unfinished_run_has_no_result(tmp_path):
    assert results.read_result(tmp_path) is None


def test_single_episode_result_is_valid_json(tmp_path):
    """One value has no interval, and a missing one is not a constant that JSON lacks."""
    scores = {"return": np.ones(1), "length": np.full(1, np.nan), "success": np.full(1, 0.5)}
    lonely = changed(RESULT, evaluation=scores_of(scores))
    results.write_result(tmp_path, results.record_of(CONFIG, lonely))

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "result.json").read_text()
    assert json.loads(text, parse_constant=refuse)["evaluation"] == {
        "return": {"per_seed": [1.0], "mean": 1.0},
        "length": {"per_seed": ["NaN"], "mean": "NaN"},
        "success": {"per_seed": [0.5], "mean": 0.5},
    }
    scores = results.read_result(tmp_path).evaluation
    assert scores["return"].mean == 1.0
    assert scores["return"].interval is None
    assert math.isnan(scores["length"].mean)


def test_commit_of_sources(tmp_path, monkeypatch):
    """It is marked if any source has changed; a merely surrounding repository does not count."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    package = tmp_path / "package"
    (package / "training").mkdir(parents=True)
    (package / "nn").mkdir()
    sources = [
        package / "__init__.py",
        package / "nn" / "core.py",
        package / "training" / "results.py",
    ]
    for source in sources:
        source.write_text("")
    monkeypatch.setattr(results, "__file__", str(sources[-1]))

    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert results.provenance()["commit"] == "unknown"
    git("init")
    git("commit", "--allow-empty", "-m", "Surround")
    assert results.provenance()["commit"] == "unknown"
    git("add", "package")
    git("commit", "-m", "Add")
    assert results.provenance()["commit"] == git("rev-parse", "--short", "HEAD")
    sources[1].write_text("x = 1")
    assert results.provenance()["commit"] == git("rev-parse", "--short", "HEAD") + "+"
