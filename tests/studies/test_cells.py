"""The execution of studies: what is run, saved, resumed, shared and reported."""

import functools
import os
import signal
import types

import numpy as np
import pytest

from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.runs.preemption import RunInterrupted
from gtrxl_jax.studies import Cell, read, run, train
from gtrxl_jax.studies.cells import _Task, _train, _with_lock
from gtrxl_jax.studies.records import append, read_all
from tests.jobs import small_job
from tests.studies import functions

FIELDS = {"labels", "seed", "command", "commit", "device", "date", "cores", "scores"}
"""What the record of every run has."""


@pytest.fixture
def study(tmp_path):
    """Two cells of two seeds; `done` lists the runs that were executed."""
    done = []

    def job(core, seed):
        done.append((core, seed))
        if (core, seed) == ("gru", 1) and len(done) == 4:
            raise KeyboardInterrupt
        return {"scores": {"success": float(core == "gru")}, "seconds": 3600.0}

    cells = [
        Cell({"core": core, "size": 8}, functools.partial(job, core), seeds=2)
        for core in ("lstm", "gru")
    ]
    return cells, tmp_path / "a.jsonl", done


def test_interrupted_study_resumes(study, tmp_path):
    cells, path, done = study
    with pytest.raises(KeyboardInterrupt):
        run(cells, path)
    assert len(read(path)) == 3
    records = run(cells, path)
    assert done == [("lstm", 0), ("gru", 0), ("lstm", 1), ("gru", 1), ("gru", 1)]
    expected = [("lstm", 0), ("lstm", 1), ("gru", 0), ("gru", 1)]
    assert [(r["labels"]["core"], r["seed"]) for r in records] == expected
    assert records == read(path, [cell.labels for cell in cells])
    assert records[0].keys() == FIELDS | {"seconds"}
    assert list(tmp_path.iterdir()) == [path]
    run(cells, path)
    assert len(done) == 5


def test_repeated_runs_replace_their_records(study):
    cells, path, done = study
    done += [None] * 4
    first = run(cells, path)
    run(cells, path, again=True, only=["gru"])
    assert done[8:] == [("gru", 0), ("gru", 1)]
    assert len(read(path)) == len(first) == 4
    assert len(path.read_text().splitlines()) == 6


def test_runs_without_their_output_are_executed_again(tmp_path):
    path, output, done = tmp_path / "a.jsonl", tmp_path / "data", []

    def job(seed):
        output.mkdir()
        done.append(seed)
        return {"scores": {}}

    cells = [Cell({"who": "data"}, job, output=output)]
    run(cells, path)
    run(cells, path)
    assert len(done) == 1
    output.rmdir()
    run(cells, path)
    assert len(done) == 2
    assert len(read(path)) == 1


def test_records_of_other_steps_are_reported(tmp_path, capsys):
    """They count as done, since only labels and seeds tell runs apart."""
    path = tmp_path / "a.jsonl"
    cell = Cell({"core": "lstm"}, OnlineConfig(total_steps=2048))
    append(path, {"labels": {"core": "lstm"}, "seed": 0, "steps": 512, "scores": {}})
    run([cell], path)
    assert "lstm has records of 512 steps, not 10,240: --again" in capsys.readouterr().err
    append(path, {"labels": {"core": "lstm"}, "seed": 0, "steps": 10_240, "scores": {}})
    run([cell], path)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "cores"),
    [
        ((), ["lstm", "gru"]),
        (("gru",), ["gru"]),
        (("gru, 8",), ["gru"]),
        (("8", "lstm"), ["lstm"]),
        (("gru", "lstm", "8"), ["lstm", "gru"]),
    ],
)
def test_cells_selected_by_name_or_label(study, only, cores):
    cells, path, done = study
    run([Cell(cell.labels, cell.job) for cell in cells], path, only=only)
    assert [core for core, _ in done] == cores


def test_invalid_cells_raise(study):
    cells, path, done = study
    with pytest.raises(ValueError, match="unknown cell 'lst': did you mean 'lstm'"):
        run(cells, path, only=["lst"])
    with pytest.raises(ValueError, match="two cells have the same name, lstm, 8"):
        run(cells[:1] * 2, path)
    same = Cell(cells[0].labels, cells[0].job, name="other")
    with pytest.raises(ValueError, match="cells lstm, 8 and other have the same labels: add one"):
        run([cells[0], same], path)
    with pytest.raises(ValueError, match="cell ALE/Pong cannot name a folder"):
        train([Cell({"game": "ALE/Pong"}, small_job())], path)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        run(cells, path, workers=0)
    assert not done


def test_numbers_of_numpy_and_infinities_are_recorded(tmp_path):
    labels = {"n": np.int64(3), "bound": float("inf")}
    cells = [Cell(labels, lambda seed: {"scores": {"success": np.float32(seed)}}, seeds=2)]
    for _ in range(2):
        records = run(cells, tmp_path / "a.jsonl")
    assert [record["scores"]["success"] for record in records] == [0.0, 1.0]
    assert records[0]["labels"] == {"n": 3, "bound": "Infinity"}
    assert len(read_all(tmp_path / "a.jsonl")) == 2


def test_failed_runs_are_named_and_the_others_recorded(tmp_path, capsys):
    cells = [Cell({"n": n}, functions.fail, seeds=2) for n in range(2)]
    with pytest.raises(RuntimeError, match=r"^2 of 4 runs failed: 0, seed 1; 1, seed 1$"):
        run(cells, tmp_path / "a.jsonl")
    assert [record["seed"] for record in read(tmp_path / "a.jsonl")] == [0, 0]
    shown = capsys.readouterr()
    assert "0, seed 1 failed: OSError: the disk is on fire" in shown.err
    assert "2/4  1, seed 0: 0 s" in shown.out


def test_locked_or_done_runs_are_skipped(tmp_path):
    done = tmp_path / "done"
    task = _Task("a", tmp_path / "lock", done.exists, done.touch)
    locked = []
    assert _with_lock(task, lambda: locked.append(_with_lock(task, task.perform)))
    assert (locked, done.exists()) == ([False], False)
    assert _with_lock(task, task.perform)
    assert not _with_lock(task, task.perform)
    assert list(tmp_path.iterdir()) == [done]


@pytest.mark.integration
def test_config_is_trained_and_recorded(tmp_path):
    job = small_job("lstm", devices=1, total_steps=1, seed=3, num_seeds=2)
    cell = Cell({"core": "lstm"}, job, measure=lambda trained: {"measured": 1.0})
    (record,) = run([cell], tmp_path / "a.jsonl")
    assert record.keys() == FIELDS | {"settings", "steps", "seconds", "curve", "goal"}
    assert (record["seed"], record["steps"]) == (3, job.steps_per_iteration)
    assert record["scores"].keys() == {"success", "return", "length", "measured"}
    assert record["goal"].keys() >= {"score", "value", "steps"}
    assert record["settings"]["core.name"] == "lstm"
    assert "seed" not in record["settings"]


@pytest.mark.slow
def test_workers_share_runs_on_disjoint_cores(tmp_path):
    cells = [Cell({"n": n}, functools.partial(functions.meet, tmp_path)) for n in range(6)]
    records = run(cells, tmp_path / "a.jsonl", workers=2)
    processes = {record["process"]: record["cores"] for record in records}
    assert len(records) == 6
    assert len(processes) == 2
    assert os.getpid() not in processes
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
        assert sum(processes.values()) == max(cores, 2)


@pytest.mark.slow  # test_interruption_stops_all_workers has workers too
def test_runs_of_a_dead_worker_have_failed(tmp_path):
    cells = [Cell({"n": 0}, functools.partial(functions.stop, 1))]
    with pytest.raises(RuntimeError, match="1 of 1 runs failed: 0, seed 0"):
        run(cells, tmp_path / "a.jsonl", workers=2)


@pytest.mark.integration
@pytest.mark.slow
def test_interruption_stops_all_workers(tmp_path):
    job = functools.partial(functions.interrupt_parent, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run([Cell({"n": n}, job) for n in range(3)], tmp_path / "a.jsonl", workers=2)
    assert len(list(tmp_path.glob("*.seen"))) == 2
    assert read(tmp_path / "a.jsonl") == []


@pytest.mark.integration
@pytest.mark.slow
def test_failed_cell_of_a_sweep_is_named(tmp_path, capsys):
    """The other is trained."""
    good = small_job("lstm", devices=1, total_steps=1)
    cells = [
        Cell({"init_from": "nothing"}, small_job("lstm", devices=1, init_from="nothing")),
        Cell({"core": "lstm"}, good),
    ]
    assert train(cells, tmp_path) == ["nothing"]
    assert (tmp_path / "lstm" / "result.json").exists()
    assert "nothing failed: " in capsys.readouterr().err


def test_offline_configs_have_no_folders(tmp_path):
    with pytest.raises(TypeError, match="cell dt: train takes online configs"):
        train([Cell({"model": "dt"}, OfflineConfig())], tmp_path)


def test_signal_at_the_end_of_a_run_keeps_the_next_from_starting(tmp_path, monkeypatch):
    def end(*_, **__):
        result = types.SimpleNamespace(steps=40)
        return types.SimpleNamespace(stopped_by=signal.SIGTERM, result=result)

    monkeypatch.setattr("gtrxl_jax.runs.loop.train", end)
    with pytest.raises(RunInterrupted, match="stopped by SIGTERM at step 40"):
        _train(small_job("lstm"), tmp_path, [])
