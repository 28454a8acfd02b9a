"""An interrupted run is bit-identical to an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from gtrxl_jax.loading import load
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.runs import preemption
from gtrxl_jax.runs.checkpoints import checkpoint
from gtrxl_jax.runs.checkpoints.checkpoint import available_steps
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.preemption import RunInterrupted
from gtrxl_jax.runs.programs import Programs
from tests.jobs import changed, small_job

ROOT = Path(__file__).parents[2]
CONFIG = small_job(
    "gru",
    env__params={"corridor_length": 1},
    algorithm__popart=True,
    evaluation__interval=1,
    checkpoint__interval=200,
    checkpoint__best="evaluation/return",
    checkpoint__keep=1,
    num_seeds=2,
    devices=4,
)
ITERATION, ITERATIONS = CONFIG.steps_per_iteration, CONFIG.num_iterations


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Compile the programs of this file's runs only once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(tmp_path_factory.mktemp("cache")), 0.0), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)


class Stop(MetricWriter):
    """Runs an action when an iteration is written, before it is saved."""

    def __init__(self, iteration, action):
        self.iteration, self.action = iteration, action

    def write(self, step, metrics):
        if step == self.iteration * ITERATION:
            self.action()


class Crash(Exception):
    """Stands for any cause of the end of a process."""


def crash():
    raise Crash


def lines(folder):
    """Return the metrics without timings."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["time"], record["steps_per_second"]
    return records


def state_of(folder, trainer=None):
    return checkpoint.restore(folder, Programs(trainer or OnlineTrainer(CONFIG)).like)[0]


def assert_same(one, other, **tolerance):
    for (path, a), (_, b) in zip(
        jax.tree.leaves_with_path(one), jax.tree.leaves_with_path(other), strict=True
    ):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if tolerance:
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder, its result and its final state."""
    folder = tmp_path_factory.mktemp("whole")
    result = train(OnlineTrainer(CONFIG), folder=folder).result
    return folder, result, state_of(folder)


def test_crashed_run_resumes_bit_identically(whole, tmp_path):
    iterations = sorted(random.Random(0).sample(range(1, ITERATIONS + 1), 2))
    for iteration in iterations:
        with pytest.raises(Crash):
            train(OnlineTrainer(CONFIG), writers=[Stop(iteration, crash)], folder=tmp_path)
        # The iteration's metrics have been written, but not its checkpoint.
        assert lines(tmp_path)[-1]["step"] == iteration * ITERATION
        assert max(available_steps(tmp_path), default=0) < iteration * ITERATION
    result = train(OnlineTrainer(CONFIG), folder=tmp_path).result
    folder, expected, state = whole
    assert lines(tmp_path) == lines(folder)
    assert_same(state_of(tmp_path), state)
    assert (result.evaluation, result.per_seed) == (expected.evaluation, expected.per_seed)
    assert result.steps == expected.steps == ITERATIONS * ITERATION
    assert available_steps(tmp_path) == available_steps(folder)


def test_resume_with_other_number_of_devices(whole, tmp_path):
    with pytest.raises(Crash):
        train(OnlineTrainer(CONFIG), writers=[Stop(4, crash)], folder=tmp_path)
    trainer = OnlineTrainer(CONFIG)
    trainer.mesh = lambda: make_mesh(2, CONFIG.env.num_envs)
    train(trainer, folder=tmp_path)
    state = state_of(tmp_path, trainer)
    assert all(len(x.sharding.device_set) == 2 for x in jax.tree.leaves(state))
    assert_same(state.learner.trainable, whole[2].learner.trainable, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_run_resumes(whole, tmp_path, number, monkeypatch):
    heard = threading.Event()
    monkeypatch.setattr(preemption, "_say", lambda line: heard.set())

    def ask():
        signal.raise_signal(number)
        assert heard.wait(60)

    # The third iteration's metrics are written while the fourth runs, which ends before the stop.
    with pytest.raises(RunInterrupted, match=f"{number.name} at step {4 * ITERATION:,}") as stopped:
        train(OnlineTrainer(CONFIG), writers=[Stop(3, ask)], folder=tmp_path)
    assert stopped.value.exit_code == {signal.SIGTERM: 75, signal.SIGINT: 130}[number]
    assert available_steps(tmp_path)[-1] == 4 * ITERATION
    assert lines(tmp_path) == lines(whole[0])[:3]
    train(OnlineTrainer(CONFIG), folder=tmp_path)
    assert lines(tmp_path) == lines(whole[0])
    assert_same(state_of(tmp_path), whole[2])


def test_finished_run_is_loaded(whole):
    folder, result, state = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = train(OnlineTrainer(CONFIG), writers=[Stop(1, crash)], folder=folder)
    assert again.result == result
    assert_same(again.params_per_seed[1], jax.tree.map(lambda x: x[1], state.params))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_other_run_in_folder_raises(whole):
    with pytest.raises(ValueError, match="holds another run .unroll is 7 there, 8 here"):
        train(OnlineTrainer(changed(CONFIG, unroll=8)), folder=whole[0])


def test_best_is_kept_and_loadable(whole):
    folder, _, _ = whole
    scores = [np.mean(line["evaluation/return"]) for line in lines(folder)]
    best = (1 + int(np.argmax(scores))) * ITERATION
    assert available_steps(folder) == sorted({best, ITERATIONS * ITERATION})
    assert load(folder, best=True).step == best
    assert load(folder).step == ITERATIONS * ITERATION


def test_unknown_best_score_raises_before_training(tmp_path):
    job = changed(CONFIG, checkpoint__best="evaluation/retrun")
    with pytest.raises(ValueError, match="checkpoint.best 'evaluation/retrun': did you mean"):
        train(OnlineTrainer(job), folder=tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists() or not lines(tmp_path)
    assert available_steps(tmp_path) == []


def kill_and_resume(*arguments):
    subprocess.run(
        [sys.executable, ROOT / "experiments" / "kill_and_resume.py", "--no-keep", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )


def test_killed_processes_resume():
    kill_and_resume("--kills", "2", "--signals", "SIGKILL", "SIGTERM")


@pytest.mark.slow
def test_25_kills_resume_bit_identically():
    kill_and_resume()
