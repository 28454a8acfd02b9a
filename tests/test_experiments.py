"""The studies: their stored reports, and small runs of them."""

import dataclasses
import importlib
import json
import re
import shutil

import jax
import jax.numpy as jnp
import pytest

from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.cores.gtrxl import GTrXLConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.studies import Options
from gtrxl_jax.studies.report import fill_tables, markdown
from gtrxl_jax.validation import validate
from gtrxl_jax.worlds.popgym import POPGYM
from tests.processes import EXPERIMENTS, run

RESULTS = EXPERIMENTS / "results"

STUDIES = sorted(path.stem for path in RESULTS.glob("*.jsonl"))
"""The names of all records and reports."""

SMALL = {
    "rate_associative": ["--only", "DT", "--unroll", "4", "--segments", "2"],
    "default_settings": ["--only", "Catch-bsuite", "lstm"],
}


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))


def study_of(name, **options):
    """Return a study and its options."""
    if name.startswith("rate_tmaze_"):
        options["study"] = name.removeprefix("rate_tmaze_")
        name = "rate_tmaze"
    study = importlib.import_module(name).STUDY
    return study, study.options(**options)


@pytest.mark.parametrize("name", STUDIES)
def test_stored_report_follows_from_records(name, tmp_path, capsys, monkeypatch):
    # Its figures are drawn, but not rasterized, which takes most of the time.
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: path.touch())
    shutil.copy(RESULTS / f"{name}.jsonl", tmp_path)
    study, options = study_of(name, report_only=True, results=tmp_path)
    study.run(options)
    report = (tmp_path / f"{name}.md").read_text()
    assert report == (RESULTS / f"{name}.md").read_text()
    assert report in capsys.readouterr().out


def test_report_without_records_is_refused(tmp_path):
    study, options = study_of("default_job", report_only=True, results=tmp_path)
    with pytest.raises(ValueError, match="has no records: omit --report-only"):
        study.run(options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", STUDIES)
def test_every_config_of_study_is_valid(name):
    study, options = study_of(name)
    cells = study.grid(options)
    assert cells
    for cell in cells:
        if not callable(cell.job):
            validate(cell.job)


def test_records_are_of_a_size_to_be_tracked():
    assert max(path.stat().st_size for path in RESULTS.glob("*.jsonl")) < 5_000_000


def test_tables_of_pages_follow_from_records():
    """Where this fails, write them by `make results`."""
    import pages

    tables = {name: make() for name, make in pages.TABLES.items()}
    found = []
    for page in pages.PAGES:
        text = page.read_text("utf-8")
        assert fill_tables(text, tables) == text, page
        found += re.findall(r"^<!-- table: (\S+) -->$", text, re.MULTILINE)
    assert sorted(found) == sorted(tables)


def test_all_reports_are_written_together():
    import pages

    names = {module.__name__ for module in pages.STUDIES}
    assert names | {f"rate_tmaze_{part}" for part in pages.T_MAZES} == {*STUDIES}


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
    (records,) = folder.glob("*.jsonl")
    (report,) = folder.glob("*.md")
    assert report.read_text() in shown
    (line,) = records.read_text().splitlines()
    assert json.loads(line).keys() >= {"labels", "seed", "command", "commit", "date", "scores"}


def test_every_study_is_tested():
    programs = {p.stem for p in EXPERIMENTS.glob("*.py") if "Study(" in p.read_text()}
    assert programs == {
        "_".join(name.split("_")[:2]) if "tmaze" in name else name for name in STUDIES
    }


@pytest.mark.parametrize(
    "task", ["RepeatPreviousEasy-v0", pytest.param("AutoencodeEasy-v0", marks=pytest.mark.slow)]
)
def test_cores_of_popgym_have_equal_numbers_of_parameters(task):
    import popgym_baselines as popgym

    def parameters(core):
        state = jax.eval_shape(OnlineTrainer(popgym.short(task, core, None)).init, 0)
        return sum(leaf.size for leaf in jax.tree.leaves(state.params))

    sizes = [parameters(core) for core in popgym.WIDTHS]
    assert max(sizes) < 1.1 * min(sizes)


def test_cores_of_popgym_at_easy_have_equal_numbers_of_parameters():
    import popgym_easy

    states = [
        jax.eval_shape(OnlineTrainer(popgym_easy.job("CountRecallEasy-v0", core, None)).init, 0)
        for core in popgym_easy.CORES
    ]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(state.params)) for state in states]
    assert max(sizes) < 1.1 * min(sizes)


def test_published_protocol_of_popgym_is_valid():
    import popgym_baselines as popgym

    published = popgym.grid(popgym.Settings(protocol="published", seeds=1))
    assert {cell.labels["task"] for cell in published} == set(POPGYM)
    assert {cell.labels["core"] for cell in published} == set(CORES)
    for cell in published[:: len(CORES)]:
        validate(cell.job)
    batch = published[0].job
    assert (batch.steps_per_update, batch.algorithm.minibatches) == (64 * 1024, 8)
    (longest,) = (one for one in published if one.name == "RepeatFirstHard-v0, gtrxl")
    assert longest.job.core.memory_size == 831


def test_associative_configs_are_valid():
    import rate_associative

    for model in rate_associative.MODELS.values():
        validate(rate_associative.job(rate_associative.Settings(), model, 0))


def record_of(cell, scores):
    """Return the record of a run that has not taken place."""
    return {
        "labels": dict(cell.labels),
        "scores": scores,
        "steps": cell.job.total_steps,
        "seconds": 60.0,
        "device": "cpu",
        "date": "2026-01-01",
        "command": cell.name,
        "commit": "1234567",
        "curve": {"episode/return": {"step": [1], "value": [1.0]}},
    }


def test_rocksample_report_has_published_scores(tmp_path):
    import rocksample

    cells = rocksample.grid(Options())
    assert sum(cell.seeds for cell in cells) == 7 * 3 + 3 * 8 + 3 * 5
    steps = [cell.job.steps_per_update for cell in cells]
    assert steps == 2 * [2048] + [1024] + 3 * [2048] + 2 * [4096] + 5 * [1024]
    records = [
        record_of(cell, {rocksample.SCORE: 10.0 + n, "return": 15.0, "length": 30.0})
        for cell in cells
        for n in range(cell.seeds)
    ]
    text = markdown(*rocksample.report(Options(results=tmp_path), records))
    measured = "11.0 ± 2.5 | 10.0, 11.0, 12.0 | 15.0 | 30 | 5,000,000 | 60 |"
    for cell, published in (("GTrXL", ""), ("GTrXL, swapped", "about 11"), ("GRU", "12.8")):
        assert f"| {cell} | {published} | {measured}" in text


@pytest.mark.slow
def test_memory_without_positions_has_no_order():
    """The order of earlier steps does not matter to it, and does to a GTrXL."""
    import rewriting

    config = rewriting.WithoutPositionsConfig(layers=1, width=16, memory_size=8)
    plain = GTrXLConfig(layers=1, width=16, memory_size=8)
    x_BTD = jax.random.normal(jax.random.key(0), (1, 4, 16))
    first_BT = jnp.zeros((1, 4), bool)
    for core, has_order in ((config.make(), False), (plain.make(), True)):
        memory = core.initial_memory(1)
        params = core.init(jax.random.key(1), memory, x_BTD, first_BT)
        last = [
            core.apply(params, memory, x_BTD[:, order], first_BT)[1][0, -1]
            for order in (jnp.array([0, 1, 2, 3]), jnp.array([2, 0, 1, 3]))
        ]
        assert jnp.allclose(*last, atol=1e-6) != has_order


def test_craftax_report_has_percentage_of_highest_return():
    import craftax_symbolic

    cells = craftax_symbolic.grid(Options())
    assert [cell.job.num_updates for cell in cells] == [250, 250]
    records = [
        record_of(cell, {"return": 4.0 + n, "length": 200.0})
        for cell in cells
        for n in range(cell.seeds)
    ]
    text = markdown(*craftax_symbolic.report(Options(), records))
    measured = "5.00 ± 2.48 | 2.2 % | 4.00, 5.00, 6.00 | 200 | 1,000,000 | 60 |"
    assert f"| GTrXL |  | {measured}" in text
    assert f"| GRU | 5.2 (2.3 %) | {measured}" in text


@pytest.mark.slow
def test_offline_control_makes_its_agents_and_data(monkeypatch, tmp_path, capsys):
    """With an agent of a single iteration, which is the best and the worse one."""
    import offline_control
    from offline_control import Part, Settings, Task

    agent = dataclasses.replace(offline_control.TASKS["CartPole-v1"].agent, total_steps=1)
    data = {"mixed": (Part(None, 4), Part(10_240, 3))}
    task = Task(agent, expert=10_240, data=data, episodes=2)
    monkeypatch.setattr(offline_control, "TASKS", {"CartPole-v1": task})
    options = Settings(seeds=1, steps=1, results=tmp_path, data=tmp_path / "made")
    offline_control.STUDY.run(options)
    lines = (tmp_path / "offline_control.jsonl").read_text().splitlines()
    records = {one["labels"]["who"]: one for one in map(json.loads, lines)}
    assert records.keys() == {"agent", "data", *offline_control.LEARNERS} - {"TD3+BC"}
    assert records["data"]["episodes"] == 7
    assert records["RATE"]["scores"].keys() >= {"return", offline_control.KEPT}
    assert "| CartPole-v1, mixed | 7 |" in capsys.readouterr().out
    assert not list((tmp_path / "made").glob("tmp*"))


@pytest.mark.slow
def test_walker_goes_from_target_to_target():
    """Whatever is asked for: its actions are the same if other targets are."""
    import rate_memory_maze

    from gtrxl_jax.acting.rollout import begin, rollout
    from gtrxl_jax.envs.stream import Stream

    env, params, walker = rate_memory_maze.player("walker")
    stream = Stream(env, params, 4)

    @jax.jit
    def walk(shift):
        state = begin(walker, (), stream, jax.random.key(0))
        maze = state.stream.env
        asked = (maze.target + shift) % maze.target_N2.shape[1]
        environments = state.stream.replace(env=maze.replace(target=asked))
        state = dataclasses.replace(state, stream=environments)
        _, played = rollout(walker, (), stream, state, jax.random.key(1), 300, lambda s: s.env)
        return played.actions, played.kept

    (actions_BT, mazes), (others_BT, _) = walk(0), walk(1)
    assert jnp.array_equal(actions_BT, others_BT)
    away_BT2 = mazes.target_N2 - mazes.position_2[:, :, None]
    is_there_BTN = jnp.linalg.norm(away_BT2, axis=-1) <= params.touch_distance
    assert (is_there_BTN.any(1).sum(1) >= 2).all()


@pytest.mark.slow
def test_rate_memory_maze_makes_its_data(monkeypatch, tmp_path, capsys):
    import rate_memory_maze
    from rate_memory_maze import Settings

    for name, value in {"COLLECTED": 2, "PLAYED": 2, "DATA": ("walker",)}.items():
        monkeypatch.setattr(rate_memory_maze, name, value)
    options = Settings(seeds=1, steps=1, results=tmp_path, data=tmp_path / "made")
    rate_memory_maze.STUDY.run(options)
    lines = (tmp_path / "rate_memory_maze.jsonl").read_text().splitlines()
    records = {", ".join(one["labels"].values()): one for one in map(json.loads, lines)}
    assert records.keys() >= {"walker, data", "walker, RATE", "walker, DT", ", random"}
    for record in records.values():
        if "found/1000" in (of := record["scores"]):
            found = [value for name, value in of.items() if name.startswith("found/")]
            assert of["return"] == pytest.approx(sum(found))
    assert records["walker, data"]["scores"]["return"] > 5
    assert "| walker | RATE | 1 |" in capsys.readouterr().out


@pytest.mark.slow
def test_memory_maze_trains_and_forgets(monkeypatch, tmp_path, capsys):
    import memory_maze_online

    size = dataclasses.replace(memory_maze_online.SIZES["36 x 36"], num_envs=8, minibatches=2)
    monkeypatch.setattr(memory_maze_online, "SIZES", {"36 x 36": size})
    monkeypatch.setattr(memory_maze_online, "EPISODES", 2)
    folders = {"results": tmp_path, "runs": tmp_path / "runs"}
    memory_maze_online.STUDY.run(
        memory_maze_online.Settings(seeds=1, steps=1, only=("lstm",), **folders)
    )
    require_record_and_report(tmp_path, capsys.readouterr().out)
    (line,) = (tmp_path / "memory_maze_online.jsonl").read_text().splitlines()
    assert json.loads(line)["scores"].keys() >= {"return", "forgetting/64", "forgetting/1"}


@pytest.mark.slow
def test_agents_of_memory_maze_have_equal_numbers_of_parameters():
    import memory_maze_online

    for size in memory_maze_online.SIZES.values():
        few, *_, many = sorted(
            sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(trainer.init, 0).params))
            for core in size.cores
            for trainer in [OnlineTrainer(memory_maze_online.job(size, core, None))]
        )
        assert many < 1.04 * few


@pytest.mark.slow
def test_default_job_saves_record_and_report(monkeypatch, tmp_path, capsys):
    """With the debug preset, since the study compiles without a cache."""
    import default_job

    monkeypatch.setattr(default_job, "VARIANTS", {"small": (["--preset", "debug"], 1)})
    default_job.STUDY.run(Options(steps=1, results=tmp_path))
    require_record_and_report(tmp_path, capsys.readouterr().out)
