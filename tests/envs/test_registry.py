"""Names, overrides and errors of the registry, and the spaces of every environment."""

from urllib.error import URLError

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.envs import ENVIRONMENTS, Stream, make_env, register_env, time_limit
from gtrxl_jax.envs.adapters.suites import SUITES
from gtrxl_jax.envs.check_env import require_consistent_env
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from gtrxl_jax.specs import action_spec
from gtrxl_jax.worlds import AssociativeRetrieval, PassiveTMaze
from gtrxl_jax.worlds.popgym import POPGYM
from tests.tiers import slow_except

# These have tests of their own.
ELSEWHERE = {*POPGYM, *SUITES}

# Other sizes are the same code.
SIZES = {name for name in ENVIRONMENTS if name.startswith("MiniGrid-MemoryS")}
SIZES |= {f"MemoryMaze-{size}x{size}-v0" for size in (11, 13, 15)}
SIZES |= {"Battleship-3", "Battleship-5", "RockSample-5-5", "RockSample-7-8", "RockSample-15-15"}
SIZES |= {"ColorCubes-Trivial", "ColorCubes-Medium"}
HARDER = {name for name in POPGYM if not name.endswith("Easy-v0")}

# These images are small here, to save time.
PICTURES = {
    "MemoryMaze-9x9-v0": dict(height=16, width=16),
    "TwoColors-v0": dict(height=16, width=16, items=2),
}

# These count rewards instead of successes.
FORAGING = {*PICTURES, "Battleship-10", "RockSample-11-11"}

# Its actions are hybrid.
HYBRID = {"AppleMaze-v0"}


TESTED = sorted(set(ENVIRONMENTS) - SIZES - HYBRID - ELSEWHERE)
DEAR = {"MemoryMaze-9x9-v0", "TwoColors-v0", "Battleship-10"}


@pytest.mark.parametrize("name", slow_except(TESTED, {*TESTED} - DEAR))
def test_observations_and_actions_lie_in_spaces(name):
    env, params = make_env(name, **PICTURES.get(name, {}))
    stream = Stream(env, params, num_envs=4)
    assert ("success" in stream.reported_info) == (name not in FORAGING)
    space = stream.observation_space
    spec = action_spec(stream.action_space)
    assert env.num_actions == spec.num_features

    steps = 20 if name in PICTURES else 100

    @jax.jit
    def run(key):
        def step(carry, key):
            state, timestep = carry
            action = jax.vmap(stream.action_space.sample)(jax.random.split(key, 4))
            return stream.step(state, action), timestep

        return jax.lax.scan(step, stream.reset(key), jax.random.split(key, steps))[1]

    timestep = jax.device_get(run(jax.random.key(0)))
    assert timestep.observation.shape == (steps, 4, *space.shape)
    assert timestep.observation.dtype == space.dtype
    assert timestep.action.dtype == stream.action_space.dtype
    # Within rounding: gymnax computes the time left as a difference.
    assert (timestep.observation >= space.low - 1e-6).all()
    assert (timestep.observation <= space.high + 1e-6).all()
    if spec.discrete:
        assert np.isin(timestep.action, range(env.num_actions)).all()
    else:
        assert (np.abs(timestep.action) <= 1).all()
    assert np.ptp(timestep.observation, axis=(0, 1)).any()


@pytest.mark.parametrize("name", sorted(set(ENVIRONMENTS) - SIZES - HARDER - {*SUITES}))
def test_types_are_the_same_in_64_bits(name):
    with jax.enable_x64(True):
        stream = require_consistent_env(Stream(*make_env(name), 1))
        observation, _ = stream.shapes.reset
        assert observation.dtype == stream.observation_space.dtype


@pytest.mark.parametrize(
    "name",
    [
        "TMazePassive-v0",
        "AssociativeRetrieval-v0",
        "MiniGrid-MemoryS9-v0",
        "Numpad-v0",
        "NumpadDiscrete-v0",
    ],
)
def test_gymnax_makes_and_steps_environments(name):
    env, params = gymnax.make(name)
    key = jax.random.key(0)
    _, state = env.reset(key, params)
    action = env.action_space(params).sample(key)
    observation, _, reward, terminated, truncated, info = env.step(key, state, action, params)
    assert observation.shape == env.observation_space(params).shape
    assert reward.shape == terminated.shape == truncated.shape == ()
    assert info["success"].dtype == jnp.bool_
    image = env.render(state, params)
    assert isinstance(image, np.ndarray)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3


def test_registered_environments_are_made_by_name():
    before = list(gymnax.registered_envs)
    for name, factory in ENVIRONMENTS.items():
        register_env(name, factory)
    assert gymnax.registered_envs == before
    assert set(ENVIRONMENTS) <= set(before)

    register_env("Registered-v0", PassiveTMaze)
    env, params = make_env("Registered-v0", corridor_length=3)
    assert isinstance(env, PassiveTMaze)
    assert params.corridor_length == 3
    for name in ("Registered-v0", "CartPole-v1"):
        with pytest.raises(ValueError, match=f"'{name}' is already registered"):
            register_env(name, AssociativeRetrieval)


def test_overrides_reach_parameters_and_constructor():
    env, params = make_env("MemoryChain-v0", memory_length=9, num_bits=3)
    assert params.memory_length == 9
    assert env.num_bits == 3
    _, params = make_env("CartPole-v1", max_steps_in_episode=7, gravity=1)
    assert (params.max_steps_in_episode, params.gravity) == (7, 1)
    _, params = make_env("TMazeActive-v0", corridor_length=np.int64(3), max_steps_in_episode=None)
    assert params.corridor_length == 3
    _, params = make_env("TMazeActive-v0", penalty="behind")
    assert params.penalty == "behind"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("ColorCubes-Medium", dict(teleport=0)),
        ("AppleMaze-v0", dict(block_probability=1, height=8, width=8)),
        ("MemoryMaze-9x9-v0", dict(extra_gaps=0, height=8, width=8)),
    ],
)
def test_whole_numbers_may_be_probabilities(name, overrides):
    assert Stream(*make_env(name, **overrides), 1).shapes


@pytest.mark.parametrize(
    ("name", "overrides", "limit"),
    [
        ("TMazePassive-v0", dict(corridor_length=50), 102),
        ("TMazePassive-v0", dict(corridor_length=50, max_steps_in_episode=99), 99),
        ("TMazeActive-v0", dict(corridor_length=50, cue_distance=2), 110),
        ("AssociativeRetrieval-v0", dict(wait_steps=50), 53),
        ("MiniGrid-MemoryS9-v0", {}, 405),
        ("Numpad-v0", {}, 500),
        ("NumpadDiscrete-v0", dict(size=4), 100),
        ("MemoryMaze-9x9-v0", {}, 1000),
        ("MemoryMaze-15x15-v0", {}, 4000),
        ("TwoColors-v0", {}, 2100),
        ("MemoryMaze-15x15-v0", dict(max_steps_in_episode=7), 7),
        ("RockSample-15-15", {}, 1000),
        ("EndlessTMaze-v0", dict(corridor_length=9, num_corridors=2), 120),
        ("ColorCubes-Medium", {}, 60),
        ("CartPole-v1", {}, 500),
    ],
)
def test_time_limits_follow_sizes(name, overrides, limit):
    env, params = make_env(name, **overrides)
    assert time_limit(env, params) == limit


@pytest.mark.parametrize("length", [10**9, np.int64(10**9)])
def test_derived_time_limit_has_32_bits(length):
    env, params = make_env("EndlessTMaze-v0", corridor_length=length)
    with pytest.raises(ValueError, match="max_steps_in_episode must be set, to at most 2147483647"):
        require_consistent_env(Stream(env, params, 1))
    assert time_limit(env, params.replace(max_steps_in_episode=2**31 - 1)) == 2**31 - 1


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("TMazePasive-v0", {}, "unknown environment 'TMazePasive-v0': .*'TMazePassive-v0'"),
        ("TMazePassive-v0", dict(coridor_length=3), "'coridor_length': .*'corridor_length'"),
        ("CartPole-v1", dict(max_steps=3), "parameter of CartPole-v1 .*'max_steps_in_episode'"),
        ("TMazePassive-v0", dict(corridor_length=0), "corridor_length must be at least 1, got 0"),
        ("TMazeActive-v0", dict(cue_distance=-1), "cue_distance must be at least 1, got -1"),
        ("TMazePassive-v0", dict(step_penalty=-0.1), r"step_penalty must be at least 0, got -0\.1"),
        ("AssociativeRetrieval-v0", dict(wait_steps=0), "wait_steps must be at least 1"),
        ("MemoryChain-bsuite", dict(memory_length=0), "memory_length must be at least 1"),
        ("MemoryChain-v0", dict(memory_length=1), "memory_length must be at least 2, got 1"),
        ("MemoryChain-v0", dict(num_bits=0), "num_bits must be at least 1"),
        ("MemoryChain-v0", dict(max_steps_in_episode=0), "max_steps_in_episode must be at least 1"),
        ("CartPole-v1", dict(gravity=float("nan")), "gravity must be finite"),
        ("MiniGrid-Memory", dict(size=8), "size must be odd and at least 7, got 8"),
        ("MiniGrid-MemoryS9-v0", dict(size=5), "size must be odd and at least 7, got 5"),
        ("MiniGrid-Memory", dict(view_size=4), "view_size must be odd and from 3 to 31, got 4"),
        ("MiniGrid-Memory", dict(tile_size=0), "tile_size must be at least 1, not 0"),
        ("MiniGrid-Memory", dict(num_actions=4), "num_actions must be 3 or 7, got 4"),
        ("MiniGrid-Memory", dict(observation="RGB"), "unknown observation 'RGB': .* rgb"),
        ("MiniGrid-Memory", dict(size=7, max_steps_in_episode=246), "must be at most .* = 245"),
        ("RockSample-11-11", dict(size=1), "size must be at least 2, got 1"),
        ("RockSample-5-5", dict(num_rocks=21), r"num_rocks must be from 1 to .* = 20, got 21"),
        ("RockSample-5-5", dict(half_efficiency_distance=0.0), "distance must be at least 0.001"),
        ("EndlessTMaze-v0", dict(lengths="unifrom"), "unknown lengths .*'uniform'"),
        ("ColorCubes-Medium", dict(num_cubes=24), r"num_cubes must be from 2 to .* = 23, got 24"),
        ("ColorCubes-Medium", dict(teleport=1.5), "teleport must be from 0 to 1, got 1.5"),
        ("Battleship-10", dict(size=8), "size must be one of 10, 5, 3, got 8"),
        ("Numpad-v0", dict(size=5), "size must be one of 2, 3, 4, got 5"),
        ("NumpadDiscrete-v0", dict(size=1), "size must be one of 2, 3, 4, got 1"),
        ("Numpad-v0", dict(friction=-1.0), "friction must be at least 0"),
        ("AppleMaze-v0", dict(size=10), "size must be odd, from 3 to 29, got 10"),
        ("AppleMaze-v0", dict(move_speed=0.71), "move_speed must be at most 0.7, got 0.71"),
        ("AppleMaze-v0", dict(block_probability=1.5), "block_probability must be at most 1, got"),
        ("TwoColors-v0", dict(size=31), "size must be from 3 to 30, got 31"),
        ("TwoColors-v0", dict(move_speed=1.0), "move_speed must be at most 0.99, got 1"),
        ("TwoColors-v0", dict(height=7), "height and width must be at least 8, got 7 and 112"),
        ("MemoryMaze-9x9-v0", dict(size=10), "size must be one of .*, got 10"),
        ("MemoryMaze-9x9-v0", dict(field_of_view=180), "field_of_view must be at most 179, got"),
        (
            "MemoryMaze-9x9-v0",
            dict(move_speed=4),
            r"move_speed \* step_seconds must be below 1",
        ),
        ("MemoryMaze-9x9-v0", dict(sliding=2), "sliding must be at most 1, got 2"),
        ("MemoryMaze-9x9-v0", dict(extra_gaps=80), "extra_gaps must be at most 1, got 80"),
        ("MemoryMaze-9x9-v0", dict(width=7), "height and width must be at least 8, got 64 and 7"),
    ],
)
def test_invalid_arguments_raise_value_error(name, overrides, message):
    with pytest.raises(ValueError, match=message) as error:
        make_env(name, **overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("TMazePassive-v0", dict(corridor_length=2.5), r"must be a whole number, got 2\.5"),
        ("TMazePassive-v0", dict(corridor_length=True), "must be a whole number, got True"),
        ("TMazePassive-v0", dict(step_penalty="high"), "must be a number, got 'high'"),
        ("MiniGrid-Memory", dict(tile_size=2.5), r"tile_size must be a whole number, not 2\.5"),
        ("MiniGrid-Memory", dict(tile_size="8"), "tile_size must be a whole number, not '8'"),
        ("PointRobot-misc", dict(dense_reward=1), "dense_reward must be True or False, got 1"),
    ],
)
def test_wrong_types_raise_type_error(name, overrides, message):
    with pytest.raises(TypeError, match=message):
        make_env(name, **overrides)


def test_failed_download_raises(monkeypatch):
    def fail():
        raise URLError("no route to host")

    monkeypatch.setattr("gymnax.utils.load_mnist.load_mnist", fail)
    with pytest.raises(ConnectionError, match="MNISTBandit-bsuite cannot download its data .no ro"):
        make_env("MNISTBandit-bsuite")


def test_standard_promotion_ends_with_context():
    with standard_dtype_promotion():
        assert (jnp.float32(1) + jnp.array([True])).shape == (1,)
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.bool_)
