"""`--resume`, `--from-config` and `gtrxl repeat`: the settings of a run or a file, and others."""

import json
import signal
import sys
import types

import pytest

from gtrxl_jax.cli import training as training_module
from gtrxl_jax.cli.arguments import parse_train, parse_train_offline
from gtrxl_jax.cli.main import main
from gtrxl_jax.cli.resuming import Options, OptionsWriter
from gtrxl_jax.offline import config as offline
from gtrxl_jax.online import config as online
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.preemption import RunInterrupted
from tests.bad_inputs.refusal import refused
from tests.jobs import changed, small_job

JOB = small_job(
    "gru",
    env__params={"corridor_length": 4, "penalty": "behind"},
    env__tasks=({"step_penalty": 0.5}, {"name": "CartPole-v1"}),
    env__reference_returns={"task": [0.0, 1.0]},
    agent__encoders={"0": "mlp", "1": "mlp"},
    sweep={"entropy_cost": (0.001, 0.1)},
    optimizer__clip_norm=None,
    checkpoint__best="evaluation/return",
    init_only=("core/*",),
    init_from="elsewhere",
)


def saved(folder, job, **options):
    """Save a run's config, and the options of its command, and return the folder."""
    folder.mkdir(parents=True)
    module = online if isinstance(job, online.OnlineConfig) else offline
    (folder / "config.json").write_text(module.to_json(job))
    if options:
        OptionsWriter(folder, Options(**options)).start(0)
    return folder


def test_resume_takes_every_setting(tmp_path):
    folder = saved(tmp_path / "run", JOB, log=("csv",), plots=False)
    command = parse_train(["--resume", str(folder)])
    assert command.config == JOB
    assert (command.folder, command.log, command.plots) == (folder, ("csv",), False)
    longer = parse_train(["--resume", str(folder), "--total-steps", "9000", "--plots"])
    assert longer.config == changed(JOB, total_steps=9000)
    assert longer.plots


def test_options_override_those_of_a_run(tmp_path):
    folder = saved(tmp_path / "run", JOB, log=("csv",))
    job = changed(JOB, env__reference_returns={})  # the new run reads them again

    def parsed(*options):
        return parse_train(["--from-config", str(folder), *options])

    assert parsed().config == job
    assert parsed().log == ("csv",)
    assert parsed().folder is None
    assert parsed("--core.width", "16").config == changed(job, core__width=16)
    given = parsed("--env.params", "corridor_length", "9").config.env.params
    assert given == {"corridor_length": 9, "penalty": "behind"}
    assert parsed("--env.tasks", "penalty", "behind").config.env.tasks == ({"penalty": "behind"},)
    other = parsed("--env.name", "Catch-bsuite").config.env
    assert (other.params, other.tasks, other.num_envs) == ({}, (), 8)
    swept = parsed("--sweep", "learning_rate", "0.1", "1").config.sweep
    assert swept == {"learning_rate": (0.1, 1.0)}
    lstm = parsed("--core.name", "lstm").config.core
    assert (lstm.name, lstm.width) == ("lstm", 8)


def test_settings_of_a_file(tmp_path):
    file = saved(tmp_path / "run", small_job()).joinpath("config.json").rename(tmp_path / "my.json")
    assert parse_train(["--from-config", str(file)]).config == small_job()
    fields = json.loads(file.read_text())
    del fields["core"]["layers"]  # as in a file of an older version, or written by hand
    file.write_text(json.dumps(fields))
    default = type(small_job().core)().layers
    assert parse_train(["--from-config", str(file)]).config == changed(
        small_job(), core__layers=default
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "my.json is not JSON: "),
        ("[]", "my.json is not the config of a run: it is no JSON object"),
        ("{}", 'the config is not of a run: it has no "kind"'),
        ('{"kind": "offline"}', "my.json is of an offline run: use gtrxl train-offline"),
        ('{"kind": "online", "unrol": 3}', "my.json: unknown config field 'unrol': did you mean"),
        ('{"kind": "online", "core": {"widht": 3}}', "did you mean 'core.width'"),
        ('{"kind": "online", "unroll": "3"}', "my.json: unroll must be a whole number, not '3'"),
        ('{"kind": "online", "version": "9.9"}', "was written by gtrxl_jax 9.9, and this is"),
        (
            '{"kind": "online", "core": {"name": "mine:Config"}}',
            "core.name 'mine:Config' needs the module mine: import it first, with --modules mine",
        ),
    ],
)
def test_bad_files(text, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.json").write_text(text)
    (tmp_path / "mine.py").write_text("")
    assert line in refused(tmp_path, "train", "--from-config", "my.json")


def test_bad_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "online", small_job(), log=("csv",))
    saved(tmp_path / "models" / "rate", offline.preset("debug"))
    saved(tmp_path / "mine", small_job(), log=("writer:Writer",))
    (tmp_path / "writer.py").write_text("")
    for arguments, line in {
        "train --resume nothing": "there is no run and no file nothing",
        "train --resume .": ". holds no run: name one of mine, online",
        "evaluate models": "models holds no run: name one of models/rate",
        "train --resume online --folder new": "resume online is the folder of the run: omit --fol",
        "train --resume online --preset debug": "argument --preset: not allowed with argument --re",
        "train --resume online --from-config online": "not allowed with argument --resume",
        "train --resume mine": "log 'writer:Writer' needs the module writer: import it first",
        "train-offline --resume online": "online is of an online run: use gtrxl train",
        "train-offline --resume models/rate": "it has no options.json, as the folder of gtrxl tr",
        "repeat": "Missing from gtrxl repeat: run",
        "repeat nothing": "there is no run and no file nothing",
        "repeat --seed 3": "Missing from gtrxl repeat: run",
        "repeat --seed 3 online": "the folder of the run comes first: gtrxl repeat RUN [OPTIONS]",
        "repeat online --sed 3": "Unrecognized options: --sed, 3; Perhaps you meant: --seed",
    }.items():
        assert line in refused(tmp_path, *arguments.split())
    (tmp_path / "online" / "options.json").write_text('{"log": "csv"}')
    line = refused(tmp_path, "train", "--resume", "online")
    assert line.startswith("online/options.json: log must be ")


def test_modules_of_a_folder_are_imported_only_if_named(tmp_path, monkeypatch):
    """As by `gtrxl_jax.load`: a folder may be someone else's."""
    name = f"user_{tmp_path.name}"
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text("")
    folder = saved(tmp_path / "run", small_job(env__name=f"{name}:Env"))
    parse_train(["--resume", str(folder)])
    assert name not in sys.modules
    parse_train(["--resume", str(folder), "--modules", name])
    assert sys.modules.pop(name).__file__ == str(tmp_path / f"{name}.py")


def test_offline_folder_has_models_of_its_command(tmp_path):
    job = changed(
        offline.preset("debug"),
        data__fingerprint="abc",
        model__encoders={"0": "mlp"},
        init_from="other/rate",
    )
    options = {"models": ("rate", "bc-mlp"), "log": ("csv",), "init_from": "other"}
    folder = tmp_path / "runs"
    saved(folder / "rate", job)
    OptionsWriter(folder, Options(**options)).start(0)
    resumed = parse_train_offline(["--resume", str(folder), "--total-updates", "40"])
    assert resumed.config == changed(job, total_updates=40, init_from="other")
    assert (resumed.baselines, resumed.log, resumed.folder) == (("bc-mlp",), ("csv",), folder)
    again = parse_train_offline(["--from-config", str(folder), "--data.seed", "3"])
    assert again.config == changed(job, data__fingerprint="", data__seed=3, init_from="other")
    assert (again.baselines, again.folder) == (("bc-mlp",), None)
    one = parse_train_offline(["--from-config", str(folder / "rate")])
    assert (one.config, one.baselines) == (changed(job, data__fingerprint=""), ())


@pytest.fixture
def training(monkeypatch):
    """Stop each run as it starts; the configs, folders and writers of all."""
    runs = []

    def train(trainer, *, writers, folder, profile):
        runs.append(
            (json.loads(trainer.config_json), folder, [type(writer).__name__ for writer in writers])
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(trainer.config_json)
        for writer in writers:
            writer.start(0)
            writer.close()
        raise RunInterrupted(signal.SIGTERM, 640, folder)

    monkeypatch.setattr(loop, "train", train)
    return runs


def stopped(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 75


def test_command_that_resumes_is_named(training, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stopped("train", "--preset", "debug", "--log", "csv", "--quiet", "--devices", 1)
    err = capsys.readouterr().err
    _, _, command = err.strip().partition("resume with gtrxl ")
    stopped(*command.split(), "--quiet")
    assert capsys.readouterr().err == err.replace(f"gtrxl {command}", "the same command")
    first, resumed = training
    assert first == resumed
    assert "CsvWriter" in resumed[2]
    stopped("repeat", resumed[1], "--seed", 5)
    config, folder, writers = training[2]
    assert config == first[0] | {"seed": 5}
    assert folder != resumed[1]
    assert "CsvWriter" in writers


@pytest.mark.integration  # generates data
@pytest.mark.slow
def test_models_of_an_offline_folder_resume(training, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--data.episodes", 8, "--model.memory-tokens", 2, "--quiet", "--devices", 1]
    stopped("train-offline", "--preset", "debug", *options)
    _, _, command = capsys.readouterr().err.strip().partition("resume with gtrxl ")
    stopped(*command.split(), "--quiet")
    first, resumed = training
    assert first == resumed
    assert first[1].name == "rate"
    stopped("repeat", resumed[1].parent, "--seed", 5)
    assert training[2][0] == first[0] | {"seed": 5}


def test_settings_of_an_address(tmp_path):
    """Wherever a run is taken, also for its settings alone."""
    known = parse_train(["--from-config", "bundled://tmaze"]).config
    assert known.env.name == "TMazePassive-v0"
    line = refused(tmp_path, "repeat", "bundled://tmase")
    assert "unknown bundled agent 'tmase': did you mean 'tmaze'" in line


def test_comparison_does_not_replace_a_run_or_files_of_others(tmp_path):
    run = saved(tmp_path / "run", JOB)
    with pytest.raises(ValueError, match=r"holds a run or another config.json"):
        parse_train_offline(["--preset", "debug", "--folder", str(run)])
    (other := tmp_path / "other").mkdir()
    (other / "options.json").write_text('{"log": []}')
    with pytest.raises(ValueError, match=r"options.json is not of gtrxl train-offline"):
        parse_train_offline(["--preset", "debug", "--folder", str(other)])


@pytest.mark.integration  # generates data
@pytest.mark.slow
def test_signal_at_the_end_of_a_model_keeps_the_next_from_starting(tmp_path, monkeypatch, capsys):
    names = []

    def run(trainer, folder, command, title, options):
        names.append(folder.name)
        result = types.SimpleNamespace(steps=640)
        return types.SimpleNamespace(stopped_by=signal.SIGTERM, result=result)

    monkeypatch.setattr(training_module, "_run", run)
    options = ["--data.episodes", 8, "--no-plots", "--folder", tmp_path / "run", "--devices", 1]
    stopped("train-offline", "--preset", "debug", *options)
    assert names == ["rate"]
    assert "stopped by SIGTERM at step 640" in capsys.readouterr().err
