"""The overview of the runs in a folder."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gtrxl_jax.runs.config import to_json
from gtrxl_jax.runs.directory import list_runs, lock_folder
from gtrxl_jax.runs.divergence import Divergence
from gtrxl_jax.runs.results import Result, record_of, scores_of, write_result
from tests.jobs import small_job

CONFIG = small_job(total_steps=112)


def start(folder, config=CONFIG, step=None):
    with lock_folder(folder, to_json("online", config)):
        if step:
            (folder / "checkpoints" / str(step)).mkdir(parents=True)


def finish(folder, config=CONFIG, diverged=()):
    scores = scores_of({"return": np.array([0.5, 1.0]), "success": np.array([0, 1])})
    result = Result(scores, 112, 1.0, 2.0, 3.0, diverged=list(diverged))
    write_result(folder, record_of(config, result))


def state(folder):
    (run,) = list_runs(folder)
    return run.state, run.step, run.total


def test_states_of_a_run(tmp_path):
    run = tmp_path / "a" / "b"
    start(run)
    assert state(tmp_path) == ("empty", 0, 112)
    start(run, step=112)
    with lock_folder(run, to_json("online", CONFIG)):
        assert state(tmp_path) == ("running", 112, 112)
    assert state(tmp_path) == ("stopped", 112, 112)
    finish(run)
    assert state(tmp_path) == ("finished", 112, 112)
    start(run, small_job(total_steps=300))
    assert state(tmp_path) == ("extended", 112, 300)
    start(run, small_job(total_steps=300), step=224)
    assert state(tmp_path) == ("extended", 224, 300)
    (extended,) = list_runs(tmp_path)
    assert (extended.scores, extended.device) == ({}, "")  # those are of the shorter run


def test_a_run_ends_after_whole_iterations(tmp_path):
    start(tmp_path, small_job(total_steps=100))
    assert state(tmp_path) == ("empty", 0, 100)
    finish(tmp_path)
    assert state(tmp_path) == ("finished", 112, 112)


def test_diverged_run(tmp_path):
    start(tmp_path, small_job(total_steps=300), step=112)
    finish(tmp_path, diverged=[Divergence(seed=0, quantity="loss", step=112)])
    assert state(tmp_path) == ("diverged", 112, 300)


def test_run_with_damaged_metrics_is_listed(tmp_path):
    start(tmp_path, step=56)
    (tmp_path / "metrics.jsonl").write_text("damaged\nlines\n")
    assert state(tmp_path) == ("stopped", 56, 112)


def test_runs_are_sorted_by_update(tmp_path):
    for age, name in enumerate(("new", "old")):
        start(tmp_path / name)
        finish(tmp_path / name)
        (tmp_path / name / "metrics.jsonl").touch()
        os.utime(tmp_path / name / "metrics.jsonl", (1000 - age, 1000 - age))
    new, old = list_runs(tmp_path)
    assert (new.folder, old.folder) == (str(tmp_path / "new"), str(tmp_path / "old"))
    assert (new.updated, old.updated) == (1000, 999)
    assert (new.kind, new.what) == ("online", "gtrxl on TMazePassive-v0")
    assert list(new.scores) == ["success", "return"]
    assert new.scores["success"].startswith("0.500 [")
    assert new.device == json.loads((tmp_path / "new" / "result.json").read_text())["device"]


def test_any_name_of_a_folder_is_listed(tmp_path):
    names = ["[/]", "[red]x", "a\nb", "ü", ":x:", os.fsdecode(b"\xff")]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(to_json("online", CONFIG))
    command = [sys.executable, "-m", "gtrxl_jax.cli", "runs"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    listed = subprocess.run([*command, "."], **options, check=True)
    assert listed.stderr == ""
    rows = [line.split()[0] for line in listed.stdout.splitlines()[1:]]
    assert set(rows) == {"[/]", "[red]x", r"a\nb", r"\xfc", ":x:", r"\udcff"}
    as_json = subprocess.run([*command, ".", "--json"], **options, check=True)
    assert {run["folder"] for run in json.loads(as_json.stdout)} == set(names)


def test_other_files_are_skipped(tmp_path):
    run = {"kind": "online", "total_steps": 1, "core": 3}
    others = ["{", "[]", "{}", '{"kind": "online"}', json.dumps(run)]
    for number, text in enumerate(others):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text(text)
    assert list_runs(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        list_runs(tmp_path / "none")
