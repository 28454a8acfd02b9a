"""The command line end to end, and its error messages."""

import contextlib
import gc
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageSequence

from gtrxl_jax.acting import evaluation
from gtrxl_jax.cli import trained
from gtrxl_jax.cli.__main__ import send_again
from gtrxl_jax.cli.arguments import parse_train
from gtrxl_jax.cli.main import main
from gtrxl_jax.cli.training import _report_sampling_gap
from gtrxl_jax.envs import extensions
from gtrxl_jax.envs.faults import FaultError
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import from_json, preset, to_json
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.plots import report
from gtrxl_jax.runs.checkpoint import SaveError
from gtrxl_jax.runs.divergence import DivergedError
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.runs.preemption import RunInterrupted
from gtrxl_jax.runs.results import Score
from tests.jobs import changed


def call(*arguments):
    """Run the command line and return its standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main([str(argument) for argument in arguments])
    return out.getvalue(), err.getvalue()


def refused(*arguments, code=2):
    """Run a command that must exit with this code, and return its standard error."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as caught,
    ):
        main([str(argument) for argument in arguments])
    assert caught.value.code == code, err.getvalue()
    assert out.getvalue() == ""
    return err.getvalue()


def test_play_says_which_episodes_are_cut(tmp_path, monkeypatch):
    env = SimpleNamespace(render=None, fps=1)
    loaded = SimpleNamespace(tasks=(SimpleNamespace(env=env),), policy=None, params=())
    monkeypatch.setattr(trained, "_load", lambda *_: loaded)
    played = [
        SimpleNamespace(timesteps=SimpleNamespace(first=x, reward=x), success=None)
        for x in (np.zeros(1000), np.zeros(1201))
    ]
    monkeypatch.setattr(evaluation, "record_episodes", lambda *_: played)
    monkeypatch.setattr(extensions, "require_renderer", lambda _: None)
    monkeypatch.setattr(report, "draw_animation", lambda *_: None)
    out, _ = call("play", tmp_path, "--episodes", 2)
    assert out.splitlines()[1:] == ["episode 2: the first 1,000 of 1,201 steps are shown"]


@pytest.mark.parametrize("arguments", [("train", "--help"), ("runs", ".")])
def test_closed_pipe_exits_silently(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gtrxl_jax.cli", *arguments]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_help_is_wrapped_to_the_terminal(monkeypatch, capsys):
    """Not where the source of a docstring is."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    lines = [line.rstrip(" │") for line in capsys.readouterr().out.splitlines()]
    described = [re.match(r"[ │] {7}\S", line) is not None for line in lines]
    width, full = max(map(len, lines)), 0
    for number, (line, following) in enumerate(itertools.pairwise(lines)):
        if described[number] and described[number + 1]:
            word = following.strip(" │").split()[0]
            assert len(line) + 1 + len(word) > width, (line, following)
            full += 1
    assert full > 50


# On one device, which compiles in half the time.
DEBUG = ["--preset", "debug", "--devices", 1]


@pytest.fixture(scope="module")
def debug(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "debug"
    return folder, call("train", *DEBUG, "--folder", folder)


@pytest.mark.integration
def test_debug_job_writes_complete_run(debug):
    folder, (out, err) = debug
    config = from_json((folder / "config.json").read_text())
    assert config == changed(preset("debug"), devices=1)
    steps = config.num_updates * config.steps_per_update

    assert out.count("\n") == 1
    assert out.startswith("success ")
    assert out.endswith(f"| {folder}\n")
    assert f"| {steps:,} steps per seed in " in out
    assert "compiling" in err

    metrics = read_metrics(folder / "metrics.jsonl")
    assert metrics["step"].tolist() == [320 * n for n in range(1, 8)]
    assert {"episode/return", "evaluation/success", "kl/categorical"} <= metrics.keys()

    result = json.loads((folder / "result.json").read_text())
    assert {"command", "commit", "device", "date"} <= result.keys()
    assert result["seeds"] == [0]
    assert result["steps"] == steps
    success = result["evaluation"]["success"]
    low, high = success["interval"]
    assert 0 <= low <= success["mean"] <= high <= 1
    assert out.startswith(f"success {success['mean']:.3f} [{low:.3f}, {high:.3f}]; return ")

    # At the interval of 1000, rounded up to whole iterations, and at the end.
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1280", str(steps)}
    names = ("learning_curve", "updates", "attention", "attention_over_episode")
    plots = {"episode.gif", *(f"{name}.png" for name in names)}
    for name in plots:
        assert (folder / name).stat().st_size > 500
        assert name in err
    records = {"config.json", "options.json", "metrics.jsonl", "result.json", "README.md"}
    expected = {"checkpoints", *records, *plots}
    assert {path.name for path in folder.iterdir()} == expected


@pytest.mark.parametrize(
    ("trained", "evaluated", "actions", "said"),
    [
        ([0.1, 0.9, float("nan")], [0.2], "mode", "success was 0.900"),
        ([[0.1, 0.2], [0.9, 0.7]], [0.2, float("nan")], "mode", "success was 0.800"),
        ([0.9], [0.85], "mode", ""),
        ([0.9], [0.2], "sample", ""),
        ([float("nan")], [0.2], "mode", ""),
        (None, [0.2], "mode", ""),
        ([0.9], None, "mode", ""),
    ],
)
def test_a_run_says_if_samples_do_better(trained, evaluated, actions, said, tmp_path, capsys):
    rows = [{}] if trained is None else [{"episode/success": one} for one in trained]
    lines = [json.dumps({"step": n, "time": 0.0, **row}) for n, row in enumerate(rows)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    scores = {} if evaluated is None else {"success": Score(evaluated)}
    config = SimpleNamespace(evaluation=SimpleNamespace(actions=actions))
    _report_sampling_gap(SimpleNamespace(evaluation=scores), config, tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert bool(err) == bool(said)


@pytest.mark.integration
@pytest.mark.slow
def test_evaluate_is_deterministic(debug, tmp_path):
    folder, _ = debug
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "attention.png").unlink()
    first, _ = call("evaluate", copy, "--episodes", 64)
    again, _ = call("evaluate", copy, "--episodes", 64, "--plots")
    assert first == again
    assert first.count("\n") == 1
    kept = copy / "evaluations.jsonl"
    assert first.endswith(f"| 64 episodes for each of 1 seed(s) | step 2,240 | {kept}\n")
    assert (copy / "attention.png").exists()
    record, other = map(json.loads, kept.read_text().splitlines())
    score = Score.of(record["evaluation"]["success"])
    assert first.startswith(f"success {score}; ")
    assert other.items() >= {"step": 2240, "seed": 1, "episodes": 64, "actions": "mode"}.items()
    assert (other["environment"], other["params"]) == ("TMazePassive-v0", {"corridor_length": 3})
    assert {"command", "commit", "date", "device"} < other.keys()
    assert other["evaluation"] == record["evaluation"]
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"total_steps": 9000}))
    extended, _ = call("evaluate", copy, "--episodes", 64)
    state = "step 2,240 of a run that is extended, at step 2,240 of 9,000"
    assert extended == first.replace("step 2,240", state)


@pytest.mark.integration
def test_evaluation_with_other_settings_says_so(debug, tmp_path):
    folder = tmp_path / "agent"
    call("export", debug[0], "--to", folder)
    maze = ["--env.params", "corridor_length", 2, "step_penalty", 0]
    other = ["--core.memory-size", 7, "--forget", 2]
    out, _ = call("evaluate", folder, "--episodes", 8, *maze, *other)
    given = "corridor_length 2, step_penalty 0, memory_size 7, forgetting after 2 steps"
    assert f" | in TMazePassive-v0, {given} | 8 ep" in out
    (record,) = map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines())
    params = {"corridor_length": 2, "step_penalty": 0}
    assert (record["environment"], record["params"]) == ("TMazePassive-v0", params)
    assert (record["memory_size"], record["forget"]) == (7, 2)
    # The time limit is twice the shortest solution.
    assert 3 <= record["evaluation"]["length"]["mean"] <= 6


@pytest.mark.integration
def test_played_episodes_are_drawn(debug, tmp_path):
    path = tmp_path / "two.gif"
    out, _ = call("play", debug[0], "--episodes", 2, "--to", path)
    assert re.fullmatch(rf"success \d of 2; return -?[\d.]+, -?[\d.]+ \| {path}\n", out)
    with Image.open(path) as image:
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    # A second at the end of each episode.
    assert sum(duration >= 1000 for duration in durations) == 2
    assert durations[-1] >= 1000
    error = refused("play", debug[0], "--to", tmp_path / "two.avi")
    assert "to must be the name of a GIF or an MP4 file" in error


@pytest.mark.integration
@pytest.mark.slow
def test_runs_are_inspected_side_by_side(debug, tmp_path):
    shutil.copytree(debug[0], tmp_path / "other")
    out, _ = call("inspect", debug[0], tmp_path / "other", "--seed", 2, "--episode-steps", 3)
    path = debug[0] / "inspect.html"
    line = rf"success [01]; return -?[\d.]+ \| {path}\n"
    assert re.fullmatch(line * 2, out)
    text = path.read_text("utf-8")
    for part in ('"title": "TMazePassive-v0, seed 2"', '"name": "other"', '"cue": 0'):
        assert part in text
    path.unlink()

    out, _ = call("inspect", debug[0], "--to", tmp_path / "memory.gif")
    assert re.fullmatch(rf"success [01]; return -?[\d.]+ \| {tmp_path / 'memory.gif'}\n", out)
    with Image.open(tmp_path / "memory.gif") as image:
        assert image.is_animated
    error = refused("inspect", debug[0], "--task", 1)
    assert "task must be below 1, the run's number of tasks: 1" in error
    assert not path.exists()


@pytest.mark.integration
@pytest.mark.slow
def test_exported_agent_evaluates_as_its_run(debug, tmp_path):
    folder, to = debug[0], tmp_path / "agent"
    out, _ = call("export", folder, "--to", to)
    assert all(str(to / name) in out for name in ("params.safetensors", "config.json", "README.md"))
    scores = [call("evaluate", path, "--episodes", 64)[0].split("|")[0] for path in (folder, to)]
    assert scores[0] == scores[1]
    assert "exists already: choose another folder" in refused("export", folder, "--to", to)
    assert "to must be a new folder: set --to" in refused("export", folder)


@pytest.mark.slow  # seeds and tasks are tested in tests/online
def test_several_seeds_and_tasks(tmp_path):
    folder = tmp_path / "run"
    out, err = call(
        "train", "--preset", "debug", "--folder", folder, "--num-seeds", 3, "--core.name", "lstm",
        "--devices", 1,
        "--core-preset", "debug", "--total-steps", 1, "--env.num-envs", 16, "--algorithm.popart",
        "--env.tasks", "corridor_length", 2,
        "--env.tasks", "corridor_length", 4, "step_penalty", 0.5, "--log", "tensorboard", "csv",
        "--algorithm.name", "ppo", "--algorithm.minibatches", 2, "--segments", 2,
    )  # fmt: skip
    assert out.startswith("success solved by ")
    assert " of 3 seeds [" in out
    assert "; return median " in out
    config = from_json((folder / "config.json").read_text())
    assert config.core.name == "lstm"
    assert config.algorithm == PPOConfig(minibatches=2)
    assert config.env.params == {"corridor_length": 3}
    assert config.env.tasks == (
        {"corridor_length": 2},
        {"corridor_length": 4, "step_penalty": 0.5},
    )
    metrics = read_metrics(folder / "metrics.jsonl")
    assert metrics["episode/return/task_1"].shape == (1, 3)
    result = json.loads((folder / "result.json").read_text())
    assert result["seeds"] == [0, 1, 2]
    assert len(result["evaluation"]["success/task_0"]["per_seed"]) == 3
    assert "learning_curve" in err
    assert "attention" not in err
    assert "updates.png" in err
    files = {path.name for path in folder.iterdir()}
    assert {"episode_task_0.gif", "episode_task_1.gif", "seed_0", "seed_1", "seed_2"} < files


def test_whole_numbers_in_scientific_notation():
    config = parse_train(["--total-steps", "2.5e6", "--optimizer.learning-rate", "1e-3"]).config
    assert (config.total_steps, config.optimizer.learning_rate) == (2_500_000, 1e-3)


@pytest.mark.parametrize("text", ["true", "True", "false", "False"])
def test_booleans_among_settings(text):
    wrappers = ["--env.wrappers", "keys", "a", "grey", text]
    env = parse_train(["--env.params", "flag", text, *wrappers]).config.env
    value = text in ("true", "True")
    assert env.params["flag"] is value
    assert env.wrappers == {"keys": "a", "grey": value}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_during_imports_ends_process(number, code, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "gtrxl_jax.cli", "train"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        # The first import after the handlers are installed.
        while "tyro" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_signal_inside_a_callback_is_not_ignored(monkeypatch):
    """Python ignores what a callback of the garbage collector raises; JAX has one."""

    def interrupt(*_):
        gc.callbacks.remove(interrupt)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "unraisablehook", send_again)
    gc.callbacks.append(interrupt)
    gc.collect()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.integration
def test_finished_run_is_not_repeated(debug):
    folder, (out, _) = debug
    before = contents(folder)
    again, err = call("train", *DEBUG, "--folder", folder)
    scores = out.partition(" |")[0]
    assert again == f"finished already: {scores} | {folder}\n"
    assert err == ""
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("ended", "code", "line"),
    [
        (
            RunInterrupted(signal.SIGTERM, 640, "a"),
            75,
            "gtrxl: stopped by SIGTERM at step 640, saved in a: resume with the same command",
        ),
        (
            RunInterrupted(signal.SIGINT, 640, "a"),
            130,
            "gtrxl: stopped by SIGINT at step 640, saved in a: resume with the same command",
        ),
        (DivergedError("seed 0 diverged"), 1, "gtrxl: error: seed 0 diverged"),
        (FaultError("Lever: reward is not finite"), 1, "gtrxl: error: Lever: reward is not finite"),
        (SaveError("no space"), 1, "gtrxl: error: no space"),
        (
            RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 9 B."),
            1,
            "gtrxl train: error: out of memory: reduce env.num_envs, unroll, evaluation.episodes, "
            "core.memory_size, core.width or core.layers, or split the batch over more devices",
        ),
        (
            OSError(28, "No space left"),
            1,
            "gtrxl: error: [Errno 28] No space left; nothing is saved",
        ),
    ],
)
def test_exit_codes(ended, code, line, tmp_path, monkeypatch):
    def train(*_, **__):
        raise ended

    monkeypatch.setattr("gtrxl_jax.runs.loop.train", train)
    arguments = ["train", "--preset", "debug", "--folder", tmp_path / "a"]
    assert refused(*arguments, code=code) == line + "\n"


def test_traceback_environment_variable(monkeypatch):
    monkeypatch.setenv("GTRXL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown preset 'debgu'"):
        main(["train", "--preset", "debgu"])


def test_listed_names_are_valid():
    out, _ = call("list", "--json")
    names = json.loads(out)
    assert names["cores"][:5] == ["lstm", "gru", "trxl", "trxl-i", "gtrxl"]
    assert {"mingru", "lru", "s5", "ffm", "agalite", "mlstm", "mamba2"} <= set(names["cores"])
    assert {"TMazePassive-v0", "CartPole-v1"} <= set(names["environments"])
    for name in names["presets"]:
        parse_train(["--preset", name])
    for core in names["cores"]:
        parse_train(["--core.name", core])
        for name in names["core presets"][core]:
            assert core_config(core, name).name == core
    parse_train(["--core.name", "gtrxl", "--core-preset", "thin"])
    for gate in names["gates"]:
        parse_train(["--core.gate", gate])
    plain, _ = call("list")
    assert len(plain.splitlines()) == len(names)
    assert "gtrxl (paper, thin, small, debug), dnc (large, small, debug)" in plain
    for kind in names.keys() - {"core presets", "environments"}:
        assert f"{kind}: {', '.join(names[kind])}\n" in plain


def test_listed_environments_name_extras_that_are_missing(monkeypatch):
    packages = {"craftax": None, "brax": ModuleSpec("brax", None)}
    monkeypatch.setattr("importlib.util.find_spec", packages.get)
    plain, _ = call("list")
    assert "Craftax-Symbolic-v1 (needs the extra craftax)" in plain
    assert " brax-ant, " in plain
    assert "MemoryChain-v0, " in plain


@pytest.mark.parametrize(
    "arguments",
    [
        ["--env.name", "{0}:A", "{1}:B"],
        ["--env.tasks", "name", "{0}:A", "--env.tasks", "name", "{1}:B"],
    ],
)
def test_modules_of_all_tasks_are_imported(arguments, tmp_path, monkeypatch):
    names = [f"user_{tmp_path.name}_{n}" for n in range(2)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    parse_train([argument.format(*names) for argument in arguments])
    for name in names:
        assert sys.modules.pop(name).__file__ == str(tmp_path / f"{name}.py")


def test_sweep_replaces_that_of_the_preset():
    paper = ["--preset", "paper"]
    assert parse_train(paper).config.sweep == preset("paper").sweep
    config = parse_train([*paper, "--sweep", "entropy_cost", "0.01", "0.1"]).config
    assert config.sweep == {"entropy_cost": (0.01, 0.1)}


def test_arguments_override_presets():
    assert parse_train([]).config == preset("default")
    thin = parse_train(["--core-preset", "thin", "--core.layers", "3"]).config.core
    assert (thin.layers, thin.width, thin.memory_size) == (3, 256, 512)
    lstm = parse_train(["--core.name", "lstm", "--core-preset", "paper"]).config.core
    assert (lstm.name, lstm.layers, lstm.width) == ("lstm", 3, 256)
    # Settings that a preset changes are kept, others are the algorithm's own.
    assert parse_train(["--algorithm.name", "ppo"]).config.algorithm == PPOConfig()
    paper = parse_train(["--preset", "paper", "--algorithm.name", "ppo"]).config.algorithm
    assert paper == PPOConfig(popart=False, gae_lambda=1.0, value_cost=1.0, entropy_cost=0.0)
    # Parameters are merged with the preset's if the environment is not changed.
    both = parse_train(["--env.params", "step_penalty", "0.5", "penalty", "behind"]).config.env
    assert both.params == {"corridor_length": 30, "step_penalty": 0.5, "penalty": "behind"}
    tasks = ["--env.tasks", "penalty", "behind", "--env.tasks", "corridor_length", "3"]
    assert parse_train(tasks).config.env.tasks == ({"penalty": "behind"}, {"corridor_length": 3})
    other = parse_train(["--env.name", "MemoryChain-v0"]).config.env
    assert other.params == {}
    maze = ["--env.name", "MiniGrid-Memory", "--env.params", "size", "9", "random_length", "True"]
    config = parse_train(maze).config
    assert config.env.params == {"size": 9, "random_length": True}
    assert from_json(to_json(config)) == config


def test_collect_writes_dataset(tmp_path):
    folder = tmp_path / "set"
    params = ["corridor_length", "3", "penalty", "behind"]
    maze = ["--env.name", "TMazePassive-v0", "--env.params", *params]
    out, err = call("collect", folder, *maze, "--env.num-envs", "8", "--episodes", "12")
    assert out == f"success 1.000, return 1.000 | 12 episodes, 48 steps | {folder}\n"
    assert err.splitlines()[-1].startswith("100%  episode 12/12  ")
    assert err.splitlines()[-1].endswith("episodes/s  return 1.000  success 1.000")
    assert (folder / "data" / "main_data.hdf5").is_file()
    quiet = ["--quiet", "--env.num-envs", "8", "--episodes", "12"]
    assert call("collect", tmp_path / "again", *maze, *quiet)[1] == ""
    line = refused("collect", folder, *maze)
    assert line == f"gtrxl collect: error: {folder} exists already: choose another folder\n"
