"""metrics.csv: its rows, that resuming leaves no duplicates, and that damage is mended."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.runs.logging.loggers import CsvWriter


def write(folder, *records, config=None, after=None):
    with CsvWriter(folder, config) as writer:
        if after is not None:
            writer.start(after)
        for step, metrics in records:
            writer.write(step, metrics)
    return (folder / "metrics.csv").read_text().splitlines()


def read(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_row_for_each_step(tmp_path):
    lines = write(tmp_path, (1, {"loss": 0.5, "n": 3}), (np.int64(2), {"loss": 1.0, "n": 4}))
    assert lines == ["step,seed,loss,n", "1,0,0.5,3", "2,0,1.0,4"]


def test_row_for_each_seed(tmp_path):
    metrics = {"loss": jnp.array([0.5, 0.25]), "steps_per_second": 7.0}
    lines = write(tmp_path, (1, metrics), config={"seed": 5})
    assert lines == ["step,seed,loss,steps_per_second", "1,5,0.5,7.0", "1,6,0.25,7.0"]


def test_numbers_round_trip_exactly(tmp_path):
    numbers = {"a": np.float32(0.1), "b": 1 / 3, "c": 1e-300, "d": jnp.bfloat16(0.3)}
    write(tmp_path, (1, numbers))
    (row,) = read(tmp_path)
    assert {name: float(row[name]) for name in numbers} == {k: float(v) for k, v in numbers.items()}


def test_nonfinite_numbers(tmp_path):
    write(tmp_path, (1, {"a": np.nan, "b": np.inf, "c": -np.inf}))
    (row,) = read(tmp_path)
    assert (row["a"], row["b"], row["c"]) == ("nan", "inf", "-inf")
    assert np.isnan(float(row["a"]))


def test_later_metric_adds_column(tmp_path):
    records = (1, {"a": 1.0}), (2, {"b": 2.0, "a": 3.0}), (3, {"b": 4.0})
    assert write(tmp_path, *records) == ["step,seed,a,b", "1,0,1.0,", "2,0,3.0,2.0", "3,0,,4.0"]


def test_names_are_quoted(tmp_path):
    name = 'a, "b"\nc'
    write(tmp_path, (1, {name: 1.0}), (2, {"x": 2.0, name: 3.0}))
    first, second = read(tmp_path)
    assert (first[name], second[name], second["x"]) == ("1.0", "3.0", "2.0")


def test_rows_are_flushed_immediately(tmp_path):
    writer = CsvWriter(tmp_path)
    for step in range(3):
        writer.write(step, {"x": 1.0})
        assert len(read(tmp_path)) == step + 1
    writer.close()


def test_nothing_is_written_before_start(tmp_path):
    CsvWriter(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("after", "kept"), [(0, []), (5, []), (10, [10]), (25, [10, 20])])
def test_resuming_drops_later_rows(tmp_path, after, kept):
    seeds = {"x": [1.0, 2.0]}
    write(tmp_path, *((step, seeds) for step in (10, 20, 30)), after=0)
    write(tmp_path, (after + 1, seeds), after=after)
    expected = [(str(step), str(seed)) for step in [*kept, after + 1] for seed in range(2)]
    assert [(row["step"], row["seed"]) for row in read(tmp_path)] == expected


def test_resuming_repeats_no_row(tmp_path):
    records = [(step, {"x": step / 7, "y": [1.0, step]}) for step in (10, 20, 30)]
    whole = write(tmp_path / "whole", *records, after=0)
    write(tmp_path / "parts", *records, after=0)
    assert write(tmp_path / "parts", *records[1:], after=10) == whole


def test_columns_of_replaced_run_are_forgotten(tmp_path):
    write(tmp_path, (10, {"old": 1.0}), after=0)
    assert write(tmp_path, (10, {"new": 1.0}), after=0) == ["step,seed,new", "10,0,1.0"]


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_incomplete_last_row_is_dropped(tmp_path, cut, capsys):
    path = tmp_path / "metrics.csv"
    write(tmp_path, (1, {"x": 1.5}), (2, {"x": 2.5}))
    path.write_bytes(path.read_bytes()[:-cut])
    assert write(tmp_path, (3, {"x": 3.5}), after=2) == ["step,seed,x", "1,0,1.5", "3,0,3.5"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["\0" * 50 + "\n", "2,0\n", "two,0,1.0\n", "\n", "2,0,1,1\n"])
def test_damaged_rows_are_dropped_and_reported(tmp_path, damage, capsys):
    path = tmp_path / "metrics.csv"
    write(tmp_path, (1, {"x": 1.5}))
    path.write_text(path.read_text() + damage + "3,0,3.5\n")
    assert write(tmp_path, after=3) == ["step,seed,x", "1,0,1.5", "3,0,3.5"]
    assert capsys.readouterr().err == f"{path}: 1 damaged line(s) dropped\n"


def test_other_table_is_not_overwritten(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("name,age\nAda,36\n")
    with pytest.raises(ValueError, match=r"metrics.csv is not a table of metrics: move it"):
        write(tmp_path, after=0)
    assert path.read_text() == "name,age\nAda,36\n"


@pytest.mark.parametrize("name", ["step", "seed"])
def test_reserved_names_raise(tmp_path, name):
    with pytest.raises(ValueError, match=f"'{name}' has a reserved name"):
        write(tmp_path, (1, {name: 1.0}))
    assert list(tmp_path.iterdir()) == []
