import json
import time

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.runs.logging.writers import (
    JsonLinesWriter,
    MetricWriter,
    Writers,
    read_metrics,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write(path, *records):
    with JsonLinesWriter(path) as writer:
        for step, metrics in records:
            writer.write(step, metrics)


def test_lines_are_json_with_step_and_time(path):
    before = time.time()
    write(path, (1, {"loss": 0.5, "n": 3}), (np.int64(2), {"loss": jnp.float32(0.25)}))
    first, second = map(json.loads, path.read_text().splitlines())
    assert before <= first.pop("time") <= second.pop("time") <= time.time()
    assert first == {"step": 1, "loss": 0.5, "n": 3}
    assert second == {"step": 2, "loss": 0.25}


def test_round_trip(path):
    write(
        path,
        (10, {"loss": 0.1, "seeds": jnp.arange(3.0), "half": jnp.bfloat16(0.5)}),
        (20, {"loss": np.float32(0.1), "seeds": [np.nan, np.inf, -np.inf], "half": True}),
    )
    read = read_metrics(path)
    assert set(read) == {"step", "time", "loss", "seeds", "half"}
    assert read["step"].dtype == np.int64
    np.testing.assert_array_equal(read["step"], [10, 20])
    np.testing.assert_array_equal(read["loss"], [0.1, np.float32(0.1)])
    np.testing.assert_array_equal(read["seeds"], [[0, 1, 2], [np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(read["half"], [0.5, 1.0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_valid_json(path, value):
    write(path, (1, {"x": value, "xs": jnp.array([value, 1.0])}))

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    np.testing.assert_array_equal(read_metrics(path)["x"], [value])


def test_lines_are_flushed_immediately(path):
    writer = JsonLinesWriter(path)
    for step in range(3):
        writer.write(step, {"x": step})
        np.testing.assert_array_equal(read_metrics(path)["x"], np.arange(step + 1))
    writer.close()


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_incomplete_last_line_is_dropped(path, cut):
    write(path, (1, {"x": 1.0}), (2, {"x": 2.0}))
    path.write_bytes(path.read_bytes()[:-cut])
    np.testing.assert_array_equal(read_metrics(path)["step"], [1])
    write(path, (3, {"x": 3.0}))
    np.testing.assert_array_equal(read_metrics(path)["step"], [1, 3])


def test_lines_merge_by_step_with_nan(path):
    write(path, (1, {"a": 1.0}), (1, {"b": [1.0, 2.0]}), (2, {"a": 3.0}))
    read = read_metrics(path)
    np.testing.assert_array_equal(read["step"], [1, 2])
    np.testing.assert_array_equal(read["a"], [1, 3])
    np.testing.assert_array_equal(read["b"], [[1, 2], [np.nan, np.nan]])


def test_resumed_run_replaces_later_rows(path):
    write(path, *((step, {"x": step}) for step in (10, 20, 30, 40)))
    write(path, (20, {"x": -20}), (25, {"x": -25}))
    read = read_metrics(path)
    np.testing.assert_array_equal(read["step"], [10, 20, 25])
    np.testing.assert_array_equal(read["x"], [10, -20, -25])


def test_empty_file_has_no_steps(path):
    write(path)
    assert {name: list(values) for name, values in read_metrics(path).items()} == {"step": []}


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"loss": 1}', ""])
def test_reader_names_invalid_line(path, line):
    write(path, (1, {"x": 1.0}))
    with open(path, "a") as file:
        file.write(line + "\n" + '{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2, is not a record"):
        read_metrics(path)


def test_changing_number_of_seeds_raises(path):
    write(path, (1, {"x": [1.0, 2.0]}), (2, {"x": [1.0, 2.0, 3.0]}))
    with pytest.raises(ValueError, match="'x' changes its number of seeds"):
        read_metrics(path)


DAMAGE = {
    "a hole at the end": b"\0" * 4096,
    "a hole in a line": b'{"step": 3, "ti\0\0\0\0\0"x": 1}\n',
    "a hole, then a line": b"\0" * 100 + b'\n{"step": 30, "x": 3.0}\n',
    "another text": b"lost+found\n",
    "nested without end": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_lines_are_dropped_and_reported(path, damage, capsys):
    write(path, (10, {"x": 1.0}), (20, {"x": 2.0}))
    intact = path.read_bytes()
    path.write_bytes(intact + DAMAGE[damage])
    with JsonLinesWriter(path) as writer:
        writer.start(20)
        assert path.read_bytes() == intact
        writer.write(30, {"x": 3.0})
    assert read_metrics(path)["step"].tolist() == [10, 20, 30]
    assert capsys.readouterr().err == (
        f"{path}: 1 damaged line(s) dropped, as a power failure leaves them; a run writes what "
        "follows its checkpoint again\n"
    )


def test_lines_after_damage_are_kept(path, capsys):
    write(path, (10, {"x": 1.0}), (20, {"x": 2.0}), (30, {"x": 3.0}))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"\0" * len(second) + b"\n" + third)
    with JsonLinesWriter(path) as writer:
        writer.start(40)
        writer.write(50, {"x": 5.0})
    assert read_metrics(path)["step"].tolist() == [10, 30, 50]
    dropped, lost = capsys.readouterr().err.splitlines()
    assert "1 damaged line(s) dropped" in dropped
    assert lost == f"{path}: the metrics between steps 30 and 40 are lost"


def test_writers_combine_several_writers(tmp_path):
    closed = []

    class Probe(MetricWriter):
        def write(self, step, metrics):
            assert (step, metrics) == (7, {"x": 1.0})

        def close(self):
            closed.append(self)

    first, second = Probe(), Probe()
    with Writers(first, second, JsonLinesWriter(tmp_path / "m.jsonl")) as writer:
        writer.write(7, {"x": jnp.float32(1.0)})
    assert closed == [first, second]
    np.testing.assert_array_equal(read_metrics(tmp_path / "m.jsonl")["x"], [1.0])
