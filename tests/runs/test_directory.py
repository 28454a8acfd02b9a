"""A run's folder has one config, and one process at a time."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gtrxl_jax.runs.directory import load_config, locked

CONFIG = json.dumps({"seed": 1, "version": "0.1.0", "core": {"name": "gtrxl", "layers": 4}})


def changed(**fields):
    return json.dumps(json.loads(CONFIG) | fields)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "runs" / "a"


def test_same_run_can_lock_again(run):
    for config in (CONFIG, json.dumps(json.loads(CONFIG), indent=2), changed(version="0.2.0")):
        with locked(run, config):
            assert load_config(run) == CONFIG
    assert [path.name for path in run.iterdir()] == ["config.json"]


def test_other_run_raises_before_writing(run):
    with locked(run, CONFIG):
        pass
    message = r"another run \(core.layers is 4 there, 12 here\): choose another folder"
    other = changed(core={"name": "gtrxl", "layers": 12})
    with pytest.raises(ValueError, match=message), locked(run, other):
        pass
    assert load_config(run) == CONFIG


def test_folder_without_run_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run: it has no config.json"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON"), locked(tmp_path, CONFIG):
        pass


def test_one_of_concurrent_runs_gets_lock(run):
    def attempt(seed):
        try:
            with locked(run, changed(seed=seed)):
                return seed
        except ValueError:
            return None

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [seed for seed in pool.map(attempt, range(8)) if seed is not None]
    assert json.loads(load_config(run))["seed"] == winner


HOLD = """
import sys
from gtrxl_jax.runs.directory import locked
with locked(*sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_is_held_until_process_dies(run):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", HOLD, run, CONFIG]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=root, **pipes) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            message = "in use by a running process"
            with pytest.raises(ValueError, match=message), locked(run, CONFIG):
                pass
        finally:
            holder.kill()
    with locked(run, CONFIG):
        pass
