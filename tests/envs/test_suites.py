"""Environments of installed suites; each test is skipped without the suite's package."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.envs import Stream, XMiniGrid, adapt, make_env, time_limit
from gtrxl_jax.envs.adapters.brax import RESETTING
from gtrxl_jax.envs.adapters.legacy import LIMITS
from gtrxl_jax.envs.adapters.suites import SUITES
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.envs.extensions import require_renderer
from gtrxl_jax.extras import install_command
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.specs import action_spec
from gtrxl_jax.specs.values import BELONGS, first_outside
from tests.envs import suites

# Packages may warn of their own imports.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def brax():
    reason = f"needs Brax: {install_command('brax')}"
    with standard_dtype_promotion():
        return pytest.importorskip("brax.envs", reason=reason)


@pytest.fixture
def craftax():
    reason = f"needs Craftax: {install_command('craftax')}"
    with standard_dtype_promotion():
        return pytest.importorskip("craftax.environment_base", reason=reason)


@pytest.fixture
def xminigrid():
    reason = f"needs XLand-MiniGrid: {install_command('xminigrid')}"
    return pytest.importorskip("xminigrid", reason=reason)


@pytest.fixture
def jumanji():
    reason = f"needs Jumanji: {install_command('jumanji')}"
    return pytest.importorskip("jumanji", reason=reason)


def played(stream, steps):
    """Return the time steps `[T, B]` of random actions."""
    spec = action_spec(stream.action_space)

    @jax.jit
    def play(key):
        def step(carry, key):
            return (following := stream.step(carry[0], spec.sample(key, stream.num_envs))), (
                following[1]
            )

        return jax.lax.scan(step, stream.reset(key), jax.random.split(key, steps))[1]

    return jax.device_get(play(jax.random.key(0)))


def require_episodes(stream, limit):
    """Assert that the stream has whole episodes, and that they are truncated at the limit."""
    steps = played(require_consistent_env(stream), 2 * limit + 2)
    space = stream.observation_space
    assert steps.observation.shape == (2 * limit + 2, stream.num_envs, *space.shape)
    assert (steps.observation >= space.low).all()
    assert (steps.observation <= space.high).all()
    assert np.ptp(steps.observation, axis=0).any()
    np.testing.assert_array_equal(steps.first[1:], steps.last[:-1])
    # No episode of random actions ends within a few steps.
    (ends,) = np.nonzero(steps.last[:, 0])
    np.testing.assert_array_equal(ends, [limit - 1, 2 * limit])
    np.testing.assert_array_equal(steps.discount, 1)
    # Resets are drawn anew.
    assert np.any(steps.observation[limit] != steps.observation[limit, :1])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1"])
def test_craftax(name, craftax):
    env, params = make_env(name, max_timesteps=3, day_length=200)
    assert time_limit(env, params) == 3
    assert params.day_length == 200
    assert env.num_actions == (17 if "Classic" in name else 43)
    require_episodes(Stream(env, params, 4), 3)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["brax-ant", "brax-inverted_pendulum"])
def test_brax(name, brax):
    env, params = make_env(name, max_steps_in_episode=3, backend="spring")
    assert env.env.backend == "spring"
    assert action_spec(Stream(env, params, 1).action_space).continuous[0] == (-1, 1)
    require_episodes(Stream(env, params, 4), 3)


@pytest.mark.integration
def test_brax_pendulum_falls(brax):
    steps = played(Stream(*make_env("brax-inverted_pendulum"), 4), 100)
    assert steps.last.any()
    np.testing.assert_array_equal(steps.discount, 1 - steps.last)
    assert (np.abs(steps.observation[..., 1]) > 0.2).sum() == steps.last.sum()


def test_every_brax_environment_is_made(brax):
    known = set(brax._envs) - {"fast"}
    assert {name.removeprefix("brax-") for name in SUITES if name.startswith("brax-")} == known
    for name in known:
        env, _ = make_env(f"brax-{name}")
        assert type(env.env) is brax._envs[name]
    with pytest.raises(ValueError, match="has an AutoResetWrapper"):
        adapt(brax.create("fast"))


def test_brax_has_interface_of_stand_in(brax):
    from brax.envs.wrappers import training

    def names(kind):
        return [field.name for field in dataclasses.fields(kind)]

    assert names(brax.base.State) == names(suites.State)
    for method in ("reset", "step"):
        of_brax, of_stand_in = (
            list(inspect.signature(getattr(kind, method)).parameters)
            for kind in (brax.base.Env, suites.Slide)
        )
        assert of_brax == of_stand_in
    assert all(issubclass(getattr(training, name), brax.base.Wrapper) for name in RESETTING)


def test_craftax_has_interface_of_stand_in(craftax):
    from craftax.environment_base import environment_bases, spaces

    def counts(kind):
        methods = (getattr(kind, name) for name in ("reset_env", "step_env"))
        return [len(inspect.signature(method).parameters) for method in methods]

    assert counts(environment_bases.EnvironmentAutoReset) == counts(suites.Walk)
    assert spaces.Discrete(3).n == suites.Discrete(3).n
    box = (0.0, 1.0, (2,), jnp.float32)
    assert vars(spaces.Box(*box)) == vars(suites.Box(*box))
    env, params = make_env("Craftax-Classic-Symbolic-v1")
    with standard_dtype_promotion():
        _, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    assert {"max_timesteps"} == vars(params).keys() & LIMITS.keys()
    assert hasattr(state, LIMITS["max_timesteps"])


@pytest.mark.integration
def test_xminigrid(xminigrid):
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES

    assert (XMiniGrid.TILES, XMiniGrid.COLORS) == (NUM_TILES, NUM_COLORS)
    env, params = make_env("xminigrid:MiniGrid-EmptyRandom-5x5", max_steps=3)
    assert env.num_actions == 6
    stream = require_consistent_env(Stream(env, params, 4))
    with standard_dtype_promotion():
        _, state = env.reset_env(jax.random.key(0), params)
        assert require_renderer(env).draw(state, params).shape[-1] == 3
    steps = played(stream, 40)
    assert steps.observation.shape == (40, 4, *stream.observation_space.shape)
    np.testing.assert_array_equal(steps.first[1:], steps.last[:-1])
    ends, starts = (np.nonzero(x[:, 0])[0] for x in (steps.last, steps.first))
    assert (ends - starts[: len(ends)]).max() == 3
    assert steps.discount[steps.last].any()
    assert (steps.discount[~steps.last] == 1).all()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["Maze-v0", "Minesweeper-v0", "Connector-v3", "CVRP-v1"])
def test_jumanji(name, jumanji):
    env, params = make_env(f"jumanji:{name}", max_steps_in_episode=6)
    stream = require_consistent_env(Stream(env, params, 4))
    policy = RandomPolicy(stream.action_space)
    state = begin(policy, (), stream, jax.random.key(0))
    key = jax.random.key(1)
    _, played = jax.jit(lambda state: rollout(policy, (), stream, state, key, 20))(state)
    steps = played.timesteps
    assert first_outside(stream.observation_space, steps.observation)[0] == BELONGS
    assert steps.legal.any(axis=-1).all()
    assert steps.last.any()
    assert jnp.isfinite(steps.reward).all()
