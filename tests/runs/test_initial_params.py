"""New runs start from the parameters of others: all of them, or those that match a pattern."""

import shutil

import jax
import numpy as np
import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.arrays import by_name
from gtrxl_jax.runs.directory import params_path
from gtrxl_jax.runs.params import initial_params, write_params
from gtrxl_jax.runs.programs import Programs
from tests.comparison import assert_same
from tests.jobs import changed, small_job
from tests.saved import save

JOB = small_job("lstm", devices=1, seed=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a run, and its parameters."""
    folder = tmp_path_factory.mktemp("source")
    return folder, save(folder, OnlineTrainer(JOB))[0]


def starting_from(folder, **changes):
    return OnlineTrainer(changed(JOB, init_from=str(folder), **changes))


@pytest.mark.integration
def test_run_starts_from_parameters_alone(source):
    """Whatever else the state has is that of a run without them."""
    state, fresh = (
        jax.device_get(Programs(trainer).init())
        for trainer in (starting_from(source[0]), OnlineTrainer(JOB))
    )
    assert_same(state.params, source[1])
    assert_same(state.learner.algorithm, source[1])  # the target network
    for name in ("optimizer", "popart", "step", "hyperparameters"):
        assert_same(getattr(state.learner, name), getattr(fresh.learner, name))
    multipliers = (of.learner.trainable["multipliers"] for of in (state, fresh))
    assert_same(*multipliers)


def test_pattern_selects_parameters(source, caplog):
    folder, params = source
    given = initial_params(starting_from(folder, init_only=("core/*", "encoder/*kernel")))
    named = by_name(params)
    chosen = [n for n in named if n.startswith("core/") or n[:8] + n[-6:] == "encoder/kernel"]
    assert set(given) == set(chosen)
    assert 1 < len(chosen) < len(named)
    assert_same(given, {name: named[name] for name in given})
    assert caplog.records == []


def test_selected_part_alone_has_to_fit(source):
    given = initial_params(starting_from(source[0], agent__head_width=5, init_only=("core/*",)))
    assert {name.split("/")[0] for name in given} == {"core"}


def test_each_seed_starts_from_its_own(source, tmp_path):
    both = save(tmp_path, OnlineTrainer(changed(JOB, num_seeds=2)))
    for folder, expected in ((source[0], [source[1]] * 2), (tmp_path, both)):
        given = initial_params(starting_from(folder, num_seeds=2))
        for seed, params in enumerate(expected):
            assert_same({name: x[seed] for name, x in given.items()}, by_name(params))
    with pytest.raises(ValueError, match="has 2 seeds: set num_seeds to 2, not 3"):
        initial_params(starting_from(tmp_path, num_seeds=3))


def test_model_of_trajectories_is_taken(tmp_path):
    config = changed(preset("debug"), devices=1, evaluation__target_return=1.0)
    (params,) = save(tmp_path, OfflineTrainer(config))
    given = initial_params(OfflineTrainer(changed(config, init_from=str(tmp_path))))
    assert_same(given, by_name(params))
    with pytest.raises(ValueError, match="trained by another algorithm or command"):
        initial_params(starting_from(tmp_path))


def test_core_of_another_algorithm_is_taken_from_an_export(source, tmp_path):
    r2d2 = {"algorithm": R2D2Config(), "init_only": ("core/*",)}
    with pytest.raises(ValueError, match="use an export of it, by gtrxl export"):
        initial_params(starting_from(source[0], **r2d2))
    shutil.copy(source[0] / "config.json", tmp_path)
    write_params(params_path(tmp_path), source[1], 100)
    given = initial_params(starting_from(tmp_path, **r2d2))
    core = {name: x for name, x in by_name(source[1]).items() if name.startswith("core/")}
    assert_same(given, core)


def test_all_compared_models_are_checked_first(tmp_path, capsys):
    """The run of rate is found below the folder, and that of dt is missing."""
    of_rate = changed(preset("debug"), devices=1, evaluation__target_return=1.0)
    save(tmp_path / "rate", OfflineTrainer(of_rate))
    folder = tmp_path / "run"
    command = ["train-offline", "--preset", "debug", "--devices", "1", "--folder", str(folder)]
    with pytest.raises(SystemExit):
        main([*command, "--init-from", str(tmp_path), "--baselines", "dt"])
    assert f"init_from: {tmp_path} holds no run" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--core.width 16", "core/cells_0/hidden/bias is float32[32] there and float32[64] here"),
        ("--core.layers 2", "has another architecture in 3 of 24 arrays: core/cells_1/hidden/bias"),
        (
            "--init-only core/* cor/*",
            "init_only cor/* matches no parameter: choose among core/*, encoder",
        ),
        ("--init-from nowhere", "init_from: nowhere holds no run: it has no config.json"),
        ("--init-from= --init-only core/*", "init_only core/* selects parameters of another run"),
    ],
)
def test_unfit_parameters_are_refused(source, tmp_path, capsys, arguments, message):
    """Before the folder is claimed, in one line."""
    folder = tmp_path / "run"
    small = "--core.name lstm --core.layers 1 --core.width 8 --agent.encoder-width 8 "
    small += "--agent.head-width 8 --devices 1"
    command = ["train", "--preset", "debug", *small.split(), "--init-from", str(source[0])]
    with pytest.raises(SystemExit) as ended:
        main([*command, *arguments.split(), "--folder", str(folder)])
    shown = capsys.readouterr()
    assert message in shown.err
    assert (ended.value.code, shown.err.count("\n"), folder.exists()) == (2, 1, False)


def test_diverged_parameters_are_refused(tmp_path):
    save(tmp_path, OnlineTrainer(JOB), value=np.nan)
    with pytest.raises(ValueError, match="has diverged: its core/.* is not finite"):
        initial_params(starting_from(tmp_path))


@pytest.mark.integration
def test_resumed_run_ignores_source(source, tmp_path):
    """It continues from its own checkpoint, also if the source is gone."""
    copy, folder = shutil.copytree(source[0], tmp_path / "source"), tmp_path / "run"
    trainer = starting_from(copy)
    assert initial_params(trainer, folder)
    save(folder, trainer)
    shutil.rmtree(copy)
    assert initial_params(trainer, folder) == {}
    assert Programs(trainer).init(folder)  # what a checkpoint leaves out is as in a new run
    with pytest.raises(ValueError, match="init_from: .* holds no run"):
        initial_params(trainer, tmp_path / "other")
