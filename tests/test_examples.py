"""The examples run from the command line by their module's name."""

import importlib
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gtrxl_jax
from gtrxl_jax.cli.main import main
from gtrxl_jax.data import sample_segments
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.offline import OfflineTrainer, preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.runs.logging.writers import read_metrics
from gtrxl_jax.specs import ArraySpec
from gtrxl_jax.testing import check_core
from tests.comparison import assert_close
from tests.data.sets import make_set
from tests.jobs import acting, changed, small_job
from tests.saved import save

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ["--preset", "debug", "--devices", "1", "--no-plots", "--folder"]
PARTS = {
    "custom_env": ["--env.name", "custom_env:Repeat", "--env.params", "length", "2"],
    "custom_encoder": ["--agent.encoder", "custom_encoder:WaveEncoder"],
    "custom_core": ["--core.name", "custom_core:LeakyConfig", "--core.longest", "20"],
    "custom_algorithm": ["--algorithm.name", "custom_algorithm:ReinforceConfig"]
    + ["--algorithm.anneal", "9", "--algorithm.minibatches", "2"],
}
"""Options of a run with the part of each module."""


@pytest.fixture(autouse=True)
def from_examples(monkeypatch):
    """Run in the examples' directory, and forget their modules afterwards."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("custom_", "nnx_", "ppo_")):
            del sys.modules[name]
    sys.path[:] = path


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    limits = {"ppo_from_scratch.py": 200, "custom_encoder.py": 60}
    assert all(length < limits.get(name, 120) for name, length in lengths.items()), lengths


@pytest.mark.slow
def test_parts_by_module(tmp_path, capfd):
    folder = str(tmp_path / "run")
    main(["train", *SMALL, folder, *sum(PARTS.values(), []), "--core.width", "8"])
    assert "success" in capfd.readouterr().out
    loaded = gtrxl_jax.load(folder)
    assert loaded.environment == ("custom_env:Repeat", {"length": 2})
    assert loaded.config.agent.encoder == "custom_encoder:WaveEncoder"
    assert (loaded.config.core.longest, loaded.config.core.width) == (20, 8)
    assert (loaded.config.algorithm.anneal, loaded.config.algorithm.minibatches) == (9, 2)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert "core/decay_0" in metrics
    assert metrics["loss/entropy"][0] < 0
    assert metrics["loss/entropy"][-1] == 0  # annealed

    for name in PARTS:
        del sys.modules[name]
    with pytest.raises(ValueError, match="needs the module custom_"):
        gtrxl_jax.load(folder)
    assert not PARTS.keys() & sys.modules.keys()
    main(["evaluate", folder, "--episodes", "4", "--modules", *PARTS])
    assert "success" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            [*PARTS["custom_core"][:3], "0.5"],
            "core.longest must be above 1 and finite, not 0.5",
        ),
        (
            [*PARTS["custom_algorithm"][:3], "0"],
            "algorithm.anneal must be at least 1, not 0",
        ),
    ],
)
def test_settings_of_custom_parts_are_checked(tmp_path, capfd, options, message):
    with pytest.raises(SystemExit):
        main(["train", *SMALL, str(tmp_path / "run"), *options])
    assert message in capfd.readouterr().err


def test_run_folder_imports_nothing(tmp_path, capfd):
    folder = tmp_path / "run"
    importlib.import_module("custom_env")
    save(folder, OnlineTrainer(small_job(env__name="custom_env:Repeat", env__params={})))
    del sys.modules["custom_env"]
    with pytest.raises(ValueError, match="needs the module custom_env: import it first"):
        gtrxl_jax.load(folder)
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder)])
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


@pytest.mark.slow  # test_parts_by_module is quick
def test_core_keeps_the_contract():
    from custom_core import LeakyConfig

    with jax.enable_x64(True):
        check_core(LeakyConfig(width=8).make().clone(param_dtype=jnp.float64), tolerance=1e-9)


def test_custom_encoder_keeps_small_differences():
    from custom_encoder import WaveEncoder

    encoder = WaveEncoder(ArraySpec((1,)), width=2, octaves=3)
    x = jnp.array([[0.0], [0.25]])
    params = encoder.init(jax.random.key(0), x)
    kernel = jnp.zeros((7, 2)).at[5, 0].set(1.0).at[0, 1].set(1.0)  # sin(4 x) and x
    params["params"]["Dense_0"]["kernel"] = kernel
    np.testing.assert_allclose(encoder.apply(params, x), [[0, 0], [np.sin(1), 0.25]], atol=1e-6)


def test_algorithm_follows_the_policy_gradient():
    """Against naive REINFORCE: log-probabilities weighted by advantages, over all transitions."""
    from custom_algorithm import ReinforceConfig

    config = small_job("lstm", algorithm=ReinforceConfig(popart=False, entropy_cost=0.0))
    trainer = OnlineTrainer(config)
    state = jax.jit(trainer.init)(0)
    _, experience = jax.jit(acting(trainer))(state, jax.random.key(1))
    learner = state.learner
    loss = jax.jit(trainer.algorithm.loss)
    _, (metrics, _) = loss(learner.trainable, learner, experience)

    variables = {"params": learner.params}
    _, output = jax.jit(trainer.agent.apply)(variables, experience.memory, experience.timesteps)
    value_BS = output.value[..., 0]
    returns_BT = trainer.algorithm.returns(learner, experience.timesteps, value_BS)
    log_pi = np.asarray(jax.nn.log_softmax(output.policy.logits))
    last = np.asarray(experience.timesteps.last)
    weighted = [
        (returns_BT[b, t] - value_BS[b, t]) * log_pi[b, t, experience.actions[b, t]]
        for b, t in np.argwhere(~last[:, :-1])
    ]
    np.testing.assert_allclose(metrics["loss/policy"], -np.mean(weighted), rtol=1e-4)


OFFLINE = ["--model.name", "bc-mlp", "--baselines", "bc-mlp", "--total-updates", "2"]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.slow
def test_offline_algorithm_by_module(tmp_path, capfd, monkeypatch, outside):
    """Also from a copy of the file, in a folder that knows nothing of the package."""
    if outside:
        source = (EXAMPLES / "custom_offline_algorithm.py").read_text()
        (tmp_path / "custom_of_mine.py").write_text(source)
        monkeypatch.chdir(tmp_path)
    name = f"{'custom_of_mine' if outside else 'custom_offline_algorithm'}:Config"
    algorithm = ["--algorithm.name", name, "--algorithm.temperature"]
    command = ["train-offline", *OFFLINE, *SMALL]
    main([*command, str(tmp_path / "run"), *algorithm, "0.5"])
    loaded = gtrxl_jax.load(tmp_path / "run" / "bc-mlp")
    assert (loaded.config.algorithm.name, loaded.config.algorithm.temperature) == (name, 0.5)
    metrics = read_metrics(tmp_path / "run" / "bc-mlp" / "metrics.jsonl")
    assert metrics["weight/max"][-1] > 1
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main([*command, str(tmp_path / "other"), *algorithm, "0"])
    assert "algorithm.temperature must be above 0" in capfd.readouterr().err


def test_offline_algorithm_weighs_by_returns():
    """Against loops over single steps, and imitation of actions that are all equally good."""
    from custom_offline_algorithm import Config

    data = make_set()
    config = changed(preset("debug"), env__name="", evaluation__lengths=(), model__name="bc-mlp")
    weighted = changed(config, algorithm=Config(discount=0.9, temperature=0.5))
    trainer = OfflineTrainer(weighted, data)
    batch = sample_segments(data, jax.random.key(0), 16, 2, 4, "uniform", needs=("rewards",))
    size, rewards, mask = len(batch.mask), np.asarray(batch.rewards), np.asarray(batch.mask)
    expected = np.zeros((size, 8))
    for b, t in np.ndindex(size, 8):
        if mask.reshape(size, 8)[b, t]:
            later = rewards.reshape(size, 8)[b, t:]
            expected[b, t] = np.exp(np.sum(later * 0.9 ** np.arange(8 - t)) / 0.5)
    expected *= mask.sum() / expected.sum()
    found = trainer.algorithm.weights(batch)
    np.testing.assert_allclose(found.reshape(size, 8), expected, rtol=1e-4)

    learner, key = jax.jit(trainer.init)(0).learner, jax.random.key(1)
    equal = batch.replace(rewards=jnp.zeros(mask.shape))
    plain = OfflineTrainer(config, data).algorithm
    updated = [jax.jit(of.update)(learner, equal, key) for of in (trainer.algorithm, plain)]
    np.testing.assert_allclose(updated[0][1]["loss"], updated[1][1]["loss"], rtol=1e-5)
    _, other = jax.jit(trainer.algorithm.update)(learner, batch, key)
    assert abs(other["loss"] - updated[0][1]["loss"]) > 0.01


@pytest.mark.slow
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


def test_core_in_nnx_model_equals_linen():
    from nnx_model import Model

    core = make_core("lstm", "debug", width=8)
    model = Model(core, num_features=3, num_outputs=2, rngs=nnx.Rngs(0))
    x_BTF = jax.random.normal(jax.random.key(0), (2, 10, 3))
    first_BT = jnp.zeros((2, 10), bool).at[0, 4].set(True)

    @nnx.jit
    def of_model(model):
        def loss(model):
            memory, head_BTA = model(core.initial_memory(2), x_BTF[:, :6], first_BT[:, :6])
            memory, tail_BTA = model(memory, x_BTF[:, 6:], first_BT[:, 6:])
            return jnp.sum(jnp.square(head_BTA)) + jnp.sum(jnp.square(tail_BTA)), memory

        return nnx.value_and_grad(loss, has_aux=True)(model)

    @jax.jit
    def of_linen(params):
        def loss(params):
            def linear(name, x):
                return jnp.einsum("bti,ij->btj", x, params[name]["kernel"])

            def segment(memory, part):
                x_BTD = linear("encoder", x_BTF[:, part])
                memory, y_BTD = core.apply(
                    {"params": params["core"]}, memory, x_BTD, first_BT[:, part]
                )
                return memory, jnp.sum(jnp.square(linear("head", y_BTD)))

            memory, head = segment(core.initial_memory(2), slice(0, 6))
            memory, tail = segment(memory, slice(6, 10))
            return head + tail, memory

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, memory), gradient = of_model(model)
    # All biases of the linear layers are initially zero.
    (expected, expected_memory), expected_gradient = of_linen(
        nnx.to_pure_dict(nnx.state(model, nnx.Param))
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_close(memory, expected_memory, atol=1e-5)
    gradient = nnx.to_pure_dict(gradient)
    assert_close(gradient["core"], expected_gradient["core"], atol=1e-4)
    assert_close(gradient["encoder"]["kernel"], expected_gradient["encoder"]["kernel"], atol=1e-4)
    assert np.all(np.any(gradient["encoder"]["kernel"] != 0, axis=1))

    @nnx.jit
    def stepped(model):
        cache, steps = model.core.start(memory), model.encoder(x_BTF)
        cache, _ = model.core.step(cache, steps[:, 0], first_BT[:, 0])
        after, _ = model.core(memory, steps[:, :1], first_BT[:, :1])
        return model.core.finish(cache), after

    assert_close(*stepped(model), atol=1e-5)


@pytest.mark.slow
def test_an_own_simulator_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    folder = str(tmp_path / "run")
    options = ["--env.name", "custom_simulator:Lever", "--env.params", "delay", "2"]
    main(["train", *SMALL, folder, *options, "--total-steps", "1280", "--env.num-envs", "4"])
    assert "episode/success" in read_metrics(Path(folder, "metrics.jsonl"))
    main(["play", folder, "--modules", "custom_simulator"])
    assert Path(folder, "play.gif").exists()
