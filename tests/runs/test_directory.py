"""A run's folder has one config, and one process at a time."""

import fcntl
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Timer

import pytest

from gtrxl_jax.offline import config as offline
from gtrxl_jax.online import config as online
from gtrxl_jax.runs import config as run_config
from gtrxl_jax.runs.directory import (
    difference,
    is_running,
    lock_folder,
    new_folder,
    read_config_text,
)

CONFIG = json.dumps(
    {"kind": "other", "seed": 1, "version": "0.3.0", "core": {"name": "gtrxl", "layers": 4}}
)
OTHERS = {
    "total_steps": 100,
    "checkpoint": {"interval": 1, "keep": 3, "best": ""},
    "evaluation": {"interval": 1, "episodes": 8},
    "actors": {"count": 1, "processes": False, "timeout": 60.0, "restarts": 3},
}


def changed(**fields):
    return json.dumps(json.loads(CONFIG) | fields)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "runs" / "a"


@pytest.fixture
def started(run):
    """A run with a checkpoint."""
    with lock_folder(run, CONFIG):
        (run / "checkpoints" / "3").mkdir(parents=True)
    return run


def test_same_run_can_lock_again(started):
    with lock_folder(started, json.dumps(json.loads(CONFIG), indent=2)):
        assert read_config_text(started) == CONFIG
    assert {path.name for path in started.iterdir()} == {"config.json", "checkpoints"}


@pytest.mark.parametrize("name", ["README.md", "metrics.jsonl", "options.json", "config.json"])
def test_files_of_others_are_not_replaced(run, name):
    """Such as those of a project in whose folder someone starts a run."""
    run.mkdir(parents=True)
    text = '{"model_type": "bert"}'
    (run / name).write_text(text)
    with pytest.raises(ValueError, match="replace it: choose another folder"):  # noqa: SIM117
        with lock_folder(run, CONFIG):
            pass
    assert [(path.name, path.read_text()) for path in run.iterdir()] == [(name, text)]


def test_other_run_raises_before_writing(started):
    message = r"another run \(core.layers is 4 there, 12 here\): choose another folder"
    other = changed(core={"name": "gtrxl", "layers": 12})
    with pytest.raises(ValueError, match=message), lock_folder(started, other):
        pass
    assert read_config_text(started) == CONFIG


def test_run_without_checkpoint_is_replaced(run):
    with lock_folder(run, CONFIG):
        message = "in use by a running process"
        with pytest.raises(ValueError, match=message), lock_folder(run, changed(seed=2)):
            pass
    with lock_folder(run, changed(seed=2)):
        pass
    assert read_config_text(run) == changed(seed=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "0.3.0+later"},
        {"devices": 4, "parameter_shards": 2},
        {"on_divergence": "continue"},
        {"checkpoint": {"interval": 5, "keep": 1, "best": ""}},
        {"evaluation": {"interval": 0, "episodes": 8}},
        {"actors": {"count": 1, "processes": True, "timeout": 9.0, "restarts": 0}},
        {"total_steps": 200},
    ],
)
def test_some_settings_may_change(started, fields):
    (started / "config.json").write_text(changed(**OTHERS))
    with lock_folder(started, changed(**OTHERS | fields)):
        # The new file is locked as well.
        message = "in use by a running process"
        with (
            pytest.raises(ValueError, match=message),
            lock_folder(started, changed(**OTHERS | fields)),
        ):
            pass
    assert json.loads(read_config_text(started)) == json.loads(changed(**OTHERS | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"total_steps": 99}, "total_steps is 100 there, 99 here, and a run cannot be shortened"),
        ({"checkpoint": {"interval": 1, "keep": 3, "best": "a"}}, 'best is "" there, "a" here'),
        ({"actors": {"count": 2}}, "actors.count is 1 there, 2 here"),
        ({"evaluation": {"interval": 1, "episodes": 9}}, "evaluation.episodes is 8 there, 9 here"),
    ],
)
def test_other_settings_may_not_change(started, fields, message):
    (started / "config.json").write_text(changed(**OTHERS))
    with pytest.raises(ValueError, match=message), lock_folder(started, changed(**OTHERS | fields)):
        pass
    assert read_config_text(started) == changed(**OTHERS)


def test_the_order_of_wrappers_is_part_of_the_run(started):
    given = {"limit": 9, "repeat": 4}
    env = json.loads(CONFIG).get("env", {})
    (started / "config.json").write_text(changed(env=env | {"wrappers": given}))
    other = changed(env=env | {"wrappers": dict(reversed(given.items()))})
    with pytest.raises(ValueError, match=r"env.wrappers is \[.*limit.*there"):
        lock_folder(started, other).__enter__()
    with lock_folder(started, changed(env=env | {"wrappers": given})):
        pass


def test_field_of_later_version_is_empty_before(started):
    with lock_folder(started, changed(init_from="", init_only=[])):
        pass
    (started / "config.json").write_text(CONFIG)
    message = r'init_from is null there, "runs/b" here'
    with (
        pytest.raises(ValueError, match=message),
        lock_folder(started, changed(init_from="runs/b")),
    ):
        pass


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("online", "agent.clock"),
        ("online", "core.gate_order"),
        ("online", "algorithm.gae_lambda"),
        ("online", "checkpoint"),
        ("offline", "data.validation"),
        ("offline", "model.valve"),
    ],
)
def test_field_of_later_version_is_at_its_default_before(run, kind, field):
    """Before there was a field, runs had what is its default now; also their checkpoints."""
    config = {"online": online.OnlineConfig, "offline": offline.OfflineConfig}[kind]()
    here = run_config.to_json(kind, config)
    older = json.loads(here)
    *groups, name = field.split(".")
    group = older
    for inner in groups:
        group = group[inner]
    default = group.pop(name)
    with lock_folder(run, json.dumps(older)):
        (run / "checkpoints" / "3").mkdir(parents=True)
    with lock_folder(run, here):
        assert read_config_text(run) == here
    assert difference(older, json.loads(here)) is None
    group[name] = {**default, "keep": 77} if isinstance(default, dict) else "another"
    if name != "checkpoint":
        assert f'{field} is "another" there' in difference(older, json.loads(here))


FINGERPRINTS = {
    "same data elsewhere": (("a", "x"), ("b", "x"), None),
    "before there were fingerprints": (("a", ""), ("a", "x"), None),
    "other data": (("a", "x"), ("a", "y"), "holds a run on other data than a, whose contents"),
    "other data elsewhere": (("a", "x"), ("b", "y"), "holds a run on other data than b"),
    "elsewhere, before": (("a", ""), ("b", "x"), 'data.path is "a" there, "b" here'),
}


@pytest.mark.parametrize("case", FINGERPRINTS)
def test_data_are_known_by_their_fingerprint(run, case):
    there, here, message = FINGERPRINTS[case]
    there, here = (
        changed(data={"path": path, "fingerprint": fingerprint})
        for path, fingerprint in (there, here)
    )
    with lock_folder(run, there):
        (run / "checkpoints" / "3").mkdir(parents=True)
    if message is None:
        with lock_folder(run, here):
            assert read_config_text(run) == here
        return
    with pytest.raises(ValueError, match=message), lock_folder(run, here):
        pass
    assert read_config_text(run) == there


def test_folder_without_run_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run: it has no config.json"):
        read_config_text(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON"), lock_folder(tmp_path, CONFIG):
        pass


def test_one_of_concurrent_runs_gets_lock(run):
    tried = Barrier(8)

    def attempt(seed):
        try:
            with lock_folder(run, changed(seed=seed)):
                tried.wait()
                return seed
        except ValueError:
            tried.wait()
            return None

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [seed for seed in pool.map(attempt, range(8)) if seed is not None]
    assert json.loads(read_config_text(run))["seed"] == winner


def test_new_folders_are_distinct(tmp_path):
    begun = Barrier(8)

    def create(_):
        begun.wait()
        with new_folder(tmp_path / "runs" / "a") as folder:
            (folder / "file").touch(exist_ok=False)
        return folder.name

    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(create, range(8)))
    assert names == {"a", *(f"a-{number}" for number in range(2, 9))}


def test_new_folder_without_content_is_removed(tmp_path):
    with new_folder(tmp_path / "b" / "runs" / "a") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    with new_folder(tmp_path / "runs" / "a"):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


@pytest.mark.parametrize(
    ("name", "unfit"),
    [
        ("[a]", "'['"),
        ("a*", "'*'"),
        ("a?", "'?'"),
        ("a\\b", r"'\\'"),
        ("a\udcff", "invalid UTF-8"),
    ],
)
def test_folder_in_which_no_checkpoint_can_be_stored_raises(name, unfit, tmp_path):
    message = re.escape(f"its path contains {unfit}, choose another folder")
    with pytest.raises(ValueError, match=message), lock_folder(tmp_path / name / "run", CONFIG):
        pass
    assert list(tmp_path.iterdir()) == []


def test_asking_whether_it_runs_is_no_running_process(started):
    """Nor does it keep a process from locking the folder."""
    with (started / "config.json").open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_running(started)
        Timer(0.05, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with lock_folder(started, CONFIG):
            assert is_running(started)
    assert not is_running(started)


HOLD = """
import sys
from gtrxl_jax.runs.directory import lock_folder
with lock_folder(*sys.argv[1:]):
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
            with pytest.raises(ValueError, match=message), lock_folder(run, CONFIG):
                pass
        finally:
            holder.kill()
    with lock_folder(run, CONFIG):
        pass
