"""Training on a dataset without an environment."""

import json
import shutil

import gymnasium
import jax
import numpy as np
import pytest

from gtrxl_jax import load, zero_timestep
from gtrxl_jax.cli.main import main
from gtrxl_jax.data import dataset_spaces, minari
from gtrxl_jax.loading import with_settings
from gtrxl_jax.offline.config import from_json, preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.runs.directory import read_config_text
from gtrxl_jax.runs.loop import train
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.validation import validate
from tests.data.sets import make_set
from tests.jobs import changed

SPACES = dataset_spaces(
    gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64),
    gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
)
ALONE = changed(
    preset("debug"),
    env__name="",
    evaluation__lengths=(),
    model__name="bc-mlp",
    total_updates=2,
    updates_per_iteration=2,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "set"
    minari.save(make_set(spaces=SPACES), path)
    return path


@pytest.fixture(scope="module")
def command(data, tmp_path_factory):
    """The command of a run, whose data are then removed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    shutil.copytree(data, folder.parent / "set")
    command = (
        "train-offline --preset debug --model.name bc-mlp --baselines --total-updates 2 "
        f"--updates-per-iteration 2 --data.path {folder.parent / 'set'} --folder {folder}"
    )
    return [*command.split(), "--env.name", ""], folder


@pytest.fixture(scope="module")
def run(command):
    main(command[0])
    return command[1] / "bc-mlp"


def test_run_says_that_it_was_not_evaluated(run, command, capsys):
    record = json.loads((run / "result.json").read_text())
    assert record["evaluation"] == {}
    assert record["evaluated"] is False
    card = (run / "README.md").read_text()
    assert "\n# bc-mlp, trained offline for set\n" in card
    assert "It was not evaluated, since the run has no environment." in card
    assert np.isfinite(json.loads((run / "metrics.jsonl").read_text())["loss"])
    assert (run.parent / "loss.png").exists()
    main(command[0])
    assert "finished already: not evaluated" in capsys.readouterr().out


def test_loaded_run_acts_without_data(run, monkeypatch):
    shutil.move(run.parents[1] / "set", run.parents[1] / "away")
    loaded = load(run)
    shutil.move(run.parents[1] / "away", run.parents[1] / "set")
    returns = make_set(spaces=SPACES).rewards.sum(axis=1)
    np.testing.assert_allclose(loaded.policy.target_return, returns.max(), rtol=1e-6)
    trainer = loaded.trainer
    assert (trainer.observation_space, trainer.action_space) == (SPACES.observation, SPACES.action)
    timestep = zero_timestep(trainer.observation_space, trainer.action_space, 3)
    _, action, _ = loaded.act(loaded.init(batch_size=3), timestep, jax.random.key(0))
    assert action.shape == (3, 2)
    assert (abs(action) <= 1).all()


def test_target_return_of_a_model_without_returns_is_refused(run):
    line = "target_return has no effect on a run of algorithm.name imitation with model.name bc-mlp"
    with pytest.raises(ValueError, match=line):
        with_settings(load(run), target_return=1.0)


@pytest.mark.parametrize("arguments", [["evaluate"], ["collect", "x", "--policy"]])
def test_acting_in_environment_requires_one(run, capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, str(run)])
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    remedy = "name one with env.name" if arguments == ["evaluate"] else "env.name must be given"
    assert remedy in message


def test_a_run_without_an_environment_is_evaluated_once(data, monkeypatch):
    evaluated = []
    evaluate = Programs.evaluate
    monkeypatch.setattr(Programs, "evaluate", lambda *of: [evaluated.append(of), evaluate(*of)][1])
    train(OfflineTrainer(changed(ALONE, data__path=str(data), devices=1)))
    assert len(evaluated) == 1


def test_streamed_run_matches_in_memory_run(data):
    runs = [
        train(OfflineTrainer(changed(ALONE, data__path=str(data), data__stream=stream, devices=1)))
        for stream in (False, True)
    ]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        *(one.params_per_seed for one in runs),
    )
    assert runs[0].result.evaluation == {}


@pytest.mark.parametrize("stream", [False, True])
def test_run_resumes_on_its_data_only(data, stream, tmp_path):
    """Wherever they are: data are known by their contents."""
    here, elsewhere, others = (tmp_path / name for name in ("here", "elsewhere", "others"))
    shutil.copytree(data, here)
    minari.save(
        make_set(spaces=SPACES).replace(actions=make_set(spaces=SPACES).actions / 2), others
    )

    def resume(path, updates=4):
        config = changed(ALONE, data__path=str(path), data__stream=stream, devices=1)
        trainer = OfflineTrainer(changed(config, total_updates=updates))
        return train(trainer, folder=tmp_path / "run")

    resume(here, 2)
    with pytest.raises(ValueError, match=f"run on other data than {others}, whose contents differ"):
        resume(others)
    shutil.move(here, elsewhere)
    assert resume(elsewhere).result.steps == 4
    shutil.rmtree(elsewhere)
    shutil.copytree(others, elsewhere)
    with pytest.raises(ValueError, match="run on other data"):
        resume(elsewhere, 6)
    # A config that has the fingerprint, such as that in the folder, is held to it.
    trainer = OfflineTrainer(from_json(read_config_text(tmp_path / "run")))
    with pytest.raises(ValueError, match=f"the data {elsewhere} are not the run's data"):
        next(trainer.feed(1, trainer.mesh()))


def test_trajectories_of_a_run_are_known():
    trainer = OfflineTrainer(ALONE, make_set(spaces=SPACES))
    recorded = from_json(trainer.config_json)
    assert recorded.data.fingerprint
    assert OfflineTrainer(recorded, make_set(spaces=SPACES)).config_json == trainer.config_json
    other = OfflineTrainer(recorded, make_set(spaces=SPACES, seed=1))
    with pytest.raises(ValueError, match="the data given are not the run's data"):
        next(other.feed(1, other.mesh()))


def test_trajectories_bring_their_spaces():
    trainer = OfflineTrainer(ALONE, make_set(spaces=SPACES))
    assert trainer.environment == ("", {})
    again = OfflineTrainer(trainer.config)
    assert again.action_space == SPACES.action
    with pytest.raises(ValueError, match="env.name and data.path are both empty"):
        OfflineTrainer(ALONE)


@pytest.mark.usefixtures("unchecked")
def test_other_spaces_than_recorded_raise(data):
    config = OfflineTrainer(ALONE, make_set()).config
    with pytest.raises(ValueError, match="but the run has .*: choose a matching pair"):
        train(OfflineTrainer(changed(config, data__path=str(data))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("evaluation__lengths", (8,)),
        ("evaluation__interval", 2),
        ("checkpoint__best", "evaluation/success"),
        ("env__params", {"corridor_length": 3}),
        ("env__wrappers", {"limit": 9}),
    ],
)
def test_settings_of_environment_are_refused(field, value):
    validate(ALONE)
    name = field.replace("__", ".")
    with pytest.raises(ValueError, match=f"{name} requires an environment: set env.name, or omit"):
        validate(changed(ALONE, **{field: value}))
