"""Exported agents: what is written, that it is loaded as the run is, and what is refused."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.classic_control.cartpole import CartPole

import gtrxl_jax
from gtrxl_jax.exporting import export
from gtrxl_jax.extras import install_command
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.directory import list_runs, lock_folder
from gtrxl_jax.runs.params import initial_params, read_export, write_params
from tests.comparison import assert_same
from tests.jobs import changed, small_job
from tests.saved import finish, save

EXAMPLE = Path(__file__).parents[1] / "examples" / "acting_without_the_library.py"


def online(core, **changes):
    return OnlineTrainer(small_job(core, devices=1, total_steps=100, **changes))


def offline(name):
    model = model_config(name, "debug")
    config = changed(preset("debug"), devices=1, model=model, evaluation__target_return=1.0)
    return OfflineTrainer(config)


@pytest.mark.parametrize(
    ("make", "name", "changes"),
    [
        (online, "gtrxl", {"core__dtype": "bfloat16"}),
        pytest.param(online, "lru", {}, marks=pytest.mark.slow),
        pytest.param(online, "mamba2", {}, marks=pytest.mark.slow),
        (offline, "rate", {}),
        pytest.param(offline, "dt-gpt", {}, marks=pytest.mark.slow),
    ],
)
def test_loaded_export_equals_run(make, name, changes, tmp_path):
    trainer, run, to = make(name, **changes), tmp_path / "run", tmp_path / "a" / "export"
    (params,) = save(run, trainer)
    finish(run, trainer)
    export(run, to)
    assert {path.name for path in to.iterdir()} == {
        "params.safetensors",
        "config.json",
        "README.md",
    }
    assert list(to.parent.iterdir()) == [to]
    loaded = gtrxl_jax.load(to)
    assert_same(jax.device_get(loaded.params), params)
    assert (loaded.trainer.config_json, loaded.step) == (trainer.config_json, 100)
    assert loaded.sampled == {}
    assert (to / "README.md").read_text().count(f"\n# {trainer.title}\n") == 1
    assert list_runs(to) == []


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """The folder of a run of two seeds, and the parameters of each."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    trainer = online("lstm", seed=4, num_seeds=2, env__name="CartPole-v1", env__params={})
    params = save(folder, trainer)
    finish(folder, trainer)
    return folder, params


@pytest.fixture(scope="module")
def exported(seeds, tmp_path_factory):
    """The export of the second seed."""
    folder = tmp_path_factory.mktemp("export") / "agent"
    export(seeds[0], folder, seed=5)
    return folder


def test_one_of_several_seeds_is_exported(seeds, exported):
    loaded = gtrxl_jax.load(exported)
    assert_same(jax.device_get(loaded.params), seeds[1][1])
    units = gtrxl_jax.load(seeds[0]).value_units
    np.testing.assert_array_equal(loaded.value_units, units[1:])
    assert not np.array_equal(*units)
    assert (loaded.config.seed, loaded.config.num_seeds) == (5, 1)
    card = (exported / "README.md").read_text()
    assert "| success | 1.000 |" in card  # of this seed
    assert "On held-out episodes, mean over the episodes of one seed:" in card
    assert "seed 5;" in card
    with pytest.raises(ValueError, match="has seeds 4 to 5: choose one, not 6"):
        export(seeds[0], exported.parent / "other", seed=6)


def test_new_run_starts_from_export(seeds, exported):
    job = small_job("lstm", env__name="CartPole-v1", env__params={}, init_from=str(exported))
    given = initial_params(OnlineTrainer(changed(job, init_only=("core/*",))))
    expected, *_ = read_export(exported)
    assert_same(given, {n: x for n, x in expected.items() if n.startswith("core/")})


def test_export_is_not_trained_or_overwritten(seeds, exported, tmp_path):
    text = (exported / "config.json").read_text()
    message = "holds an exported agent: choose another folder, with init_from"
    with pytest.raises(ValueError, match=message), lock_folder(exported, text):
        pass
    with pytest.raises(FileExistsError, match="agent exists already: choose another folder"):
        export(seeds[0], exported)
    (tmp_path / "run").mkdir()
    shutil.copytree(seeds[0], tmp_path / "run", dirs_exist_ok=True)
    run, text = tmp_path / "run", json.loads((seeds[0] / "config.json").read_text())
    steps = text["total_steps"]
    (run / "config.json").write_text(json.dumps(text | {"total_steps": 9 * steps}))
    with pytest.raises(ValueError, match=rf"has not ended \(extended, at step .* of {9 * steps}\)"):
        export(run, tmp_path / "to")
    (run / "result.json").unlink()
    with pytest.raises(ValueError, match=r"has not ended \(stopped, .*\): finish the run with the"):
        export(run, tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_missing_library_names_command(exported, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_command("export"))):
        export(exported, tmp_path / "to", stablehlo=True)
    assert not any(tmp_path.iterdir())


def rename(params):
    return {name.replace("core/", "cor/"): array for name, array in params.items()}


def widen(params):
    return {n: np.zeros((*x.shape[:-1], 3), x.dtype) for n, x in params.items()}


def round_off(params):
    return {name: array.astype(np.float16) for name, array in params.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, r"core/cells_0/hidden/bias is absent there and float32\[32\] here; it does not"),
        (widen, r"core/cells_0/hidden/bias is float32\[3\] there and float32\[32\] here"),
        (round_off, r"is float16\[32\] there and float32\[32\] here"),
        (None, "cannot be read .*: export the run again"),
    ],
)
def test_unfit_parameters_are_refused(exported, tmp_path, change, message):
    copy = shutil.copytree(exported, tmp_path / "copy")
    path = copy / "params.safetensors"
    if change is None:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        write_params(path, change(read_export(exported)[0]), 100)
    with pytest.raises(ValueError, match=message):
        gtrxl_jax.load(copy)


def test_step_acts_as_loaded_agent_does(exported, tmp_path):
    """In the example's own environment, over two episodes, from an export of the export."""
    export(exported, tmp_path / "agent", stablehlo=True)
    assert (tmp_path / "agent" / "README.md").read_text() == (exported / "README.md").read_text()
    spec = importlib.util.spec_from_file_location("acting_without_the_library", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    step, state = example.load(tmp_path / "agent" / "step.stablehlo")
    taken = []

    def recorded(state, observation, reward, first, seed):
        state, action = step(state, observation, reward, first, seed)
        taken.append((observation, reward, first, int(action)))
        return state, action

    total = sum(example.play(example.CartPole(), recorded, state) for _ in range(2))
    # Episodes start at random, so that their lengths differ between runs of this test.
    assert total == len(taken)
    assert sum(bool(first) for _, _, first, _ in taken) == 2
    run = gtrxl_jax.load(exported)
    memory, action = run.init(1), np.zeros(1, np.int32)
    for observation, reward, first, chosen in taken:
        timestep = gtrxl_jax.TimeStep(
            observation=observation[None],
            action=np.zeros(1, np.int32) if first else action,
            reward=np.float32([reward]),
            discount=np.ones(1, np.float32),
            first=np.array([first]),
            last=np.zeros(1, bool),
        )
        timestep = jax.tree.map(jnp.asarray, timestep)
        memory, action, _ = run.act(memory, timestep, jax.random.key(0))
        assert int(action[0]) == chosen


def test_step_takes_mask_of_environment(exported, tmp_path, monkeypatch):
    def legal_actions(self, state, params):
        return jnp.array([True, False])

    monkeypatch.setattr(CartPole, "legal_actions", legal_actions, raising=False)
    export(exported, tmp_path / "agent", stablehlo=True)
    step = jax.export.deserialize(bytearray((tmp_path / "agent" / "step.stablehlo").read_bytes()))
    arguments, _ = jax.tree.unflatten(step.in_tree, step.in_avals)
    arguments = jax.tree.map(lambda array: np.zeros(array.shape, array.dtype), arguments[:-1])
    act = jax.jit(step.call)
    for choice in range(2):
        _, action = act(*arguments, np.arange(2) == choice)
        assert action == choice
