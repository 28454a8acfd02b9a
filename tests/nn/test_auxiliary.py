"""Auxiliary losses in agents: only where losses are collected, and for every space."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.auxiliary import Reconstruction
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.normalizer import update_normalizers
from gtrxl_jax.online.algorithm import run_segment, sum_losses
from gtrxl_jax.specs import ArraySpec, action_spec
from gtrxl_jax.timestep import TimeStep

ACTION = spaces.Discrete(3)
OBSERVATION = spaces.Dict(
    {
        "cell": spaces.Discrete(4),
        "image": spaces.Box(0, 255, (24, 22, 3), jnp.uint8),
        "numbers": spaces.Box(-9.0, 9.0, (2,)),
        "open": spaces.Box(0, 1, (2,), jnp.bool_),
    }
)


def segment(action_space=ACTION, steps=5):
    """Return time steps `[2, S]`, of which some begin and end episodes."""
    keys = jax.random.split(jax.random.key(0), 5)
    lead = (2, steps)
    last = jnp.zeros(lead, bool).at[0, 1].set(True)
    return TimeStep(
        observation={
            "cell": jax.random.randint(keys[0], lead, 0, 4),
            "image": jax.random.randint(keys[1], (*lead, 24, 22, 3), 0, 256).astype(jnp.uint8),
            "numbers": 5 + jax.random.normal(keys[2], (*lead, 2)),
            "open": jax.random.bernoulli(keys[1], 0.1, (*lead, 2)),
        },
        action=action_spec(action_space).sample(keys[3], *lead),
        reward=jax.random.normal(keys[4], lead),
        discount=1 - last.astype(jnp.float32),
        first=jnp.roll(last, 1, axis=1),
        last=last,
    )


def agent_of(action_space=ACTION, **settings):
    core = make_core("lstm", layers=1, width=8)
    return make_agent(
        core,
        OBSERVATION,
        action_space,
        encoders={"image": "mlp"},
        encoder_width=8,
        head_width=8,
        **settings,
    )


@pytest.fixture(scope="module")
def trained():
    """Return an agent with all losses, its parameters and their gradient, and the reports."""
    agent, steps = agent_of(reconstruction=0.5, pixel_control=0.1, rnd=0.25), segment()
    memory = agent.initial_memory(2)

    @jax.jit
    def run(key):
        variables = agent.init(key, memory, steps)
        params = variables.pop("params")
        assert not variables

        def loss(params):
            _, reports = run_segment(agent, params, memory, steps, "features")
            total, metrics = sum_losses({}, reports)
            return total, (reports, metrics)

        return params, *jax.grad(loss, has_aux=True)(params)

    return agent, *run(jax.random.key(0))


def test_losses_are_named_and_weighted(trained):
    _, _, _, (reports, metrics) = trained
    assert set(reports["losses"]) == {"reconstruction/loss", "pixel_control/loss", "rnd/loss"}
    parts = [metrics[f"reconstruction/{name}"] for name in ("observation", "action", "reward")]
    np.testing.assert_allclose(metrics["loss/reconstruction"], 0.5 * sum(parts), rtol=1e-6)
    assert metrics["loss/pixel_control"] > 0
    assert "loss/auxiliary" not in metrics


def test_losses_train_encoder_core_and_their_own_parameters(trained):
    _, params, gradient, _ = trained
    norms = {
        name: jax.tree.map(lambda x: float(jnp.abs(x).max()), gradient[name]) for name in params
    }
    for name in ("encoder", "core", "reconstruction", "pixel_control", "rnd"):
        assert any(norm > 0 for norm in jax.tree.leaves(norms[name])), name
    for name in ("policy_head", "value_head"):
        assert all(norm == 0 for norm in jax.tree.leaves(norms[name])), name


def test_acting_and_outputs_do_not_compute_losses(trained):
    """The program of an agent without them has the same operations."""
    agent, params, *_ = trained
    plain, steps, memory = agent_of(), segment(), agent.initial_memory(2)
    rest = {k: v for k, v in params.items() if k not in ("reconstruction", "pixel_control", "rnd")}
    step = jax.tree.map(lambda x: x[:, 0], steps)

    def programs(agent, params):
        forms = [
            lambda p: agent.apply({"params": p}, memory, steps),
            lambda p: agent.apply({"params": p}, memory, step, method="step"),
        ]
        return [len(jax.make_jaxpr(form)(params).jaxpr.eqns) for form in forms]

    assert programs(agent, params) == programs(plain, rest)
    zero = agent_of(reconstruction=0.0, pixel_control=0.0, rnd=0.0)
    shapes = jax.eval_shape(zero.init, jax.random.key(0), memory, steps)["params"]
    assert shapes.keys() == rest.keys()


def naive_errors(params):
    """Return the errors of RND at each step of the segment, in float64, in a loop."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def dense(layer, x):
        return x @ layer["kernel"] + layer.get("bias", 0)

    def encode(encoder, observation):
        """Features of choices are one-hot, those of pixels scaled by what their space declares."""
        one_hot = np.eye(4)[observation["cell"]]
        pixels = (observation["image"].reshape(-1) - 127.5) / (255 / np.sqrt(12))
        scaled = pixels / np.sqrt(pixels.size)
        parts = {**observation, "cell": one_hot, "image": scaled}
        hidden = [dense(encoder[f"encoders_{name}"]["Dense_0"], x) for name, x in parts.items()]
        return np.maximum(np.concatenate(hidden), 0)

    observations = jax.tree.map(lambda x: np.asarray(x, np.float64), segment().observation)
    errors = np.zeros((2, 5))
    for place in np.ndindex(2, 5):
        observation = jax.tree.map(lambda x, place=place: x[place], observations)
        observation["cell"] = int(observation["cell"])
        x = np.maximum(dense(params["target_layer"], encode(params["target"], observation)), 0)
        target = dense(params["target_features"], x)
        x = encode(params["predictor"], observation)
        for number in range(2):
            x = np.maximum(dense(params[f"predictor_layers_{number}"], x), 0)
        errors[place] = np.mean((dense(params["predictor_features"], x) - target) ** 2)
    return errors


def test_rnd_is_the_error_of_predicting_a_random_network(trained):
    agent, params, gradient, (reports, _) = trained
    errors = naive_errors(params["rnd"])
    np.testing.assert_allclose(reports["losses"]["rnd/loss"], errors.mean(), rtol=1e-5)
    before = agent.apply({"params": params}, segment(), method="bonus")
    np.testing.assert_allclose(before, 0.25 * errors, rtol=1e-5)
    for name, of_part in gradient["rnd"].items():
        is_trained = any(np.abs(x).max() > 0 for x in jax.tree.leaves(of_part))
        assert is_trained == name.startswith("predictor"), name


def test_bonus_is_relative_to_all_errors_so_far(trained):
    agent, params, *_ = trained
    seen = update_normalizers(agent, {"params": params}, segment())["params"]
    rnd = {**params["rnd"], "normalizer": seen["rnd"]["normalizer"]}
    bonus = agent.apply({"params": {**params, "rnd": rnd}}, segment(), method="bonus")
    errors = naive_errors(params["rnd"])
    np.testing.assert_allclose(bonus, 0.25 * errors / np.sqrt((errors**2).mean()), rtol=1e-5)


def test_targets_are_normalized_by_what_was_seen(trained):
    agent, params, *_ = trained
    updated = update_normalizers(agent, {"params": params}, segment())["params"]
    own = updated["reconstruction"]
    mean = segment().observation["image"].astype(jnp.float32).mean(axis=(0, 1, 2, 3))
    np.testing.assert_allclose(own["arrays_1"]["normalizer"]["mean"], mean, rtol=1e-5)
    assert (
        own["reward_normalizer"]["count"] == 2 * 5 - 1
    )  # the reward of a first step does not count


def test_first_steps_do_not_reconstruct_action_and_reward():
    steps = segment(steps=2)
    module = Reconstruction((ArraySpec((2,)),), action_spec(ACTION), cost=2.0, hidden=4)
    y = jnp.ones((2, 2, 3))

    def reports(first):
        numbers = steps.observation["numbers"]
        changed = dataclasses.replace(steps, observation=numbers, first=jnp.full((2, 2), first))
        params = module.init(jax.random.key(0), y, changed)["params"]
        _, sown = module.apply({"params": params}, y, changed, mutable=["losses", "metrics"])
        return {
            name: float(value[0]) for name, value in {**sown["metrics"], **sown["losses"]}.items()
        }

    first, later = reports(True), reports(False)
    assert first["action"] == first["reward"] == 0
    assert first["loss"] == pytest.approx(2 * first["observation"])
    assert later["observation"] == first["observation"] > 0
    assert later["loss"] == pytest.approx(
        2 * sum(later[part] for part in ("observation", "action", "reward"))
    )


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Box(-1.0, 1.0, (2,)),
        spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(3)}),
    ],
)
def test_reconstruction_takes_every_action_and_pixel_control_one(action_space):
    agent, steps = agent_of(action_space, reconstruction=1.0), segment(action_space)
    memory = agent.initial_memory(2)
    variables = jax.eval_shape(agent.init, jax.random.key(0), memory, steps)
    assert set(variables) == {"params"}
    _, reports = jax.eval_shape(
        lambda variables: agent.apply(variables, memory, steps, mutable=["losses"]), variables
    )
    assert [loss.shape for loss in jax.tree.leaves(reports)] == [()]
    with pytest.raises(ValueError, match="pixel_control needs a single discrete action: omit it"):
        agent_of(action_space, pixel_control=1.0)


def test_pixel_control_needs_image():
    core = make_core("lstm", layers=1, width=8)
    with pytest.raises(ValueError, match="pixel_control needs an image, which the observation"):
        make_agent(core, spaces.Discrete(3), ACTION, pixel_control=1.0)


def test_targets_of_choices_and_flags_are_what_was_observed(trained):
    """Their losses are cross-entropies, which need probabilities of 0 and 1."""
    agent, params, *_ = trained
    steps = segment()
    params = update_normalizers(agent, {"params": params}, steps)["params"]
    targets = agent.apply(
        {"params": params}, steps, method=lambda agent, x: agent.reconstruction.targets(x)
    )
    np.testing.assert_array_equal(targets[0], np.eye(4)[steps.observation["cell"]])
    np.testing.assert_array_equal(targets[3], steps.observation["open"])
    # Numbers around 5, whose deviation is ordinary, are shifted to 2.
    np.testing.assert_allclose(np.mean(targets[2], axis=(0, 1)), 2, rtol=1e-4)
