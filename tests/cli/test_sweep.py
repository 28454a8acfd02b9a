"""Sweeps: their cells, and a small one that is run, interrupted and compared."""

import signal
import subprocess
import sys

import pytest

from gtrxl_jax.cli import studies, sweep
from gtrxl_jax.cli.sweep import cell_name, read_sweep, run_sweep

FILE = """
seeds = 2
goal = 0.9
[settings]
preset = "debug"
total_steps = 1_000
agent.memoryless = true
env.params.penalty = "behind"
env.tasks = [{corridor_length = 2}, {corridor_length = 3}]
[grid]
core = [{name = "gtrxl", memory_size = 9}, {name = "lstm"}]
optimizer.learning_rate = [1e-3, 1e-2]
[draw]
gamma = [0.9, 0.99]
"""


def write(folder, text):
    path = folder / "a.toml"
    path.write_text(text)
    return path


def test_cells_of_grid(tmp_path):
    planned = read_sweep(write(tmp_path, FILE))
    assert planned.goal == 0.9
    first, *_, last = planned.cells
    assert [cell.name for cell in planned.cells] == [
        "gtrxl-memory_size-9-learning_rate-0.001",
        "gtrxl-memory_size-9-learning_rate-0.01",
        "lstm-learning_rate-0.001",
        "lstm-learning_rate-0.01",
    ]
    for cell in planned.cells:
        config = cell.config
        assert (config.num_seeds, config.total_steps, config.agent.memoryless) == (2, 1000, True)
        assert config.env.params["penalty"] == "behind"
        assert config.env.tasks == ({"corridor_length": 2}, {"corridor_length": 3})
        assert config.sweep == {"gamma": (0.9, 0.99)}
    assert (first.config.core.name, first.config.core.memory_size) == ("gtrxl", 9)
    assert (last.config.core.name, last.config.optimizer.learning_rate) == ("lstm", 0.01)


def test_sweep_without_grid_is_one_run(tmp_path):
    (cell,) = read_sweep(write(tmp_path, "[settings]\ncheckpoint.interval = 2\n")).cells
    assert (cell.name, cell.config.checkpoint.interval) == ("run", 2)


def test_names_of_cells_differ_in_the_signs_of_exponents():
    names = [cell_name({"algorithm.name": "ppo", "env.params.x": x}) for x in (1e30, 1e-30, -2)]
    assert names == ["ppo-x-1e+30", "ppo-x-1e-30", "ppo-x--2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [", "is not TOML"),
        ("seed = 1", "unknown field in .*: did you mean 'seeds'"),
        ("[grid]\ncore.name = 'lstm'", "grid.core.name must be a list of values, not 'lstm'"),
        ("[grid]\ncore.name = ['lstn']", "cell lstn: unknown core.name 'lstn'"),
        ("[grid]\ncore.name = ['lstm', 'lstm']", "two cells of the grid have the same name, lstm"),
        ("[settings]\nunrol = 3", "cell run: .*unrol"),
        ("[settings]\nnum_seeds = 3", r"num_seeds in \[settings\]: use `seeds = 3` at the top"),
        ("[settings]\nfolder = 'x'", r"folder in \[settings\]: .* use the command's --folder"),
        ("[grid]\nfolder = ['x', 'y']", r"folder in \[grid\]: .* use the command's --folder"),
        ("[settings]\nhelp = true", r"help in \[settings\]: it is no option of a run"),
        ("[settings]\ncore = 'lstm'", r"core in \[settings\] .*: use core.name = \.\.\."),
        ("[grid]\ncore = ['gtrxl', 'lstm']", r"core in \[grid\] .*: use core.name = \[\.\.\.\]"),
        ("[grid]\noptimizer = [1e-3]", r"use optimizer.learning_rate = \[\.\.\.\]"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_sweep(write(tmp_path, text))


def test_draws_may_be_named_as_options_are(tmp_path):
    draw = "[draw]\noptimizer.learning_rate = [1e-4, 1]\nalgorithm.gamma = [0.9, 0.99]"
    (cell,) = read_sweep(write(tmp_path, draw)).cells
    assert cell.config.sweep == {"learning_rate": (1e-4, 1.0), "gamma": (0.9, 0.99)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = 1e-4", r"^learning_rate in \[draw\] must be \[low, high\], not 0.0001"),
        ("gamma = [0.5, 0.6, 0.7]", r"^gamma in \[draw\] must be \[low, high\], not \[0.5, 0.6"),
        ("algorithm.gamma = ['a', 'b']", r"^algorithm.gamma in \[draw\] must be \[low, high\]"),
        ("gamma = [0.9, 0.5]", "sweep.gamma must be .low, high. with 0 < low < high"),
        ("gamma = [0.5, 0.9]\nalgorithm.gamma = [0.5, 0.9]", r"^gamma is twice in \[draw\]"),
        ("agent.encoder_width = [1, 2]", "hyperparameter in sweep 'agent.encoder_width'"),
        (
            "gamma = [0.5, 0.9]\n[grid]\nalgorithm.gamma = [0.9]",
            r"^gamma in \[draw\] and algorithm.gamma are both set: omit one of them",
        ),
        (
            "learning_rate = [1e-4, 1e-3]\n[settings]\noptimizer.learning_rate = 1e-3",
            "sweep.learning_rate and optimizer.learning_rate are both set: omit one of them",
        ),
    ],
)
def test_invalid_draws_are_rejected(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_sweep(write(tmp_path, f"[draw]\n{text}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goal = '0.9'", "goal in .* must be a number, not '0.9'"),
        ("goal = true", "goal in .* must be a number, not True"),
        ("seeds = [0, 1]", r"seeds in .* must be a whole number, got \[0, 1\]"),
        ("seeds = 1.5", "seeds in .* must be a whole number, got 1.5"),
        ("seeds = 0", "seeds in .* must be at least 1, got 0"),
        ("settings = 5", r"settings in .* must be a table, such as \[settings\]"),
        ("grid = [1, 2]", r"grid in .* must be a table, such as \[grid\]"),
        ("draw = 1", r"draw in .* must be a table, such as \[draw\]"),
    ],
)
def test_fields_of_wrong_type_are_rejected(tmp_path, text, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_sweep(write(tmp_path, text))


def test_commands_are_listed(tmp_path, capsys):
    studies.sweep([str(write(tmp_path, FILE)), "--folder", "runs/b", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("gtrxl train --preset debug --total-steps 1000 --agent.memoryless")
    assert "--env.tasks corridor_length 2 --env.tasks corridor_length 3" in lines[2]
    assert lines[2].endswith("--folder runs/b/lstm-learning_rate-0.001 --no-pictures")


SMALL = """
seeds = 2
[settings]
preset = "debug"
core.name = "lstm"
core.width = 8
devices = 1
total_steps = 600
[grid]
env.params.corridor_length = [2, 3]
"""


@pytest.mark.integration
def test_sweep_skips_finished_cells_and_compares(tmp_path, capsys):
    arguments = [str(write(tmp_path, SMALL)), "--folder", str(tmp_path / "s"), "--workers", "2"]
    studies.sweep(arguments)
    shown = capsys.readouterr().out
    assert "0 of 2 cells are finished already" in shown
    assert "2 of 2 cells done" in shown
    assert "| TMazePassive-v0, corridor_length 3 | lstm |" in shown
    assert "| all 2 | lstm | " in shown
    results = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/result.json")}
    assert len(results) == 2
    assert (tmp_path / "s" / "comparison_ranking.png").exists()
    studies.sweep(arguments)
    assert "2 of 2 cells are finished already" in capsys.readouterr().out
    assert results == {path: path.stat().st_mtime_ns for path in results}
    changed = read_sweep(write(tmp_path, SMALL.replace("[grid]", "seed = 5\n[grid]")))
    with pytest.raises(ValueError, match="holds another run .seed"):
        run_sweep(changed, tmp_path / "s", 1)


def fake(code):
    """Return a command that announces itself by a file and ends with a code, or sleeps."""
    return lambda cell, folder: [
        sys.executable,
        "-c",
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"open({str(folder / cell.name)!r} + '.begun', 'w').close()\n"
        f"time.sleep({60 if code is None else 0})\nsys.exit({code})",
    ]


def test_failed_cells_are_named(tmp_path, monkeypatch):
    planned = read_sweep(write(tmp_path, "[grid]\ncore.name = ['lstm', 'gru']"))
    monkeypatch.setattr(sweep, "command", fake(1))
    assert sorted(run_sweep(planned, tmp_path, 2)) == ["gru", "lstm"]
    assert {path.name for path in tmp_path.glob("*.begun")} == {"lstm.begun", "gru.begun"}


def test_interruption_stops_all_cells(tmp_path, monkeypatch):
    planned = read_sweep(write(tmp_path, "[grid]\ncore.name = ['lstm', 'gru', 'mingru']"))
    monkeypatch.setattr(sweep, "command", fake(None))
    processes = []
    original = subprocess.Popen
    monkeypatch.setattr(
        sweep.subprocess,
        "Popen",
        lambda *a, **k: processes.append(original(*a, **k)) or processes[-1],
    )

    def interrupt(_):
        if len(list(tmp_path.glob("*.begun"))) == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sweep.time, "sleep", interrupt)
    with pytest.raises(SystemExit) as stopped:
        run_sweep(planned, tmp_path, 2)
    assert stopped.value.code == 75
    assert [process.returncode for process in processes] == [75, 75]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
