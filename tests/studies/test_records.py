"""The files of records, and what is computed from records."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gtrxl_jax.studies import by_cell, read, scores, to_goal
from gtrxl_jax.studies.records import POINTS, append, curves_of, goal_of, read_all, thinned


def record_of(core, seed, success):
    return {"labels": {"core": core}, "seed": seed, "scores": {"success": success}}


def test_records_are_read_in_the_order_of_cells(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read(path) == []
    for core, seed in (("gru", 1), ("lstm", 0), ("gru", 0), ("dnc", 0)):
        append(path, record_of(core, seed, 1.0))
    records = read(path, [{"core": "lstm"}, {"core": "gru"}])
    found = [(record["labels"]["core"], record["seed"]) for record in records]
    assert found == [("lstm", 0), ("gru", 0), ("gru", 1), ("dnc", 0)]


def test_later_records_replace_earlier_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    for success in (0.0, np.nan, 0.75):
        append(path, record_of("gru", 0, success))
    (record,) = read(path)
    assert record["scores"]["success"] == 0.75
    assert len(read_all(path)) == 3
    assert np.isnan(scores(read_all(path))[1])


def test_torn_last_line_is_ignored_and_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, record_of("gru", 0, 1.0))
    with path.open("a") as file:
        file.write('{"labels": {"core"')
    assert [record["seed"] for record in read(path)] == [0]
    append(path, record_of("gru", 1, 1.0))
    assert [record["seed"] for record in read(path)] == [0, 1]


@pytest.mark.parametrize("line", ["{", "[]", "5", '{"seed": 1}', ""])
def test_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(record_of('gru', 0, 1.0))}\n{line}\n")
    with pytest.raises(ValueError, match="a.jsonl, line 2, is not a record"):
        read(path)


def test_concurrent_records_are_all_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: append(path, record_of("gru", seed, 1.0)), range(100)))
    assert [record["seed"] for record in read(path)] == list(range(100))


def test_curves_of_each_seed():
    metrics = {
        "step": np.array([1, 2, 3]),
        "time": np.zeros(3),
        "loss": np.array([0.5, np.nan, 0.25]),
        "episode/success": np.array([[np.nan, 0.5], [1.0, 0.0], [0.5, 1.0]]),
    }
    curves = curves_of(metrics, 0)
    assert curves.keys() == {"loss", "episode/success"}
    assert curves["loss"]["step"].tolist() == [1, 3]
    assert curves["episode/success"]["value"].tolist() == [1.0, 0.5]
    assert curves_of(metrics, 1)["episode/success"]["value"].tolist() == [0.5, 0.0, 1.0]


def test_curve_is_thinned():
    curves = {
        name: {"step": np.arange(1, 201), "value": np.arange(1, 201) / 200}
        for name in ("episode/success", "evaluation/return", "loss")
    }
    thin = thinned(curves)
    assert thin.keys() == {"episode/success", "evaluation/return"}
    success = thin["episode/success"]
    assert len(success["step"]) == POINTS
    assert (success["step"][0], success["step"][-1], success["value"][-1]) == (1, 200, 1.0)
    assert json.loads(json.dumps(thin)) == thin
    assert thinned({"loss": curves["loss"]}).keys() == {"loss"}


def test_goal_is_first_reached_in_training_or_in_an_evaluation():
    curves = {
        "episode/success": {"step": np.array([1, 5, 9]), "value": np.array([0.5, 0.96, 1.0])},
        "evaluation/success": {"step": np.array([4]), "value": np.array([0.95])},
    }
    assert goal_of(curves, "success", 0.95) == {"score": "success", "value": 0.95, "steps": 4}
    assert goal_of(curves, "success", 0.99)["steps"] == 9
    assert goal_of(curves, "return", 0.0)["steps"] is None
    assert goal_of(curves, "success", np.inf)["steps"] is None


def test_steps_to_goal_of_reached_seeds():
    reached = [{"goal": {"steps": 10}}, {"goal": {"steps": None}}, {"goal": {"steps": 30}}]
    np.testing.assert_array_equal(to_goal(reached), [10, np.nan, 30])


def test_groups_of_labels():
    records = [{"labels": {"core": core, "n": n}} for core in ("a", "b") for n in (1, 2)]
    assert by_cell(records, "core") == {"a": records[:2], "b": records[2:]}
    assert by_cell(records, "core", "n")["b", 2] == records[3:]
