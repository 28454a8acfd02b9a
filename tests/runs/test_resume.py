"""An interrupted run is bit-identical to an uninterrupted one."""

import functools
import random
import signal
import threading

import jax
import numpy as np
import pytest

from gtrxl_jax.loading import load
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.placement import make_mesh
from gtrxl_jax.runs import checkpoint, preemption
from gtrxl_jax.runs.directory import available_steps
from gtrxl_jax.runs.logging.writers import MetricWriter
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.preemption import RunInterrupted
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.runs.results import read_result
from tests.comparison import assert_close, assert_same, lines
from tests.jobs import changed, small_job
from tests.processes import EXPERIMENTS, run
from tests.programs import compiled_once

pytestmark = pytest.mark.integration

CONFIG = small_job(
    "gru",
    env__params={"corridor_length": 1},
    algorithm__popart=True,
    evaluation__interval=1,
    checkpoint__interval=200,
    checkpoint__best="evaluation/return",
    checkpoint__keep=1,
    num_seeds=2,
    devices=2,
)
TRAINER = OnlineTrainer(CONFIG)
ITERATION, ITERATIONS = CONFIG.steps_per_iteration, CONFIG.num_iterations


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


@pytest.fixture(scope="module", autouse=True)
def _shared():
    with compiled_once():
        yield


def state_of(folder, trainer=TRAINER):
    return checkpoint.restore(folder, Programs(trainer).like)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder, its result and its final state."""
    folder = tmp_path_factory.mktemp("whole")
    result = train(TRAINER, folder=folder).result
    return folder, result, state_of(folder)


def test_crashed_run_resumes_bit_identically(whole, tmp_path):
    iterations = sorted(random.Random(0).sample(range(1, ITERATIONS + 1), 2))
    for iteration in iterations:
        with pytest.raises(Crash):
            train(TRAINER, writers=[Stop(iteration, crash)], folder=tmp_path)
        # The iteration's metrics have been written, but not its checkpoint.
        assert lines(tmp_path)[-1]["step"] == iteration * ITERATION
        assert max(available_steps(tmp_path), default=0) < iteration * ITERATION
    result = train(TRAINER, folder=tmp_path).result
    folder, expected, state = whole
    assert lines(tmp_path) == lines(folder)
    assert_same(state_of(tmp_path), state)
    assert (result.evaluation, result.per_seed) == (expected.evaluation, expected.per_seed)
    assert result.steps == expected.steps == ITERATIONS * ITERATION
    assert available_steps(tmp_path) == available_steps(folder)


@pytest.mark.slow
def test_resume_with_other_number_of_devices(whole, tmp_path):
    with pytest.raises(Crash):
        train(TRAINER, writers=[Stop(4, crash)], folder=tmp_path)
    trainer = OnlineTrainer(CONFIG)
    trainer.mesh = lambda devices=None: make_mesh(4, CONFIG.env.num_envs)
    train(trainer, folder=tmp_path)
    state = state_of(tmp_path, trainer)
    assert all(len(x.sharding.device_set) == 4 for x in jax.tree.leaves(state))
    assert_close(state.learner.trainable, whole[2].learner.trainable, rtol=1e-3, atol=1e-4)


def test_signals_save_and_run_resumes(whole, tmp_path, monkeypatch):
    """One run is stopped by each signal in turn."""
    heard = threading.Event()
    monkeypatch.setattr(preemption, "print", lambda *_, **__: heard.set(), raising=False)

    def ask(number):
        heard.clear()
        signal.raise_signal(number)
        assert heard.wait(60)

    for number, code, asked in ((signal.SIGTERM, 75, 1), (signal.SIGINT, 130, 3)):
        # The iteration after the one that is written ends before the stop.
        stop, last = Stop(asked, functools.partial(ask, number)), asked + 1
        message = f"{number.name} at step {last * ITERATION:,}"
        with pytest.raises(RunInterrupted, match=message) as stopped:
            train(TRAINER, writers=[stop], folder=tmp_path)
        assert stopped.value.exit_code == code
        assert available_steps(tmp_path)[-1] == last * ITERATION
        assert lines(tmp_path) == lines(whole[0])[:last]
    train(TRAINER, folder=tmp_path)
    assert lines(tmp_path) == lines(whole[0])
    assert_same(state_of(tmp_path), whole[2])


def test_finished_run_is_loaded(whole):
    folder, result, state = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = train(TRAINER, writers=[Stop(1, crash)], folder=folder)
    assert again.result == result
    assert_same(again.params_per_seed[1], jax.tree.map(lambda x: x[1], state.params))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_other_run_in_folder_raises(whole):
    with pytest.raises(ValueError, match="holds another run .unroll is 7 there, 8 here"):
        train(OnlineTrainer(changed(CONFIG, unroll=8)), folder=whole[0])


@compiled_once(type)
@pytest.mark.slow
def test_extended_run_equals_longer_run(tmp_path):
    """If nothing depends on the length of the run, such as a decay of the learning rate."""
    constant = {"optimizer__warmup": 0.0, "optimizer__final": 1.0}
    longer = changed(CONFIG, **constant, evaluation__interval=0, num_seeds=1, devices=1)
    trainer = OnlineTrainer(longer)
    shorter = changed(longer, total_steps=4 * ITERATION, checkpoint__interval=0)
    train(OnlineTrainer(shorter), folder=tmp_path / "run")
    assert load(tmp_path / "run").step == 4 * ITERATION
    with pytest.raises(Crash):
        train(trainer, writers=[Stop(5, crash)], folder=tmp_path / "run")
    result = train(trainer, folder=tmp_path / "run").result
    assert result.steps == read_result(tmp_path / "run").steps == ITERATIONS * ITERATION
    train(trainer, folder=tmp_path / "whole")
    assert_same(state_of(tmp_path / "run", trainer), state_of(tmp_path / "whole", trainer))
    both = lines(tmp_path / "run"), lines(tmp_path / "whole")
    assert [line["loss/value"] for line in both[0]] == [line["loss/value"] for line in both[1]]
    with pytest.raises(ValueError, match="a run cannot be shortened"):
        train(OnlineTrainer(shorter), folder=tmp_path / "run")


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
    run(EXPERIMENTS / "kill_and_resume.py", "--no-keep", *arguments)


@pytest.mark.slow
def test_processes_resume_after_either_signal():
    kill_and_resume("--kills", "2", "--signals", "SIGKILL", "SIGTERM")


@pytest.mark.slow
def test_25_kills_resume_bit_identically():
    kill_and_resume()
