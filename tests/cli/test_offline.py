"""`gtrxl train-offline` and the evaluation of its runs, from the command line."""

import json
import types

import pytest

from gtrxl_jax import loading
from gtrxl_jax.cli.arguments import parse_train_offline, with_model
from gtrxl_jax.cli.main import main
from gtrxl_jax.loading import load
from gtrxl_jax.offline.config import PRESETS, from_json, preset, to_json
from gtrxl_jax.offline.cql import CQLConfig
from gtrxl_jax.offline.environments import make_stream
from gtrxl_jax.plots import report
from gtrxl_jax.runs.logging.writers import read_metrics
from tests.jobs import changed
from tests.nn.models import Shallow


@pytest.mark.integration
@pytest.mark.slow
def test_train_compare_and_evaluate_models(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    small = ["--total-updates", "2", "--updates-per-iteration", "1", "--evaluation.episodes", "4"]
    small += ["--devices", "1", "--data.validation", "0.25"]
    command = ["train-offline", "--preset", "debug", "--baselines", "bc-mlp", *small]
    main([*command, "--folder", str(folder)])
    shown = capsys.readouterr()
    assert shown.out.count("success/16") == 2
    assert shown.err.count("  validation ") >= 2
    for name in ("rate", "bc-mlp"):
        result = json.loads((folder / name / "result.json").read_text())
        assert set(result["evaluation"]) >= {"success/8", "success/16"}
    assert (folder / "success_by_length.png").stat().st_size > 5000
    assert (folder / "loss.png").exists()
    for name in ("attention.png", "attention_over_episode.png", "episode.gif"):
        assert (folder / "rate" / name).stat().st_size > 1000

    main([*command, "--folder", str(folder)])
    assert capsys.readouterr().out.count("finished already") == 2

    main(["evaluate", str(folder / "bc-mlp"), "--episodes", "3"])
    assert "3 episodes" in capsys.readouterr().out
    compared = (folder / "loss.png").read_bytes()
    with monkeypatch.context() as inside:
        inside.chdir(folder / "bc-mlp")
        main(["evaluate", ".", "--episodes", "3", "--plots"])
    assert (folder / "loss.png").read_bytes() == compared
    assert (folder / "bc-mlp" / "loss.png").exists()
    capsys.readouterr()
    other = ["--env.params", "corridor_length", "9", "--evaluation.target-return", "0.5"]
    main(["evaluate", str(folder / "rate"), "--episodes", "3", *other])
    out = capsys.readouterr().out
    assert out.startswith("success ")
    assert " | in TMazePassive-v0, corridor_length 9, target_return 0.5 | 3 episodes" in out
    (line,) = (folder / "rate" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line)["target_return"] == 0.5
    assert "max_steps_in_episode" not in json.loads(line)["params"]  # of the training length
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder / "rate"), "--core.memory-size", "3"])
    assert "model rate has no setting memory_size: omit core.mem" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder / "rate"), "--forget", "3"])
    assert "forget is a setting of online runs: omit it" in capsys.readouterr().err

    with pytest.raises(SystemExit) as exit_:
        main([*command, "--folder", str(folder), "--unroll", "5"])
    assert exit_.value.code == 2
    assert "another run" in capsys.readouterr().err


def test_plots_of_a_model_leave_those_of_all_models(tmp_path, monkeypatch):
    loaded = types.SimpleNamespace(
        config=preset("debug"), params_per_seed=[()], step=1, environment=("", {})
    )
    loaded.policy, loaded.tasks, loaded.params = None, (), ()
    monkeypatch.setattr(loading, "evaluate", lambda *_, **__: ({}, loaded))
    monkeypatch.setattr(loading, "keep_evaluation", lambda *_, **__: tmp_path)
    drawn = []
    monkeypatch.setattr(report, "draw_offline", lambda *given: drawn.append(given))
    monkeypatch.setattr(report, "draw_episodes", lambda *_: [])
    folder = tmp_path / "rate"
    folder.mkdir()
    (folder / "config.json").write_text(to_json(loaded.config))
    main(["evaluate", str(folder), "--plots"])
    assert drawn == [(folder, [folder])]


@pytest.mark.integration
@pytest.mark.slow  # tests/offline/test_actor_critic.py is quick
def test_critics_train_resume_and_export(tmp_path, capsys):
    folder, to = tmp_path / "run", tmp_path / "export"
    command = ["train-offline", "--preset", "debug", "--model.name", "bc-mlp", "--baselines"]
    command += ["--algorithm.name", "cql", "--algorithm.alpha", "2", "--algorithm.head-width", "8"]
    command += ["--updates-per-iteration", "1", "--evaluation.episodes", "4", "--devices", "1"]
    command += ["--data.validation", "0.25", "--no-plots", "--folder", str(folder)]
    main([*command, "--total-updates", "1"])
    main([*command, "--total-updates", "2"])
    assert "td_error/validation" in read_metrics(folder / "bc-mlp" / "metrics.jsonl")
    main(["export", str(folder / "bc-mlp"), "--to", str(to)])
    exported = load(to)
    assert exported.config.algorithm == CQLConfig(alpha=2.0, head_width=8)
    assert not exported.policy.is_conditioned
    with pytest.raises(SystemExit):
        main([*command[:7], "td3-bc", *command[-2:]])
    assert "td3-bc needs continuous actions" in capsys.readouterr().err


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    config = preset(name)
    data = ["--data.path", "data"] if config.data.stream else []
    config = changed(config, data__path="data" if data else "")
    assert parse_train_offline(["--preset", name, *data]).config == config


def test_parameters_of_preset_belong_to_its_environment():
    arguments = ["--preset", "minigrid", "--data.path", "data"]
    smaller = parse_train_offline([*arguments, "--env.params", "size", "9"]).config.env
    assert smaller.params == preset("minigrid").env.params | {"size": 9}
    other = parse_train_offline([*arguments, "--env.name", "TwoColors-v0"]).config.env
    assert (other.name, other.params) == ("TwoColors-v0", {})


def test_model_preset_keeps_other_fields():
    config = parse_train_offline(["--model-preset", "tmaze", "--model.valve", "gru"]).config
    assert config.model.layers == 8
    assert config.model.valve == "gru"
    assert config.segments == preset("default").segments


def test_dataset_alone_has_no_settings_of_environment():
    config = parse_train_offline(["--env.name", "", "--data.path", "data"]).config
    assert (config.env.name, config.data.path) == ("", "data")
    assert config.evaluation.lengths == ()
    assert not config.curriculum


@pytest.mark.parametrize("name", ["CartPole-v1", "gymnasium:Pendulum-v1"])
def test_another_environment_has_no_lengths(name):
    """Those of the default job, nor its curriculum, unless they are given or it has lengths too."""
    other = ["--env.name", name, "--data.path", "data"]
    config = parse_train_offline(other).config
    assert (config.evaluation.lengths, config.curriculum) == ((), False)
    config = parse_train_offline([*other, "--evaluation.lengths", "9", "--curriculum"]).config
    assert (config.evaluation.lengths, config.curriculum) == ((9,), True)
    default = preset("default")
    config = parse_train_offline(["--env.name", "AssociativeRetrieval-v0"]).config
    assert config.evaluation == default.evaluation
    assert config.curriculum == default.curriculum


def test_entries_can_be_removed(tmp_path):
    """An option of a dict that is given without entries empties it; another environment as well."""
    data = ["--data.path", "data"]
    env = [*data, "--env.name", "gymnasium:Pendulum-v1"]
    config = parse_train_offline([*env, "--env.wrappers", "limit", "50"]).config
    path = tmp_path / "config.json"
    path.write_text(to_json(config))

    def wrappers(*arguments):
        return parse_train_offline(["--from-config", str(path), *arguments]).config.env.wrappers

    assert wrappers() == {"limit": 50}
    assert wrappers("--env.wrappers", "stack", "2") == {"limit": 50, "stack": 2}
    assert wrappers("--env.wrappers") == {}
    assert wrappers("--env.name", "gymnasium:Acrobot-v1") == {}
    assert wrappers("--env.name", "CartPole-v1") == {}


def test_noise_is_for_models_with_memory_tokens():
    command = parse_train_offline(["--evaluation.memory-noise", "--baselines", "dt", "rmt"])
    noisy = {
        name: with_model(command.config, name).evaluation.memory_noise
        for name in ("rate", "dt", "rmt")
    }
    assert noisy == {"rate": True, "dt": False, "rmt": True}
    with pytest.raises(ValueError, match="memory_noise replaces memory tokens, and model.name dt"):
        parse_train_offline(["--evaluation.memory-noise", "--model.name", "dt", "--baselines"])


def test_model_of_ones_own_has_its_settings():
    name = "tests.nn.models:Shallow"
    command = parse_train_offline(["--model.name", name, "--model.hidden", "5"])
    assert command.config.model == Shallow(name=name, hidden=5)
    assert from_json(to_json(command.config)) == command.config


def test_task_parameters_may_be_booleans():
    arguments = ["--env.name", "MiniGrid-Memory", "--env.params", "random_length", "True"]
    config = parse_train_offline(arguments).config
    assert from_json(to_json(config)) == config
    assert make_stream(config).params.random_length is True


def test_task_parameters_may_be_strings():
    arguments = ["--env.params", "step_penalty", "0.5", "penalty", "behind"]
    config = parse_train_offline(arguments).config
    assert config.env.params == {"step_penalty": 0.5, "penalty": "behind"}
    assert from_json(to_json(config)) == config
    assert make_stream(config, 30).params.penalty == "behind"
