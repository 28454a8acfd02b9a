"""Runs trained by two processes: equal metrics, and the end of one when the other dies."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.data import minari
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.parallel import hosts
from gtrxl_jax.runs.directory import available_steps
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.preemption import RunInterrupted
from tests.comparison import lines
from tests.jobs import changed
from tests.parallel.rows import Rows
from tests.processes import ROOT, flags

pytestmark = pytest.mark.integration

ONLINE = shlex.split(
    "train --preset debug --core.name gru --core.width 8 --env.num-envs 8 --unroll 4 "
    "--updates-per-iteration 2 --evaluation.episodes 8 --evaluation.interval 0 "
    "--checkpoint.interval 1 --parameter-shards 2 --no-plots"
)
OFFLINE = shlex.split(
    "train-offline --preset debug --model.name bc-mlp --data.episodes 16 --evaluation.episodes 8 "
    "--evaluation.lengths 8 --total-updates 4 --updates-per-iteration 2 --baselines --no-plots"
)
ITERATION = 8 * 4 * 2
"""Steps of an online iteration."""
ROWS = """
import sys
from gtrxl_jax.parallel import hosts
hosts.join()
from gtrxl_jax.runs.loop import train
from tests.parallel.rows import Rows
train(Rows(), folder=sys.argv[1])
"""
"""The program of each of the processes that train `Rows`."""


@pytest.fixture
def start():
    """Start two processes with two devices each, which are killed after the test."""
    started = []

    def two(*command, program=("-m", "gtrxl_jax.cli")):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        processes = [
            subprocess.Popen(
                [sys.executable, *program, *map(str, command), "--distributed"],
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags(2)}
                | {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
                | {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(2)
        ]
        started.extend(processes)
        return processes

    yield two
    for process in started:
        process.kill()
        process.communicate()


def ended(processes):
    """Return the exit codes and the output of the processes."""
    said = ["".join(process.communicate(timeout=300)) for process in processes]
    return [process.returncode for process in processes], said


def wait_until(condition, processes):
    while not condition():
        assert all(process.poll() is None for process in processes), ended(processes)
        time.sleep(0.05)


def test_two_processes_share_rows_and_folder(start, tmp_path):
    codes, said = ended(start(tmp_path / "two", program=("-c", ROWS)))
    assert codes == [0, 0], said
    one = train(Rows(), folder=tmp_path / "one")
    assert one.result.evaluation["return"].mean == 8
    assert [line["count"] for line in lines(tmp_path / "two")] == [5.5, 7.5, 9.5, 11.5]
    assert lines(tmp_path / "two") == lines(tmp_path / "one")
    assert [line["evaluation/return"] for line in lines(tmp_path / "two")] == [2, 4, 6, 8]
    assert available_steps(tmp_path / "two")[-1] == available_steps(tmp_path / "one")[-1] == 40


@pytest.mark.slow  # `test_two_processes_share_rows_and_folder` is quick
@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*ONLINE, "--total-steps", 4 * ITERATION], id="online"),
        pytest.param(OFFLINE, id="offline"),
    ],
)
def test_two_processes_match_one(command, start, tmp_path):
    """They add gradients in a different order, in float32, hence the tolerance."""
    codes, said = ended(start(*command, "--folder", tmp_path / "two"))
    assert codes == [0, 0], said
    main([*map(str, command), "--folder", str(tmp_path / "one"), "--devices", "4"])
    two, one = (next((tmp_path / name).rglob("metrics.jsonl")).parent for name in ("two", "one"))
    assert [line["step"] for line in lines(two)] == [line["step"] for line in lines(one)]
    for ours, theirs in zip(lines(two), lines(one), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            # NaN, for iterations in which no episode ended, is a string in JSON.
            pair = float(ours[name]), float(theirs[name])
            np.testing.assert_allclose(*pair, 1e-4, 1e-5, err_msg=name)
    config, other = ((path / "config.json").read_text() for path in (two, one))
    assert config == other.replace('"devices": 4', '"devices": 0')
    assert available_steps(two)[-1] == available_steps(one)[-1] == lines(one)[-1]["step"]
    # Only the first process prints.
    assert "step" in said[0]
    assert "step" not in said[1]


@pytest.mark.slow
def test_actors_of_two_processes_match_two_actors_of_one(start, tmp_path):
    env = ["--env.name", "tests.hosts:counter", "--env.params", "anonymous", "True"]
    command = [*ONLINE, "--total-steps", str(4 * ITERATION), *env]
    codes, said = ended(start(*command, "--folder", tmp_path / "two"))
    assert codes == [0, 0], said
    main([*command, "--folder", str(tmp_path / "one"), "--devices", "4", "--actors.count", "2"])
    for ours, theirs in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        for name in ours:
            if name != "actors/learner_waits":
                pair = float(ours[name]), float(theirs[name])
                np.testing.assert_allclose(*pair, 1e-4, 1e-4, err_msg=name)


@pytest.mark.slow
def test_two_processes_find_finished_run(start, tmp_path):
    for _ in range(2):
        codes, said = ended(start(*OFFLINE, "--folder", tmp_path / "two"))
        assert codes == [0, 0], said
    assert "finished already" in said[0]


@pytest.mark.slow  # starts two processes
def test_two_processes_read_one_dataset(start, tmp_path):
    """Each reads its own rows of every batch; the losses match those of one process in memory."""
    data = tmp_path / "data"
    minari.save(trajectories_of(changed(preset("debug"), data__episodes=16)), data)
    command = [*OFFLINE, "--data.path", str(data)]
    codes, said = ended(start(*command, "--data.stream", "--folder", tmp_path / "two"))
    assert codes == [0, 0], said
    main([*command, "--folder", str(tmp_path / "one"), "--devices", "4"])
    two, one = (lines(next((tmp_path / name).iterdir())) for name in ("two", "one"))
    for ours, theirs in zip(two, one, strict=True):
        np.testing.assert_allclose(ours["loss"], theirs["loss"], 1e-4)


@pytest.mark.slow
def test_dead_process_ends_other_and_both_resume(start, tmp_path):
    command = [*ONLINE, "--total-steps", 10**6, "--folder", tmp_path]
    processes = start(*command)
    wait_until(lambda: len(available_steps(tmp_path)) > 1, processes)
    processes[1].kill()
    codes, said = ended(processes)
    assert codes[0] not in (0, 75)
    assert "another task died" in said[0] or "another process of the run has ended" in said[0]
    saved = available_steps(tmp_path)[-1]

    processes = start(*command)
    wait_until(lambda: available_steps(tmp_path)[-1] > saved, processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, said = ended(processes)
    assert codes == [75, 75], said
    assert f"from step {saved:,}" in said[0]
    step = available_steps(tmp_path)[-1]
    assert f"stopped by SIGTERM at step {step:,}" in said[0]
    assert [line["step"] for line in lines(tmp_path)] == list(range(ITERATION, step + 1, ITERATION))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "no other processes to join .* set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and"),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES must be a whole number, not 'two'"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID must be from 0 to"),
    ],
)
def test_missing_processes_raise(variables, message, monkeypatch):
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        hosts.join()


def test_distributed_requires_folder(capsys, monkeypatch):
    monkeypatch.setattr(hosts, "join", lambda: None)
    with pytest.raises(SystemExit) as stopped:
        main([*ONLINE, "--distributed"])
    assert stopped.value.code == 2
    assert "distributed needs --folder" in capsys.readouterr().err


def test_single_process_is_unaffected():
    done = []
    hosts.on_main_process(lambda: done.append(1), "place")
    assert done == [1]
    assert hosts.all_max(15) == 15
    assert hosts.is_first()
    with pytest.raises(RuntimeError, match="mine"), hosts.ending_together():
        raise RuntimeError("mine")


def test_failing_process_exits_at_once(capsys, monkeypatch):
    codes = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(os, "_exit", codes.append)
    with hosts.ending_together(RunInterrupted):
        raise OSError("the disk is\nfull")
    assert (codes, capsys.readouterr().err) == ([1], "gtrxl: error: the disk is full\n")
    stop = RunInterrupted(signal.SIGTERM, 1, "here")
    with pytest.raises(RunInterrupted), hosts.ending_together(RunInterrupted):
        raise stop
    assert codes == [1]
