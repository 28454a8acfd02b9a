"""The studies: their stored reports, small runs of them, and their shared helper."""

import ast
import json
import os
import runpy
import shutil
import sys

import jax
import numpy as np
import pytest

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.validation import validate
from gtrxl_jax.worlds.popgym import POPGYM
from tests.jobs import small_job
from tests.processes import EXPERIMENTS, run

STUDIES = {
    "algorithms": ([], "algorithms"),
    "cores_on_default_job": ([], "cores_on_default_job"),
    "craftax_symbolic": ([], "craftax_symbolic"),
    "default_job": ([], "default_job"),
    "default_settings": ([], "default_settings"),
    "depth_and_gates": ([], "depth_and_gates"),
    "memory_horizon": ([], "memory_horizon"),
    "memory_worlds": ([], "memory_worlds"),
    "popgym_baselines": ([], "popgym_baselines"),
    "rate_associative": ([], "rate_associative"),
    "rate_minigrid": ([], "rate_minigrid"),
    "rate_two_colors": ([], "rate_two_colors"),
    "rocksample": ([], "rocksample"),
    **{
        f"rate_tmaze {part}": ([part], f"rate_tmaze_{part}")
        for part in ("corridors", "curriculum", "memory", "valves")
    },
}
"""The arguments of each study, and the name of its records and of its report."""

FIELDS = {"labels", "seed", "command", "commit", "device", "date", "scores"}
"""What the record of every run has."""

SMALL = {
    "rate_associative": ["--only", "DT", "--context", "4", "--segments", "2"],
    "default_settings": ["--only", "Catch-bsuite", "lstm"],
}


@pytest.mark.parametrize("name", STUDIES)
def test_stored_report_follows_from_records(name, study, monkeypatch, tmp_path, capsys):
    arguments, stored = STUDIES[name]
    shutil.copytree(study.RESULTS / stored, tmp_path / stored)
    program = str(EXPERIMENTS / f"{name.split()[0]}.py")
    options = ["--report-only", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [program, *arguments, *options])
    runpy.run_path(program, run_name="__main__")
    report = (tmp_path / f"{stored}.md").read_text()
    assert report == (study.RESULTS / f"{stored}.md").read_text()
    assert report in capsys.readouterr().out


class Planned(Exception):
    """Raised in place of the runs of a study."""


@pytest.mark.parametrize("name", STUDIES)
def test_every_config_of_study_is_valid(name, study, monkeypatch, tmp_path):
    def plan(title, runs, options):
        assert runs
        for planned in runs:
            if not callable(planned.job):
                validate(planned.job)
        raise Planned

    arguments, _ = STUDIES[name]
    program = str(EXPERIMENTS / f"{name.split()[0]}.py")
    monkeypatch.setattr(study, "run_study", plan)
    monkeypatch.setattr(sys, "argv", [program, *arguments, "--results", str(tmp_path)])
    with pytest.raises(Planned):
        runpy.run_path(program, run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_study_saves_records_and_report(name, tmp_path):
    """At sizes too small for meaningful results."""
    program = EXPERIMENTS / f"{name}.py"
    shown = run(program, *SMALL[name], "--seeds", "1", "--steps", "1", "--results", tmp_path)
    require_record_and_report(tmp_path, shown)


def require_record_and_report(folder, shown):
    """Assert that a study of one run has saved its record, and its report, which it printed."""
    assert "1 run of" in shown
    assert "| --- |" in shown
    (kept,) = folder.glob("*/*.json")
    (report,) = folder.glob("*.md")
    assert report.read_text() in shown
    assert json.loads(kept.read_text()).keys() >= FIELDS


@pytest.mark.integration
def test_config_is_trained_and_recorded(study, tmp_path):
    planned = study.Run({"core": "lstm"}, 3, small_job("lstm", devices=1, total_steps=1))
    (record,) = study.run_study("a", [planned], study.Options(results=tmp_path))
    assert record == json.loads((tmp_path / "a" / "lstm-3.json").read_text())
    assert record.keys() >= FIELDS | {"settings", "steps", "seconds", "curve"}
    assert (record["seed"], record["steps"]) == (3, planned.job.steps_per_iteration)
    assert record["scores"].keys() == {"success", "return", "length"}
    assert record["goal"].keys() >= {"score", "value", "steps"}


def test_every_study_is_tested():
    programs = {p.stem for p in EXPERIMENTS.glob("*.py") if "run_study(" in p.read_text()}
    assert programs - {"study"} == {name.split()[0] for name in STUDIES}


@pytest.mark.parametrize("task", ["RepeatPreviousEasy-v0", "AutoencodeEasy-v0"])
def test_cores_of_popgym_have_equal_numbers_of_parameters(study, task):
    import popgym_baselines as popgym

    def parameters(core):
        state = jax.eval_shape(OnlineTrainer(popgym.short(task, core, None)).init, 0)
        return sum(leaf.size for leaf in jax.tree.leaves(state.params))

    sizes = [parameters(core) for core in popgym.WIDTHS]
    assert max(sizes) < 1.1 * min(sizes)


def test_published_protocol_of_popgym_is_valid(study):
    import popgym_baselines as popgym

    published = popgym.grid(popgym.Settings(protocol="published", seeds=1))
    assert {planned.labels["task"] for planned in published} == set(POPGYM)
    assert {planned.labels["core"] for planned in published} == set(CORES)
    for planned in published[:: len(CORES)]:
        validate(planned.job)
    batch = published[0].job
    assert (batch.steps_per_update, batch.algorithm.minibatches) == (64 * 1024, 8)
    (longest,) = (one for one in published if one.cell == "RepeatFirstHard-v0, gtrxl")
    assert longest.job.core.memory_size == 831


def test_associative_configs_are_valid(study):
    import rate_associative

    for model in rate_associative.MODELS.values():
        validate(rate_associative.job(rate_associative.Settings(), model, 0))


@pytest.fixture
def rocksample(study):
    import rocksample

    return rocksample


def record_of(run, scores):
    """Return the record of a run that has not taken place."""
    return {
        "labels": dict(run.labels),
        "scores": scores,
        "steps": run.job.total_steps,
        "seconds": 60.0,
        "device": "cpu",
        "date": "2026-01-01",
        "command": run.cell,
        "commit": "1234567",
    }


def test_rocksample_report_has_published_scores(study, rocksample, tmp_path):
    runs = rocksample.grid(study.Options())
    assert len(runs) == 7 * 3 + 3 * 8 + 3 * 5
    steps = [run.job.steps_per_update for run in runs if run.seed == 0]
    assert steps == 2 * [2048] + [1024] + 3 * [2048] + 2 * [4096] + 5 * [1024]
    records = [
        record_of(run, {rocksample.SCORE: 10.0 + run.seed, "return": 15.0, "length": 30.0})
        for run in runs
    ]
    rocksample.report(study.Options(results=tmp_path), records)
    text = (tmp_path / "rocksample.md").read_text()
    measured = "11.0 ± 2.5 | 10.0, 11.0, 12.0 | 15.0 | 30 | 5,000,000 | 60 |"
    for cell, published in (("GTrXL", ""), ("GTrXL, swapped", "about 11"), ("GRU", "12.8")):
        assert f"| {cell} | {published} | {measured}" in text


def test_rocksample_discounts_first_episodes(rocksample):
    reward_BT = np.array([[1.0, 10.0, 5.0, 5.0], [2.0, 0.0, 0.0, 4.0]])
    last_BT = np.array([[False, True, False, True], [False, False, False, False]])
    returns = rocksample.of_first_episodes(reward_BT, last_BT)
    np.testing.assert_allclose(returns, [1 + 9.9, 2 + 4 * 0.99**3])


def test_craftax_report_has_percentage_of_highest_return(study, tmp_path):
    import craftax_symbolic

    runs = craftax_symbolic.grid(study.Options())
    assert [run.job.num_updates for run in runs[::3]] == [250, 250]
    craftax_symbolic.report(
        study.Options(results=tmp_path),
        [record_of(run, {"return": 4.0 + run.seed, "length": 200.0}) for run in runs],
    )
    text = (tmp_path / "craftax_symbolic.md").read_text()
    measured = "5.00 ± 2.48 | 2.2 % | 4.00, 5.00, 6.00 | 200 | 1,000,000 | 60 |"
    assert f"| GTrXL |  | {measured}" in text
    assert f"| GRU | 5.2 (2.3 %) | {measured}" in text


@pytest.mark.slow
def test_default_job_saves_record_and_report(study, monkeypatch, tmp_path, capsys):
    """With the debug preset, since the study compiles without a cache."""
    import default_job

    monkeypatch.setattr(default_job, "VARIANTS", {"small": (["--preset", "debug"], 1)})
    default_job.main(study.Options(steps=1, results=tmp_path))
    require_record_and_report(tmp_path, capsys.readouterr().out)


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import study

    return study


@pytest.fixture
def report(study):
    import study_report

    return study_report


@pytest.fixture
def grid(study):
    """Two cells of two seeds; `done` lists the runs that were executed."""
    done = []

    def job(core, seed):
        done.append((core, seed))
        if (core, seed) == ("gru", 1) and len(done) == 4:
            raise KeyboardInterrupt
        return {"scores": {"success": float(core == "gru")}, "seconds": 3600.0}

    runs = [
        study.Run({"core": core, "size": 8}, seed, lambda core=core, seed=seed: job(core, seed))
        for core in ("lstm", "gru")
        for seed in range(2)
    ]
    return runs, done


def test_interrupted_study_resumes(study, grid, tmp_path):
    runs, done = grid
    options = study.Options(results=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        study.run_study("a", runs, options)
    assert {path.name for path in (tmp_path / "a").glob("*.json")} == {
        "lstm-8-0.json",
        "lstm-8-1.json",
        "gru-8-0.json",
    }
    records = study.run_study("a", runs, options)
    assert done == [("lstm", 0), ("lstm", 1), ("gru", 0), ("gru", 1), ("gru", 1)]
    assert [(r["labels"]["core"], r["seed"]) for r in records] == done[:4]
    assert not list((tmp_path / "a").glob(".*"))
    study.run_study("a", runs, options)
    assert len(done) == 5
    study.run_study("a", runs, study.Options(results=tmp_path, again=True, only=("gru",)))
    assert done[5:] == [("gru", 0), ("gru", 1)]


@pytest.mark.parametrize(
    ("only", "cores"),
    [
        ((), ["lstm", "lstm", "gru"]),
        (("gru",), ["gru"]),
        (("gru, 8",), ["gru"]),
        (("8", "lstm"), ["lstm", "lstm"]),
        (("gru", "lstm", "8"), ["lstm", "lstm", "gru"]),
    ],
)
def test_cells_selected_by_name_or_label(study, grid, tmp_path, only, cores):
    runs, done = grid
    study.run_study("a", runs[:3], study.Options(results=tmp_path, only=only))
    assert [core for core, _ in done] == cores


def test_invalid_cells_raise(study, grid, tmp_path):
    runs, done = grid
    with pytest.raises(ValueError, match="unknown cell 'lst': did you mean 'lstm'"):
        study.run_study("a", runs, study.Options(results=tmp_path, only=("lst",)))
    with pytest.raises(ValueError, match="two runs of the same cell and seed"):
        study.run_study("a", runs[:1] * 2, study.Options(results=tmp_path))
    assert not done


def test_locked_or_saved_runs_are_skipped(study, tmp_path):
    path = tmp_path / "a-0.json"
    with study._locked(path, 0) as free, study._locked(path, 0) as again:
        assert (free, again) == (True, False)
    with study._locked(path, 0) as free:
        assert free
        path.write_text("{}")
    with study._locked(path, 0) as free:
        assert not free


SCRIPT = """
import os, time
import tyro
from study import Options, Run, run_study

options = tyro.cli(Options)

def job():
    # Wait for the other process.
    (options.results / f"{os.getpid()}.seen").touch()
    while len(list(options.results.glob("*.seen"))) < 2:
        time.sleep(0.1)
    time.sleep(0.2)
    return {"scores": {}, "process": os.getpid()}

records = run_study("a", [Run({"n": n}, 0, job) for n in range(6)], options)
print(sorted({(r["process"], r["cores"]) for r in records}))
"""


@pytest.mark.slow
def test_workers_share_runs_on_disjoint_cores(tmp_path):
    program = tmp_path / "script.py"
    program.write_text(SCRIPT)
    shown = run(program, "--workers", "2", "--results", tmp_path)
    assert len(list((tmp_path / "a").glob("*.json"))) == 6
    processes = ast.literal_eval(shown.splitlines()[-1])
    assert len(processes) == 2
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
        assert sum(count for _, count in processes) == max(cores, 2)


def test_curve_is_thinned_and_records_goal(study):
    curve = study.Curve(("success", 0.95))
    for step in range(1, 201):
        metrics = {"episode/success": step / 200, "episode/return": 1.0, "loss/value": 2.0}
        curve.write(step, metrics | {"evaluation/success": 0.96} if step == 100 else metrics)
    (success, evaluation) = (curve.thinned()[f"{k}/success"] for k in ("episode", "evaluation"))
    assert set(curve.thinned()) == {"episode/success", "evaluation/success", "episode/return"}
    assert len(success["step"]) == study.POINTS
    assert (success["step"][0], success["step"][-1], success["value"][-1]) == (1, 200, 1.0)
    assert evaluation == {"step": [100], "value": [0.96]}
    assert curve.goal["steps"] == 100
    never = study.Curve(("return", np.inf))
    never.write(10, {"episode/return": 3.0})
    assert never.goal["steps"] is None
    assert set(never.thinned()) == {"episode/return"}


def test_steps_to_goal_of_reached_seeds(report):
    reached = [{"goal": {"steps": 10}}, {"goal": {"steps": None}}, {"goal": {"steps": 30}}]
    np.testing.assert_array_equal(report.to_goal(reached, "steps"), [10, np.nan, 30])
