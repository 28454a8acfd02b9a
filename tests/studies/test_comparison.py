"""The comparison of runs, from folders written by hand."""

import errno
import json
import os

import numpy as np
import pytest

from gtrxl_jax.cli import studies
from gtrxl_jax.cli.main import main
from gtrxl_jax.online.config import OnlineConfig, to_json
from gtrxl_jax.runs import directory
from gtrxl_jax.runs.results import Result, scores_of, write_result
from gtrxl_jax.statistics import wilson_interval
from gtrxl_jax.studies import comparison
from gtrxl_jax.studies.comparison import compare, find_runs, read_runs, score_after, task_of


def config_of(core="lstm", length=30, algorithm="vmpo", rate=2e-3, **changes):
    return {
        "version": "0.3.0",
        "core": {"name": core, "width": 64},
        "algorithm": {"name": algorithm},
        "env": {"name": "TMazePassive-v0", "params": {"corridor_length": length}, "tasks": []},
        "optimizer": {"learning_rate": rate},
        "seed": 0,
        "num_seeds": 1,
        "sweep": {},
        "devices": None,
        "total_steps": 400,
        **changes,
    }


def write_run(folder, config, values, final=None, score="success", sampled=None, steps=None):
    """Write a run whose score in training at steps 100, 200, ... is `values` [N] or [N, S]."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        json.dumps({"step": 100 * (n + 1), "time": 0.0, f"episode/{score}": value})
        for n, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    if final is not None:
        evaluation = scores_of({score: np.array(final)[:, None]})
        steps = config["total_steps"] if steps is None else steps
        result = Result(evaluation, steps, 1.0, 1.0, 1.0, sampled=sampled or {})
        record = {**vars(result), "evaluation": {k: v.record for k, v in evaluation.items()}}
        write_result(folder, json.loads(json.dumps(record).replace("NaN", '"NaN"')))
    return folder


@pytest.fixture(autouse=True)
def _as_online(monkeypatch):
    """The configs are only the parts of an online config that are read."""
    for module in (comparison, directory):
        monkeypatch.setattr(
            module, "run_kind", lambda config: "online" if "core" in config else "offline"
        )


def rows_of(text, section="# Comparison"):
    text = text.split(f"{section}\n")[1].split("\n#")[0]
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(rows[0], map(str.strip, row), strict=True)) for row in rows[2:]]


def test_table_of_finished_and_unfinished_runs(tmp_path):
    seeds = [[0.2, 0.5], [0.97, 0.5], [1.0, 0.6], [1.0, 0.4]]
    write_run(tmp_path / "a", config_of(num_seeds=2), seeds, [1.0, 0.5])
    write_run(tmp_path / "b", config_of(seed=2), [0.1, 0.2, 0.96, 1.0], [0.98])
    write_run(tmp_path / "c", config_of("gtrxl"), [0.3, 0.7])
    text, paths = compare([tmp_path], tmp_path)
    gru, lstm = sorted(rows_of(text), key=lambda row: row["agent"])
    low, high = wilson_interval(2, 3)
    assert lstm["task"] == "TMazePassive-v0, corridor_length 30"
    assert lstm["solved"] == f"2/3 [{low:.2f}, {high:.2f}]"
    assert lstm["median"] == "0.98"
    assert lstm["IQM"].startswith("0.83 [")
    assert (lstm["steps to the goal"], lstm["steps"]) == ("250", "400")
    assert (gru["solved"][:3], gru["median"], gru["IQM"]) == ("0/1", "0.70", "0.70")
    assert (gru["steps to the goal"], gru["steps"]) == ("", "200, 1 of 1 unfinished")
    assert [path.name for path in paths] == [
        "comparison.md",
        "comparison_curves.png",
        "comparison_ranking.png",
    ]
    assert paths[0].read_text() == text + "\n"
    assert all(path.stat().st_size > 1000 for path in paths[1:])


def test_tasks_are_pooled_and_diverged_seeds_unsolved(tmp_path):
    for length, final in ((10, [1.0, 1.0]), (30, [1.0, np.nan])):
        config = config_of(length=length, num_seeds=2, algorithm="ppo")
        write_run(tmp_path / str(length), config, [[0.5, 0.5]] * 4, final)
    write_run(tmp_path / "v", config_of(length=10), [0.5] * 4, [0.5])
    text, paths = compare([tmp_path], tmp_path)
    rows = {(row["task"], row["agent"]): row for row in rows_of(text)}
    pooled = rows["all 2", "lstm, ppo"]
    assert (pooled["solved"][:3], pooled["IQM"]) == ("3/4", "1.00 [1.00, 1.00]")
    assert ("all 2", "lstm, vmpo") not in rows
    assert {p.stem for p in paths} >= {
        "comparison_curves_TMazePassive-v0-corridor-length-10",
        "comparison_ranking",
    }


def test_plots_of_tasks_have_short_and_distinct_names(tmp_path):
    many = [{"name": "TMazePassive-v0", "corridor_length": 10 + n} for n in range(12)]
    env = config_of()["env"]
    tasks = [{"params": {"x": -9.8}}, {"params": {"x": 9.8}}]
    tasks += [{"tasks": many}, {"tasks": [*many, *many]}]
    for n, task in enumerate(tasks):
        write_run(tmp_path / str(n), config_of(env=env | task), [0.5])
    _, (_, *curves, _) = compare([tmp_path], tmp_path)
    names = [path.stem.removeprefix("comparison_curves_TMazePassive-v0-") for path in curves]
    assert names[:2] == ["x-minus-9.8", "x-9.8"]
    assert names[3] == f"{names[2]}-2"
    assert all(len(path.name) < 150 and path.exists() for path in curves)


def test_run_that_stopped_at_divergence_is_unsolved(tmp_path):
    run = write_run(tmp_path / "run", config_of(), [1.0] * 4)
    with (run / "metrics.jsonl").open("a") as file:
        row = {"step": 500, "time": 0.0, "episode/success": 1.0, "diverged": 1.0}
        file.write(json.dumps(row) + "\n")
    (row,) = rows_of(compare([tmp_path], tmp_path)[0])
    assert (row["solved"][:3], row["steps"]) == ("0/1", "500, 1 of 1 diverged")


def test_extended_run_is_unfinished(tmp_path):
    """Its result is that of a shorter run."""
    config = config_of(total_steps=800)
    write_run(tmp_path / "a", config, [0.5] * 5, [1.0], steps=400)
    (row,) = rows_of(compare([tmp_path], tmp_path)[0])
    assert (row["median"], row["steps"]) == ("0.50", "500, 1 of 1 unfinished")


def test_runs_of_other_lengths_and_learning_rates_are_not_pooled(tmp_path):
    """In folders of one name, and in other tasks: settings tell runs apart."""
    write_run(tmp_path / "a" / "gtrxl", config_of("gtrxl", total_steps=400), [0.5] * 4, [1.0])
    write_run(tmp_path / "b" / "gtrxl", config_of("gtrxl", total_steps=100), [0.5], [0.0])
    for length, rate in ((10, 1e-3), (30, 1e-2)):
        config = config_of("lstm", length, rate=rate)
        write_run(tmp_path / "c" / str(length), config, [0.5] * 4, [1.0])
    text, _ = compare([tmp_path], tmp_path)
    assert {(row["task"][-2:], row["agent"], row["solved"][:3]) for row in rows_of(text)} == {
        ("30", "gtrxl, total_steps 400", "1/1"),
        ("30", "gtrxl, total_steps 100", "0/1"),
        ("10", "lstm, learning_rate 0.001", "1/1"),
        ("30", "lstm, learning_rate 0.01", "1/1"),
    }


def test_of_copies_the_one_furthest_on_counts(tmp_path):
    write_run(tmp_path / "a" / "run", config_of(), [0.5])
    write_run(tmp_path / "b" / "run", config_of(), [0.5] * 4, [1.0])
    text, _ = compare([tmp_path], tmp_path)
    (row,) = rows_of(text)
    assert (row["solved"][:3], row["steps"]) == ("1/1", "400")
    assert f"{tmp_path / 'a' / 'run'} (seed 0 of {tmp_path / 'b' / 'run'})" in text


def test_settings_that_differ_make_variants(tmp_path):
    runs = [
        write_run(tmp_path / str(rate), config_of(rate=rate, devices=rate), [0.5] * 4)
        for rate in (1e-3, 1e-2)
    ]
    runs.append(write_run(tmp_path / "g", config_of("gru", sweep={"gamma": [0.9, 1]}), [0.5] * 4))
    labels = [one["labels"]["agent"] for one in read_runs(runs)]
    assert labels == [
        "lstm, learning_rate 0.001",
        "lstm, learning_rate 0.01",
        "gru, sampled gamma in [0.9, 1]",
    ]


def test_orders_of_wrappers_make_variants(tmp_path):
    given = {"limit": 9, "repeat": 4}
    for n, wrappers in enumerate([given, dict(reversed(given.items())), {}]):
        config = config_of()
        config["env"]["wrappers"] = wrappers
        write_run(tmp_path / str(n), config, [0.5] * 4, [1.0])
    agents = [row["agent"] for row in rows_of(compare([tmp_path], tmp_path)[0])]
    wrapped = ["lstm, wrappers limit 9, repeat 4", "lstm, wrappers repeat 4, limit 9"]
    assert agents == [*wrapped, "lstm"]


def test_ranges_of_drawn_settings_make_variants(tmp_path):
    for n, bounds in enumerate([[1e-4, 1e-2], [1e-6, 1e-5], [1e-4, 1e-2]]):
        config = config_of(seed=n, sweep={"learning_rate": bounds})
        write_run(tmp_path / str(n), config, [0.5] * 4, [1.0])
    write_run(tmp_path / "3", config_of(), [0.5] * 4, [1.0])
    rows = {row["agent"]: row["solved"] for row in rows_of(compare([tmp_path], tmp_path)[0])}
    assert {agent: solved[:3] for agent, solved in rows.items()} == {
        "lstm, sampled learning_rate in [0.0001, 0.01]": "2/2",
        "lstm, sampled learning_rate in [1e-06, 1e-05]": "1/1",
        "lstm": "1/1",
    }


def test_settings_that_are_off_are_not_named(tmp_path):
    switches = [{"init_from": "", "gate_bias": None}, {"init_from": "a", "gate_bias": 0.0}]
    runs = [write_run(tmp_path / f"{n}", config_of(**s), [0.5]) for n, s in enumerate(switches)]
    assert [one["labels"]["agent"] for one in read_runs(runs)] == [
        "lstm",
        "lstm, init_from a, gate_bias 0.0",
    ]


def test_scores_at_stages_and_goal(tmp_path):
    values = [-9.0, -5.0, float("nan"), -1.0]
    run = write_run(tmp_path / "a", config_of(), values, [-2.0], score="return")
    (one,) = read_runs([run], -5.0)
    assert one["score"] == "return"
    assert [score_after(one, share) for share in (0.25, 0.5, 0.75, 1.0)] == [-9, -5, -5, -2]
    assert one["goal"] == {"score": "return", "value": -5.0, "steps": 200}
    assert read_runs([run], 0.0)[0]["goal"]["steps"] is None
    (row,) = rows_of(compare([run], tmp_path)[0])
    assert (row["solved"], row["median"], row["steps to the goal"]) == ("of 1", "-2.00", "")
    (row,) = rows_of(compare([run], tmp_path, goal=-4)[0])
    assert (row["solved"][:3], row["steps to the goal"]) == ("1/1", "400")
    begun = write_run(tmp_path / "b", config_of(), [-9.0], score="return")
    assert np.isnan([score_after(read_runs([begun])[0], share) for share in (0.5, 1.0)]).all()


def test_runs_without_metrics_are_left_out_and_named(tmp_path):
    write_run(tmp_path / "a", config_of(), [0.5] * 4, [1.0])
    waiting = write_run(tmp_path / "b", config_of(rate=1e-3), [])
    text, _ = compare([tmp_path], tmp_path)
    (row,) = rows_of(text)
    assert (row["agent"], row["solved"][:3]) == ("lstm", "1/1")
    assert f"\nLeft out, without metrics so far: {waiting}.\n" in text
    with pytest.raises(FileNotFoundError, match="the runs have no metrics yet"):
        compare([waiting], tmp_path)


def test_copies_are_counted_once_and_named(tmp_path):
    a, b, c, d = (tmp_path / name for name in "abcd")
    write_run(b, config_of(devices=1), [0.5] * 4, [0.0])
    write_run(a, config_of(num_seeds=3), [[0.5] * 3] * 4, [1.0] * 3)
    write_run(c, config_of(seed=2, num_seeds=2), [[0.5] * 2] * 4, [0.0, 1.0])
    write_run(d, config_of(rate=1e-3), [0.5] * 4, [0.0])
    text, _ = compare([d, c, b, a], tmp_path)
    solved = {row["agent"]: row["solved"][:3] for row in rows_of(text)}
    assert solved == {"lstm, learning_rate 0.002": "4/4", "lstm, learning_rate 0.001": "0/1"}
    assert (
        "\nLeft out, with the settings and the seed of another run: "
        f"{c} (seed 2 of {a}); {b} (seed 0 of {a}). Further runs need another `seed`.\n" in text
    )


def test_a_seed_that_draws_from_another_range_is_no_copy(tmp_path):
    runs = [
        write_run(tmp_path / f"{n}", config_of(sweep={"gamma": bounds}), [0.5], [1.0])
        for n, bounds in enumerate([[0.9, 0.99], [0.9, 0.999], [0.9, 0.99]])
    ]
    text, _ = compare([tmp_path], tmp_path)
    assert [row["solved"][:3] for row in rows_of(text)] == ["1/1", "1/1"]
    assert f"{runs[2]} (seed 0 of {runs[0]})" in text


def test_drawn_settings_are_listed_by_score(tmp_path):
    sweep = {"learning_rate": [1e-4, 1e-2], "gamma": [0.9, 1]}
    config = config_of(seed=5, num_seeds=3, sweep=sweep)
    drawn = {"learning_rate": [1e-4, 2e-3, 5e-3], "gamma": [0.9, 0.98765, 0.95]}
    write_run(tmp_path / "a", config, [[0.5] * 3] * 4, [np.nan, 0.25, 1.0], sampled=drawn)
    single = config_of("gru", sweep={"gamma": [0.9, 1]})
    write_run(tmp_path / "b", single, [0.5] * 4, [0.75], sampled={"gamma": [0.97]})
    write_run(tmp_path / "c", config_of("gtrxl"), [0.5] * 4, [0.5])
    text, _ = compare([tmp_path], tmp_path)
    rows = rows_of(text, "## Drawn settings")
    assert list(rows[0]) == ["task", "agent", "seed", "learning_rate", "gamma", "score"]
    assert [list(row.values())[2:] for row in rows] == [
        ["7", "0.005", "0.95", "1.000"],
        ["0", "", "0.97", "0.750"],
        ["6", "0.002", "0.988", "0.250"],
        ["5", "0.0001", "0.9", ""],
    ]
    assert rows[1]["agent"] == "gru, sampled gamma in [0.9, 1]"
    assert "Drawn" not in compare([tmp_path / "c"], tmp_path)[0]


def test_labels_name_the_tasks_that_are_trained():
    def label(*tasks, **params):
        return task_of({"name": "TMazePassive-v0", "params": params, "tasks": list(tasks)})

    cart, length = {"name": "CartPole-v1"}, "corridor_length"
    assert label() == "TMazePassive-v0"
    assert label({length: 3}, {length: 4}, corridor_length=9, penalty=0) == (
        "TMazePassive-v0, corridor_length 3, penalty 0 + corridor_length 4, penalty 0"
    )
    assert label({"name": "TMazePassive-v0"}, cart) == "TMazePassive-v0 + CartPole-v1"
    assert label(cart, {length: 3}, cart, corridor_length=9) == (
        "CartPole-v1 + TMazePassive-v0, corridor_length 3 + CartPole-v1"
    )
    assert label(cart, cart) == "CartPole-v1 + CartPole-v1"


def test_tasks_without_a_common_unit(tmp_path):
    tasks = [{"corridor_length": 3}, {"name": "CartPole-v1"}]
    several = {"env": config_of()["env"] | {"tasks": tasks}}
    references = {"CartPole-v1": {"random": 20, "reference": 500}}
    normalized = {"env": several["env"] | {"reference_returns": references}}
    runs = [
        write_run(tmp_path / f"{n}", config_of(seed=n, **env), [5.0] * 4, score="return")
        for n, env in enumerate([normalized, normalized, several])
    ]
    with open(runs[0] / "metrics.jsonl", "a") as file:
        file.write('{"step": 400, "evaluation/normalized": 0.4}\n')
    text, _ = compare(runs[:2], tmp_path)  # the second is not yet evaluated
    (row,) = rows_of(text)
    assert row["task"] == "TMazePassive-v0, corridor_length 3 + CartPole-v1"
    assert (row["median"], "mean over tasks" in text) == ("0.40", False)
    text, _ = compare(runs, tmp_path)
    assert {row["median"] for row in rows_of(text)} == {"5.00"}
    assert f"The return of {row['task']} is a mean over tasks" in text


def test_unusable_folders_are_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no online run with metrics"):
        find_runs([tmp_path])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is an offline run: compare takes online runs"):
        find_runs([tmp_path])


def test_command_writes_beside_the_runs(tmp_path, capsys):
    runs = [write_run(tmp_path / name, config_of(name), [0.5] * 4) for name in ("lstm", "gru")]
    studies.compare([*map(str, runs), "--goal", "0.4"])
    shown = capsys.readouterr()
    assert "| gru | 1/1 [" in shown.out
    assert (tmp_path / "comparison.md").read_text() in shown.out
    assert "comparison_ranking.png" in shown.err
    with pytest.raises(SystemExit):
        main(["compare"])
    assert "compare needs the folder of a run" in capsys.readouterr().err


def test_tables_are_shown_where_they_cannot_be_written(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "a", config_of(), [0.5] * 4)

    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a hidden name")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path / "a")])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "| lstm | 0/1 [" in shown.out
    (line,) = shown.err.splitlines()
    assert f"Read-only file system: '{tmp_path}/comparison.md'" in line


def test_settings_of_later_versions_are_at_their_defaults(tmp_path):
    """Runs from before there was a setting are of the same agent as those at its default."""
    newer = json.loads(to_json(OnlineConfig()))
    older = json.loads(to_json(OnlineConfig(seed=1)))
    del older["agent"]["clock"], older["core"]["gate_order"]
    write_run(tmp_path / "newer", newer, [0.5])
    write_run(tmp_path / "older", older, [0.5])
    write_run(tmp_path / "copy", {**older, "seed": 0}, [0.5])
    text, _ = compare([tmp_path], tmp_path)
    (row,) = rows_of(text)
    assert row["agent"] == "gtrxl"
    assert row["solved"].startswith("0/2")
    assert "Left out, with the settings and the seed of another run" in text
