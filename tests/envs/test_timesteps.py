"""Adapters of environments with dm_env's time steps, by small ones with their interfaces."""

import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import Jumanji, Stream, Trial, XMiniGrid, adapt, make_env, time_limit
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.extensions import require_renderer, restricts_actions
from gtrxl_jax.extras import install_command
from gtrxl_jax.specs import action_spec, observation_spec
from tests.envs.suites import Grid, GridParams, Pots, Rulesets

SUITE = "tests.envs.suites"


def play(stream, actions):
    """Return time steps, states and statistics `[T + 1]` of one environment."""

    @jax.jit
    def run(key, action_T1):
        start = stream.reset(key)
        _, rest = jax.lax.scan(lambda c, a: (stream.step(c[0], a),) * 2, start, action_T1)
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y])[:, 0], start, rest)

    action_T1 = jax.tree.map(
        lambda x: np.array(x)[:, None], actions, is_leaf=lambda x: isinstance(x, list)
    )
    states, steps = run(jax.random.key(0), action_T1)
    return steps, states


def test_grid_terminates_and_is_truncated():
    env, params = make_env(f"{SUITE}:Grid")
    assert isinstance(env, XMiniGrid)
    assert time_limit(env, params) == 4
    stream = require_consistent_env(Stream(env, params, 1))
    steps, states = play(stream, [0, 1, 0, 0, 0, 0, 0, 0])
    time = [0, 1, 2, 0, 1, 2, 3, 4, 0]
    np.testing.assert_array_equal(steps.observation[:, 0, 0, 0], time)
    np.testing.assert_array_equal(np.nonzero(steps.first)[0], [0, 3, 8])
    np.testing.assert_array_equal(np.nonzero(steps.last)[0], [2, 7])
    np.testing.assert_array_equal(np.nonzero(steps.discount == 0)[0], [2])
    np.testing.assert_array_equal(steps.reward, [0, 0, 1, *[0] * 6])
    state = jax.tree.map(lambda x: x[2], states.env)
    assert require_renderer(env).draw(state, params).tolist() == np.full((2, 2, 3), 2).tolist()


@pytest.mark.parametrize("kind", [Grid, Pots])
@pytest.mark.parametrize("name", ["GymAutoResetWrapper", "AutoResetWrapper", "VmapWrapper"])
def test_environments_that_reset_themselves_are_refused(kind, name):
    """Also inside another wrapper: their last observation would be that of the next episode."""

    def wrapped(env, name):
        kind = type(name, (type(env),), {"__init__": lambda self, env: vars(self).update(_env=env)})
        return kind(env)

    inside = wrapped(kind(), name)
    for env in (inside, wrapped(inside, "Other")):
        with pytest.raises(ValueError, match=f"has a wrapper {name}, but episodes are reset and"):
            XMiniGrid(env, GridParams()) if kind is Grid else Jumanji(env)
    if kind is Grid:
        assert XMiniGrid(wrapped(Grid(), "Other"), GridParams()).num_actions == 3


def test_tiles_and_colors_are_one_hot():
    env, params = make_env(f"{SUITE}:Grid", view_size=5)
    spec = observation_spec(Stream(env, params, 1).observation_space)
    assert spec.feature_shape == (5, 5, 2 * 13)
    features = spec.features(env.reset_env(jax.random.key(0), params)[0], jnp.float32)
    assert np.nonzero(features[0, 0])[0].tolist() == [0, 13 + 5]


def test_parameters_of_grid_are_its_own():
    env = XMiniGrid(Grid(), GridParams(max_steps=7))
    assert time_limit(env, env.default_params) == 7
    assert time_limit(*make_env(f"{SUITE}:Grid", max_steps=2)) == 2


def test_ruleset_is_drawn_at_reset_and_kept_in_trial():
    env = XMiniGrid(Grid(), rulesets=Rulesets())
    _, states = play(Stream(Trial(env, 2), env.default_params, 1), [1, 1, 0, 1, 1, 0, 1])
    rulesets = np.asarray(states.env.inner.inner.state[:, 1])
    assert (rulesets[:3] == rulesets[0]).all()
    assert len(set(rulesets.tolist())) > 1


def test_mask_of_combinations_is_of_single_choice():
    env, params = make_env(f"{SUITE}:Pots")
    assert isinstance(env, Jumanji)
    stream = require_consistent_env(Stream(env, params, 1))
    assert action_spec(stream.action_space).discrete == (6,)
    assert set(stream.observation_space.spaces) == {"contents", "time"}
    assert stream.reported_info == ("filled",)
    # Thing 1 into pot 1; thing 0 into pot 0; thing 1 into pot 2, which is the last.
    steps, states = play(stream, [4, 0, 5])
    np.testing.assert_array_equal(steps.reward, [0, 1, 0, 1])
    np.testing.assert_array_equal(steps.last, [False] * 3 + [True])
    np.testing.assert_array_equal(steps.discount, [1, 1, 1, 0])
    np.testing.assert_array_equal(steps.legal[1], [True, False, True] * 2)
    np.testing.assert_array_equal(steps.observation["contents"][2], [True, True, False])
    np.testing.assert_array_equal(states.episode.info["filled"], [0, 1, 2, 3])


def test_agents_are_parts_of_action_whose_rewards_are_summed():
    env, params = make_env(f"{SUITE}:Pots", joint=False, time_limit=2)
    assert time_limit(env, params) == 2
    stream = require_consistent_env(Stream(env, params, 1))
    assert action_spec(stream.action_space).discrete == (3, 3)
    steps, _ = play(stream, {"discrete": [[1, 1], [1, 1], [1, 1], [0, 2]]})
    np.testing.assert_array_equal(steps.reward, [0, 2, 2, 0, 0])
    np.testing.assert_array_equal(steps.legal[1], [True, False, True] * 2)
    # Truncated at the limit, with room in the pots.
    np.testing.assert_array_equal(steps.last, [False, False, True, False, False])
    np.testing.assert_array_equal(steps.discount, 1)


def test_limit_of_parameters_truncates():
    env, params = make_env(f"{SUITE}:Pots", max_steps_in_episode=1)
    steps, _ = play(Stream(env, params, 1), [4])
    np.testing.assert_array_equal(steps.last, [False, True])
    np.testing.assert_array_equal(steps.discount, 1)


def test_environments_without_mask_have_all_actions():
    assert not restricts_actions(adapt(Grid()))
    assert restricts_actions(adapt(Pots()))


LIBRARIES = {
    "xminigrid:Grid-v0": SimpleNamespace(
        registered_environments=lambda: ("Grid-v0",), make=lambda name: (Grid(), GridParams())
    ),
    "jumanji:Pots-v0": SimpleNamespace(
        registered_environments=lambda: ("Pots-v0",),
        make=lambda name, **arguments: Pots(**arguments),
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_environments_of_libraries_are_made_by_name(name, monkeypatch):
    package = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, LIBRARIES[name])
    require_consistent_env(Stream(*make_env(name), 2))
    message = f"unknown environment of {package} 'Grod-v0': .* Valid: "
    with pytest.raises(ValueError, match=message):
        make_env(f"{package}:Grod-v0")
    with pytest.raises(ValueError, match=f"unknown parameter of {name} 'limit'"):
        make_env(name, limit=3)


@pytest.mark.parametrize("name", LIBRARIES)
def test_missing_libraries_are_named(name, monkeypatch):
    package = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, None)
    message = f"environment {name} requires {package}: {install_command(package)} ("
    with pytest.raises(ImportError, match=re.escape(message)):
        make_env(name)
