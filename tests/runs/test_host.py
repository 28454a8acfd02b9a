"""The host's work between iterations: speed, phases, traces, and metrics after a failure."""

import json
import signal
import threading

import numpy as np
import pytest

from gtrxl_jax.runs import loop, preemption
from gtrxl_jax.runs.directory import available_steps
from gtrxl_jax.runs.logging.loggers import make_loggers, require_loggers
from gtrxl_jax.runs.logging.writers import MetricWriter, read_metrics
from gtrxl_jax.runs.results import read_result
from tests.processes import ROOT
from tests.runs.counter import Counter


class Spy(MetricWriter):
    """Keeps rows, phases and the order of events; fails at a step, as a process that is killed."""

    def __init__(self, fail_at=None):
        self.events, self.rows, self.fail_at = [], {}, fail_at

    def write(self, step, metrics):
        if step == self.fail_at:
            raise KeyboardInterrupt
        self.events.append(step)
        self.rows[step] = dict(metrics)

    def phase(self, name):
        if name:
            self.events.append(name)

    def sync(self):
        self.events.append("sync")


def killed(folder, step, *, log=()):
    """Leave the folder of a run of four iterations that died before it wrote a step."""
    trainer = Counter()
    writers = make_loggers(log, folder, trainer.config_json)
    with pytest.raises(KeyboardInterrupt):
        loop.train(trainer, writers=[*writers, Spy(step)], folder=folder)


def test_one_speed_in_metrics_and_result(tmp_path):
    spy = Spy()
    result = loop.train(Counter(), writers=[spy], folder=tmp_path).result
    assert result.steps_per_second == spy.rows[40]["steps_per_second"]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["steps_per_second"] == result.steps_per_second


def test_speed_is_of_all_steps_so_far(tmp_path):
    """A resumed run's speed includes the iterations before the interruption."""
    killed(tmp_path, 40)
    loop.train(Counter(), folder=tmp_path)
    read = read_metrics(tmp_path / "metrics.jsonl")
    seconds = read["step"] / read["steps_per_second"]
    assert (np.diff(seconds) > 0).all()


def test_phases_while_evaluating_and_saving(tmp_path):
    spy = Spy()
    loop.train(Counter(save_every=2, evaluate_every=3), writers=[spy], folder=tmp_path)
    assert spy.events == [
        "compiling", 10, 20, "saving", "sync",
        "evaluating", "compiling", 30, "evaluating", 40, "saving", "sync",
    ]  # fmt: skip


@pytest.mark.parametrize(("iterations", "traced"), [(6, "2 to 4"), (3, "2 to 3")])
def test_profile_traces_iterations_after_first(tmp_path, iterations, traced, capsys):
    loop.train(Counter(iterations), profile=tmp_path / "trace")
    assert capsys.readouterr().err == f"profile: iterations {traced} in {tmp_path / 'trace'}\n"
    assert [path.stat().st_size > 0 for path in tmp_path.rglob("*.xplane.pb")] == [True]


def test_profile_of_one_iteration_says_so(tmp_path, capsys):
    loop.train(Counter(1), profile=tmp_path / "trace")
    assert "no second iteration to trace" in capsys.readouterr().err


def test_profile_in_file_raises_before_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        loop.train(Counter(), profile=tmp_path / "file" / "trace", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resumed_run_repeats_no_csv_row(tmp_path):
    loop.train(
        Counter(),
        writers=make_loggers(["csv"], tmp_path / "whole", Counter().config_json),
        folder=tmp_path / "whole",
    )
    parts = tmp_path / "parts"
    killed(parts, 30, log=["csv"])
    assert "30,0," in (parts / "metrics.csv").read_text()  # written before the end, not saved
    writers = make_loggers(["csv"], parts, Counter().config_json)
    loop.train(Counter(), writers=writers, folder=parts)

    def rows(folder):
        lines = (folder / "metrics.csv").read_text().splitlines()
        return [line.split(",")[:3] for line in lines]

    assert rows(parts) == rows(tmp_path / "whole")
    assert len(rows(parts)) == 5


def test_example_of_logger_resumes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    name = "custom_logger:BestWriter"
    require_loggers([name])
    killed(tmp_path, 40, log=[name])
    loop.train(
        Counter(),
        writers=make_loggers([name], tmp_path, Counter().config_json),
        folder=tmp_path,
    )
    best = json.loads((tmp_path / "best.json").read_text())["best"]
    speeds = read_metrics(tmp_path / "metrics.jsonl")["steps_per_second"]
    assert best["count"] == 8
    assert best["steps_per_second"] == speeds.max()


@pytest.mark.parametrize("ahead", [0, 1])
def test_metrics_are_mended_from_checkpoint(tmp_path, ahead, capsys):
    """The checkpoint may be ahead of the metrics by a row, which is then lost."""
    killed(tmp_path, 40)
    path = tmp_path / "metrics.jsonl"
    saved = available_steps(tmp_path)[-1]  # 10 to 30, as saving is in the background
    intact = path.read_bytes().splitlines(keepends=True)[: saved // 10 - ahead]
    path.write_bytes(b"".join(intact) + b"\0" * 512)
    loop.train(Counter(), folder=tmp_path)
    read = read_metrics(path)
    steps = [step for step in (10, 20, 30, 40) if not ahead or step != saved]
    assert read["step"].tolist() == steps
    assert read["count"].tolist() == [step / 5 for step in steps]
    dropped, *lost = capsys.readouterr().err.splitlines()
    assert dropped.startswith(f"{path}: 1 damaged line(s) dropped")
    assert len(lost) == ahead


def test_signal_during_the_last_evaluation_is_reported(tmp_path, monkeypatch):
    """The run ends, but a command that would start another run does not."""
    heard = threading.Event()
    monkeypatch.setattr(preemption, "print", lambda *_, **__: heard.set(), raising=False)

    class Signals(Spy):
        def phase(self, name):
            if name == "evaluating":
                signal.raise_signal(signal.SIGTERM)
                assert heard.wait(60)

    assert loop.train(Counter(), folder=tmp_path / "a").stopped_by is None
    trained = loop.train(Counter(), writers=[Signals()], folder=tmp_path / "b")
    assert trained.stopped_by == signal.SIGTERM
    assert trained.result == read_result(tmp_path / "b")
