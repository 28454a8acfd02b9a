"""Adapters of environments with other interfaces, by small environments with these."""

import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces

from gtrxl_jax.cli.main import main
from gtrxl_jax.envs import Brax, LegacyGymnax, Stream, adapt, make_env, time_limit
from gtrxl_jax.envs.adapters.suites import SUITES
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.extras import install_command
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.specs import action_spec, observation_spec
from gtrxl_jax.worlds import PassiveTMaze
from tests.envs.suites import (
    AutoResetWrapper,
    Box,
    Dict,
    Discrete,
    GymnaxWalk,
    Slide,
    Tuple,
    Walk,
)

SUITE = "tests.envs.suites"


def played(stream, action, steps):
    """Return time steps `[T + 1]` of one of two environments that always take an action."""
    action = jnp.broadcast_to(jnp.asarray(action), (2, *jnp.shape(action)))
    carry = state, first = stream.reset(jax.random.key(0))
    _, rest = jax.lax.scan(lambda c, _: (stream.step(c[0], action),) * 2, carry, length=steps)
    joined = jax.tree.map(lambda x, y: np.concatenate([x[None], y]), first, rest[1])
    return jax.tree.map(lambda x: x[:, 1], joined)


def test_legacy_done_before_limit_terminates():
    env, params = make_env(f"{SUITE}:Walk")
    assert isinstance(env, LegacyGymnax)
    steps = played(require_consistent_env(Stream(env, params, 2)), 2, 7)
    np.testing.assert_array_equal(steps.observation[:, 0], [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(steps.first, [1, 0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.last, [0, 0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.discount, [1, 1, 0, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(steps.reward, [0, 1, 2, 0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("name", "limit"), [("Walk", "max_timesteps"), ("GymnaxWalk", "max_steps_in_episode")]
)
def test_legacy_time_limit_truncates(name, limit):
    env, params = make_env(f"{SUITE}:{name}", **{limit: 2})
    assert time_limit(env, params) == 2
    steps = played(require_consistent_env(Stream(env, params, 2)), 1, 4)
    np.testing.assert_array_equal(steps.observation[:, -1], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(steps.last, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.discount, 1)


def test_legacy_end_at_limit_counts_as_truncated():
    env, params = make_env(f"{SUITE}:Walk", max_timesteps=2)
    steps = played(Stream(env, params, 2), 2, 2)
    assert steps.last[2]
    assert steps.discount[2] == 1


def test_legacy_parameters_are_mapped_and_overridden():
    env, params = make_env(f"{SUITE}:Walk", bound=5, stride=0.5)
    assert (env.bound, params.stride, params.max_timesteps) == (5, 0.5, 100)
    with pytest.raises(ValueError, match="unknown parameter of .*Walk 'strid': .*'stride'"):
        make_env(f"{SUITE}:Walk", strid=2)

    def position(stride):
        stream = Stream(env, params.replace(stride=stride), 2)
        state, _ = stream.reset(jax.random.key(0))
        return stream.step(state, jnp.full(2, 2))[1].observation[:, 0]

    stride_P = jnp.array([0.25, 3.0])
    np.testing.assert_array_equal(jax.vmap(position)(stride_P), [[0.25, 0.25], [3, 3]])


def test_legacy_steps_have_present_interface():
    env, params = adapt(Walk()), Walk().default_params
    key = jax.random.key(0)
    with standard_dtype_promotion():
        _, state = env.reset(key, params)
        _, state, _, terminated, truncated, info = env.step(key, state, 2, params)
    assert state.timestep == 1
    assert not terminated
    assert not truncated
    np.testing.assert_array_equal(info["final_observation"], [1, 1])
    assert info["discount"] == 1
    assert env.name == "Walk"
    assert env.num_actions == 3
    assert env.oracle_action(state, params) == 2


def test_copied_spaces_become_those_of_gymnax():
    class Several(Walk):
        def observation_space(self, params):
            eye = Box(0, 255, (8, 8, 3), jnp.uint8)
            return Dict({"eye": eye, "ear": spaces.Discrete(5)})

        def action_space(self, params=None):
            return Tuple([Discrete(2), Discrete(3)])

    stream = Stream(adapt(Several()), Walk().default_params, 1)
    assert action_spec(stream.action_space).discrete == (2, 3)
    spec = observation_spec(stream.observation_space)
    assert (spec["eye"].shape, spec["eye"].dtype) == ((8, 8, 3), "uint8")
    assert spec["ear"].categories == 5


def test_present_environments_are_not_adapted():
    env = PassiveTMaze()
    assert adapt(env) is env


def test_brax_done_terminates_and_limit_truncates():
    env, params = make_env(f"{SUITE}:Slide", max_steps_in_episode=4)
    assert isinstance(env, Brax)
    stream = require_consistent_env(Stream(env, params, 2))
    steps = played(stream, np.float32([1]), 4)
    position = [0, 0.5, 1, 0, 0.5]
    np.testing.assert_allclose(steps.observation[:, 0], position, atol=0.011)
    np.testing.assert_array_equal(steps.last, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.discount, [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(steps.reward, [0, 1, 1, 0, 1])
    assert steps.observation[0, 0] != steps.observation[3, 0]  # drawn again

    steps = played(stream, np.float32([0.1]), 5)
    np.testing.assert_array_equal(steps.last, [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.discount, 1)


def test_brax_spaces_and_arguments():
    env, params = make_env(f"{SUITE}:Slide", dt=0.25, backend="spring")
    assert (env.env.dt, env.env.backend, params.max_steps_in_episode) == (0.25, "spring", 1000)
    stream = Stream(env, params, 2)
    assert action_spec(stream.action_space).continuous == ((-1, 1),)
    assert stream.observation_space.shape == (2,)
    assert env.num_actions == 1
    views = require_consistent_env(Stream(*make_env(f"{SUITE}:Views"), 2)).observation_space
    assert {name: x.shape for name, x in views.spaces.items()} == {
        "position": (1,),
        "image": (4, 4, 3),
    }


def test_brax_steps_leave_their_state_unchanged():
    env, params = make_env(f"{SUITE}:Slide")
    key = jax.random.key(0)
    _, state = env.reset_env(key, params)
    _, following, reward, _, info = env.step_env(key, state, jnp.full(1, 0.5), params)
    assert state.inner.metrics["cost"] == 0
    assert following.inner.metrics["cost"] == info["cost"] == 0.25
    assert (following.time, reward) == (1, 1)


def test_resetting_brax_environments_are_rejected():
    message = r"has an AutoResetWrapper, .* brax.envs.get_environment\(name\)"
    with pytest.raises(ValueError, match=message):
        adapt(AutoResetWrapper(Slide()))
    inner = type("Scaled", (AutoResetWrapper,), {})(AutoResetWrapper(Slide()))
    with pytest.raises(ValueError, match=message):
        adapt(inner)


class OnlySteps:
    def reset(self, key, params):
        return jnp.zeros(1), None

    def step(self, key, state, action, params):
        return jnp.zeros(1), state, 0.0, False, {}


class Endless(Walk):
    @property
    def default_params(self):
        return environment.EnvState(time=0)


class Timeless(GymnaxWalk):
    def step_env(self, key, state, action, params):
        return jnp.zeros(1), (), 0.0, False, {}


class SixValues(Walk):
    def step_env(self, key, state, action, params):
        return (*super().step_env(key, state, action, params), None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OnlySteps, "environment OnlySteps has none of the known interfaces, .* step_env"),
        (Endless, "environment Endless: default_params has no time limit: add the field max_"),
        (Timeless, "environment Timeless: its states have no time: count the actions there"),
        (SixValues, r"environment SixValues \(.*\): step_env returns 6 values: return 5"),
    ],
)
def test_unusable_interfaces_are_rejected(kind, message):
    with pytest.raises(ValueError, match=message) as caught:
        require_consistent_env(Stream(adapt(kind()), kind().default_params, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "module", "kind", "adapted", "adapter"),
    [
        ("brax-ant", "brax.envs.ant", "Ant", Slide, Brax),
        (
            "Craftax-Symbolic-v1",
            "craftax.craftax.envs.craftax_symbolic_env",
            "CraftaxSymbolicEnv",
            Walk,
            LegacyGymnax,
        ),
    ],
)
def test_suites_are_made_by_name(name, module, kind, adapted, adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{kind: adapted}))
    env, params = make_env(name)
    assert isinstance(env, adapter)
    assert isinstance(env.env, adapted)
    require_consistent_env(Stream(env, params, 2))


@pytest.mark.parametrize("name", SUITES)
def test_missing_packages_are_named(name, monkeypatch):
    package = "brax" if name.startswith("brax") else "craftax"
    for module in [package, *(m for m in sys.modules if m.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    message = f"environment {name} requires {package}: {install_command(package)} ("
    with pytest.raises(ImportError, match=re.escape(message)):
        make_env(name)


def test_command_names_missing_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "brax.envs.ant", None)
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--env.name", "brax-ant", "--folder", str(tmp_path / "run")])
    assert exit_.value.code == 2
    shown = capsys.readouterr().err
    assert "error: environment brax-ant requires brax: pip install" in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "run").exists()
