"""Sweeps: their cells, and a small one that is run, interrupted and compared."""

import pytest

from gtrxl_jax.cli import studies
from gtrxl_jax.cli.arguments import parse_train
from gtrxl_jax.studies import grid, read_sweep, train
from gtrxl_jax.studies.settings import changes, flatten, online_config
from gtrxl_jax.studies.sweep import cell_name

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
    cells, goal = read_sweep(write(tmp_path, FILE))
    assert goal == 0.9
    first, *_, last = (cell.job for cell in cells)
    assert [cell.name for cell in cells] == [
        "gtrxl-memory_size-9-learning_rate-0.001",
        "gtrxl-memory_size-9-learning_rate-0.01",
        "lstm-learning_rate-0.001",
        "lstm-learning_rate-0.01",
    ]
    for cell in cells:
        config = cell.job
        assert (config.num_seeds, config.total_steps, config.agent.memoryless) == (2, 1000, True)
        assert config.env.params["penalty"] == "behind"
        assert config.env.tasks == ({"corridor_length": 2}, {"corridor_length": 3})
        assert config.sweep == {"gamma": (0.9, 0.99)}
    assert (first.core.name, first.core.memory_size) == ("gtrxl", 9)
    assert (last.core.name, last.optimizer.learning_rate) == ("lstm", 0.01)
    assert cells[-1].labels == {"core.name": "lstm", "optimizer.learning_rate": 0.01}


def test_sweep_without_grid_is_one_run(tmp_path):
    (cell,), _ = read_sweep(write(tmp_path, "[settings]\ncheckpoint.interval = 2\n"))
    assert (cell.name, cell.job.checkpoint.interval) == ("run", 2)


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
    (cell,), _ = read_sweep(write(tmp_path, draw))
    assert cell.job.sweep == {"learning_rate": (1e-4, 1.0), "gamma": (0.9, 0.99)}


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
            "entropy_cost = [0.1, 0.9]\n[settings]\nalgorithm.entropy-cost = 0.9",
            r"^entropy_cost in \[draw\] and algorithm.entropy_cost are both set",
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


def test_cells_are_listed(tmp_path, capsys):
    studies.sweep([str(write(tmp_path, FILE)), "--folder", "runs/b", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("runs/b/lstm-learning_rate-0.001: ")
    assert "env.params.penalty behind, " in lines[2]
    assert "optimizer.learning_rate 0.001, sweep.gamma (0.9, 0.99)" in lines[2]


@pytest.mark.parametrize("given", [["--list"], []])
def test_all_cells_are_checked_before_the_first_is_trained(given, tmp_path, capsys):
    text = """
        [grid]
        env.params = [{corridor_length = 3}, {corridor_lenght = 3}]
    """
    with pytest.raises(ValueError, match="cell corridor_lenght-3: .*'corridor_length'"):
        studies.sweep([str(write(tmp_path, text)), "--folder", str(tmp_path / "s"), *given])
    assert not (tmp_path / "s").exists()


SETTINGS = {
    "": {},
    "--preset paper --core.name lstm --algorithm.name ppo": {
        "preset": "paper",
        "core.name": "lstm",
        "algorithm.name": "ppo",
    },
    "--preset debug --core-preset small --env.params corridor_length 9 penalty behind": {
        "preset": "debug",
        "core_preset": "small",
        "env.params.corridor_length": 9,
        "env.params.penalty": "behind",
    },
    "--env.name CartPole-v1 --core.name mamba2 --core.heads 2 --agent.no-normalize": {
        "env.name": "CartPole-v1",
        "core.name": "mamba2",
        "core.heads": 2,
        "agent.normalize": False,
    },
    "--env.name TMazePassive-v0 CartPole-v1 --total-steps 1e6": {
        "env.name": ["TMazePassive-v0", "CartPole-v1"],
        "total-steps": 1e6,
    },
    "--env.tasks corridor_length 2 --env.tasks corridor_length 3 --optimizer.learning-rate 1": {
        "env.tasks": [{"corridor_length": 2}, {"corridor_length": 3}],
        "optimizer.learning_rate": 1,
    },
    "--algorithm.name vmpo --sweep epsilon_alpha 0.001 0.1 --init-only core/* --init-from a": {
        "algorithm.name": "vmpo",
        "sweep": {"epsilon_alpha": [0.001, 0.1]},
        "init_only": ["core/*"],
        "init_from": "a",
    },
}
"""The arguments of `gtrxl train`, and the settings that mean the same."""


@pytest.mark.parametrize("command", SETTINGS)
def test_settings_mean_what_the_options_of_the_command_do(command):
    assert online_config(SETTINGS[command]) == parse_train(command.split()).config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corre.name": "lstm"}, "unknown config field 'corre': did you mean 'core'"),
        ({"core.nam": "lstm"}, "unknown config field 'core.nam': did you mean 'core.name'"),
        ({"core.name": "lstm", "core.heads": 2}, "core lstm has no setting heads, unlike "),
        ({"algorithm.name": "vmpo", "algorithm.epochs": 0}, "algorithm.epochs must be at least 1"),
        ({"unroll": "x"}, "unroll must be a whole number, not 'x'"),
        ({"unroll": 1.5}, "unroll must be a whole number, not 1.5"),
        ({"unroll.x": 3}, "unroll must be a whole number, not {'x': 3}"),
        ({"preset": "papre"}, "unknown preset 'papre'"),
        ({"env.name": "no_such_module:Env"}, "there is no module no_such_module"),
        ({"agent.encoder": "no_such_module:My"}, "there is no module no_such_module"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        online_config(settings)


def test_grid_of_python():
    cells = grid({"core": {"name": "lstm"}}, {"unroll": [8, 16]}, seeds=3)
    assert [cell.labels for cell in cells] == [{"unroll": 8}, {"unroll": 16}]
    assert {(cell.seeds, cell.job.num_seeds, cell.job.core.name) for cell in cells} == {
        (3, 3, "lstm")
    }


def test_changes_have_the_names_of_settings():
    settings = {"core.name": "lstm", "core.width": 8, "env.params.corridor_length": 9}
    found = changes(online_config(settings))
    assert {name: found[name] for name in settings} == settings
    assert flatten({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "d": [2]}


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
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_sweep_skips_finished_cells_and_compares(workers, tmp_path, capfd):
    arguments = [str(write(tmp_path, SMALL)), "--folder", str(tmp_path / "s")]
    arguments += ["--workers", workers]
    studies.sweep(arguments)
    shown = capfd.readouterr().out
    assert "0 of 2 are finished already" in shown
    assert "2/2  corridor_length-3: " in shown
    assert "| TMazePassive-v0, corridor_length 3 | lstm |" in shown
    assert "| all 2 | lstm | " in shown
    results = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/result.json")}
    assert len(results) == 2
    assert (tmp_path / "s" / "comparison_ranking.png").exists()
    studies.sweep(arguments)
    assert "2 of 2 are finished already" in capfd.readouterr().out
    assert results == {path: path.stat().st_mtime_ns for path in results}
    changed, _ = read_sweep(write(tmp_path, SMALL.replace("[grid]", "seed = 5\n[grid]")))
    with pytest.raises(ValueError, match="holds another run .seed"):
        train(changed, tmp_path / "s")
