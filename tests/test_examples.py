"""The examples run from the command line by their module's name."""

import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gtrxl_jax
from gtrxl_jax.cli.main import main
from gtrxl_jax.envs.promotion import standard_dtype_promotion
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.testing import check_core
from tests.jobs import small_job

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ["--preset", "debug", "--devices", "1", "--no-pictures", "--folder"]


@pytest.fixture(autouse=True)
def from_examples(monkeypatch):
    """Run in the examples' directory, and forget their modules afterwards."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("custom_", "ppo_")):
            del sys.modules[name]
    sys.path[:] = path


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    limits = {"ppo_from_scratch.py": 200}
    assert all(length < limits.get(name, 120) for name, length in lengths.items()), lengths


def test_environment_by_module(tmp_path, capfd):
    folder = str(tmp_path / "run")
    environment = ["--env.name", "custom_env:Repeat", "--env.params", "length", "2"]
    main(["train", *SMALL, folder, *environment])
    assert "success" in capfd.readouterr().out
    main(["evaluate", folder, "--episodes", "4", "--modules", "custom_env"])
    assert "success" in capfd.readouterr().out


def test_run_folder_imports_nothing(tmp_path, capfd):
    folder = str(tmp_path / "run")
    main(["train", *SMALL, folder, "--env.name", "custom_env:Repeat"])
    del sys.modules["custom_env"]
    with pytest.raises(ValueError, match="needs the module custom_env: import it first"):
        gtrxl_jax.load(folder)
    with pytest.raises(SystemExit):
        main(["evaluate", folder])
    assert "import it first" in capfd.readouterr().err
    assert "custom_env" not in sys.modules


def test_collect_oracle_of_environment_by_module(tmp_path, capfd):
    main(["collect", str(tmp_path / "data"), "--env.name", "custom_env:Repeat", "--episodes", "8"])
    assert "success 1.000" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("custom_environment:Repeat", "there is no module custom_environment"),
        ("custom_env:Repeet", "custom_env has no Environment named 'Repeet'"),
        ("custom_env:State", "custom_env has no Environment named 'State'"),
    ],
)
def test_wrong_module_names_are_rejected(tmp_path, capfd, name, message):
    with pytest.raises(SystemExit) as exit_:
        main(["train", *SMALL, str(tmp_path / "run"), "--env.name", name])
    assert exit_.value.code == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_core_by_module(tmp_path, capfd):
    folder = str(tmp_path / "run")
    core = ["--core.name", "custom_core:LeakyConfig", "--core.longest", "20"]
    main(["train", *SMALL, folder, *core, "--core.width", "8"])
    assert "success" in capfd.readouterr().out
    loaded = gtrxl_jax.load(folder)
    assert (loaded.config.core.longest, loaded.config.core.width) == (20, 8)
    names = read_metrics(tmp_path / "run" / "metrics.jsonl").keys()
    assert "core/decay_0" in names
    with pytest.raises(SystemExit):
        main(["train", *SMALL, str(tmp_path / "other"), *core[:3], "0.5"])
    assert "core.longest must be above 1 and finite, not 0.5" in capfd.readouterr().err


def test_core_keeps_the_contract():
    from custom_core import LeakyConfig

    with jax.enable_x64(True):
        check_core(LeakyConfig(width=8).make().clone(param_dtype=jnp.float64), tolerance=1e-9)


def test_algorithm_by_module(tmp_path, capfd):
    folder = str(tmp_path / "run")
    algorithm = ["--algorithm.name", "custom_algorithm:ReinforceConfig", "--algorithm.anneal"]
    main(["train", *SMALL, folder, *algorithm, "9", "--algorithm.minibatches", "2"])
    assert "success" in capfd.readouterr().out
    loaded = gtrxl_jax.load(folder)
    assert (loaded.config.algorithm.anneal, loaded.config.algorithm.minibatches) == (9, 2)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert metrics["loss/entropy"][0] < 0
    assert metrics["loss/entropy"][-1] == 0  # annealed
    with pytest.raises(SystemExit):
        main(["train", *SMALL, str(tmp_path / "other"), *algorithm, "0"])
    assert "algorithm.anneal must be at least 1, not 0" in capfd.readouterr().err


def test_algorithm_follows_the_policy_gradient():
    """Against naive REINFORCE: log-probabilities weighted by advantages, over all transitions."""
    from custom_algorithm import ReinforceConfig

    config = small_job("lstm", algorithm=ReinforceConfig(popart=False, entropy_cost=0.0))
    trainer = OnlineTrainer(config)
    state = jax.jit(trainer.init)(0)
    _, experience, _ = jax.jit(trainer.rollout)(state, jax.random.key(1))
    learner = state.learner
    loss = jax.jit(trainer.algorithm.loss)
    _, (metrics, _) = loss(learner.trainable, learner, experience)

    variables = {"params": learner.params}
    _, output = trainer.agent.apply(variables, experience.memory, experience.timesteps)
    value_BS = output.value[..., 0]
    returns_BT = trainer.algorithm.returns(learner, experience.timesteps, value_BS)
    log_pi = np.asarray(jax.nn.log_softmax(output.policy.logits))
    last = np.asarray(experience.timesteps.last)
    weighted = [
        (returns_BT[b, t] - value_BS[b, t]) * log_pi[b, t, experience.actions[b, t]]
        for b, t in np.argwhere(~last[:, :-1])
    ]
    np.testing.assert_allclose(metrics["loss/policy"], -np.mean(weighted), rtol=1e-4)


def test_ppo_reproduces_acting_probabilities(capsys):
    """The stored memory gives the first minibatch the acting policy; later ones differ from it."""
    from ppo_from_scratch import Config, train

    sizes = dict(num_envs=8, rollout=16, window=4, epochs=2, minibatches=2, width=16)
    # The last of four updates starts from memories, and has ends of episodes.
    with standard_dtype_promotion():  # which optax's Adam requires
        metrics = train(Config(**sizes, total_steps=4 * 8 * 16))
    assert "steps 512   return" in capsys.readouterr().out
    assert metrics["ratio_error"].shape == (2, 2)
    assert metrics["ratio_error"][0, 0] < 1e-5
    assert metrics["ratio_error"][1, 1] > 1e-4
    assert -1 <= metrics["return"] < 1


def test_ppo_reads_settings_from_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ppo_from_scratch.py", "--rollout", "64", "--window", "5"])
    with pytest.raises(ValueError, match="window must divide rollout"):
        runpy.run_path(str(EXAMPLES / "ppo_from_scratch.py"), run_name="__main__")
