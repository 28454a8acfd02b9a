"""Normalizers against NumPy, and inputs whose units, offsets and dtypes do not matter."""

import functools
import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnax.environments import spaces

from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.nn.encoders import make_encoder
from gtrxl_jax.nn.normalizer import (
    LARGEST,
    Normalizer,
    copy_normalizers,
    normalizer_statistics,
    update_normalizers,
    without_statistics,
)
from gtrxl_jax.timestep import zero_timestep
from tests.tiers import slow_except

FREE = (-jnp.inf, jnp.inf)
INPUTS = {
    "vector": (spaces.Box(*FREE, (3,)), "mlp"),
    "scalar": (spaces.Box(*FREE, ()), "mlp"),
    "grid": (spaces.Box(*FREE, (5, 6, 2)), "conv"),
    "image": (spaces.Box(*FREE, (12, 16, 3)), "resnet"),
}


def batch_of(space):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(0, 40, (16, 4, *space.shape)), jnp.float32)


def features(space, name, observation, **settings):
    """Return the features of observations, by an encoder that has seen them."""
    encoder = make_encoder(space, name, width=8, **settings)
    variables = jax.jit(encoder.init)(jax.random.key(0), observation)
    variables = jax.jit(
        lambda variables, x: update_normalizers(encoder, variables, x, method="__call__")
    )(variables, observation)
    return np.asarray(jax.jit(encoder.apply)(variables, observation), np.float32)


def test_without_centering_inputs_are_relative_to_their_root_mean_square():
    module = Normalizer((2,), center=False)
    x = np.random.default_rng(0).standard_normal((50, 2)) * [0.3, 4.0] + [1.0, -20.0]
    given = jnp.asarray(x, jnp.float32)
    variables = module.init(jax.random.key(0), given)
    np.testing.assert_allclose(module.apply(variables, given[:, :1] * 0 + 2), 2.0)
    variables = update_normalizers(module, variables, given, method="__call__")
    expected = x / np.sqrt((x**2).mean(axis=0))
    np.testing.assert_allclose(module.apply(variables, given), expected, rtol=1e-5)


def test_statistics_are_of_all_that_was_seen():
    module, rng = Normalizer((3,)), np.random.default_rng(0)
    first, second = rng.standard_normal((2, 10, 3)) * [1, 5, 0.1] + [0, 7, -3]
    variables = module.init(jax.random.key(0), jnp.asarray(first, jnp.float32))
    for batch in (first, second[:4]):
        x = jnp.asarray(batch, jnp.float32)
        variables = update_normalizers(module, variables, x, method="__call__")
    everything = np.concatenate([first, second[:4]])
    found = normalizer_statistics(variables["params"])
    assert found["count"] == 14
    np.testing.assert_allclose(found["mean"], everything.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["variance"], everything.var(0), rtol=1e-4)
    expected = (second - everything.mean(0)) / everything.std(0)
    actual = module.apply(variables, jnp.asarray(second, jnp.float32))
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    far = module.apply(variables, jnp.full(3, 1e9))
    np.testing.assert_array_equal(far, LARGEST)


PICTURE = spaces.Box(*FREE, (36, 40, 3))


@pytest.mark.parametrize("unit", slow_except([2.0**-20, 2.0**20], [2.0**20]))
def test_units_of_pixels_do_not_matter(unit):
    """Powers of two change no rounding, so features are equal to the last bit."""
    x = batch_of(PICTURE)
    expected = features(PICTURE, "nature", x)
    assert expected.std() > 0.1
    np.testing.assert_array_equal(features(PICTURE, "nature", unit * x), expected)
    np.testing.assert_allclose(features(PICTURE, "nature", 3e4 + x), expected, atol=0.05)


@pytest.mark.parametrize(("space", "name"), INPUTS.values(), ids=INPUTS)
def test_declared_ranges_of_floats_do_not_matter(space, name):
    x, declared = batch_of(space), spaces.Box(0.0, 255.0, space.shape)
    np.testing.assert_array_equal(features(declared, name, x), features(space, name, x))


def normal(x, tolerance):
    module = Normalizer((1,), tolerance=tolerance)
    variables = module.init(jax.random.key(0), x)
    return np.asarray(module.apply(update_normalizers(module, variables, x, method="__call__"), x))


@pytest.mark.parametrize("tolerance", [1.0, 3.0])
@pytest.mark.parametrize("offset", [0.0, 1.0, -3e4])
@pytest.mark.parametrize("unit", [1e-6, 0.2, 1.0, 7.0, 1e6])
def test_tolerance(tolerance, offset, unit):
    """What is ordinary stays as it is, and nothing remains extraordinary."""
    rng = np.random.default_rng(0)
    x = np.asarray(unit * (offset + rng.standard_normal((1000, 1))), np.float32)
    y = normal(jnp.asarray(x), tolerance)
    assert 0.99 / tolerance < y.std() < 1.01 * tolerance
    assert abs(y.mean()) < tolerance - 1 + 0.05
    is_ordinary = 1 / tolerance < x.std() < tolerance and abs(x.mean()) < tolerance - 1
    assert is_ordinary == np.array_equal(y, x)
    # Distances keep their proportions.
    scale = x.std() / y.std()
    np.testing.assert_allclose(y[1:] - y[:-1], (x[1:] - x[:-1]) / scale, atol=0.02 * y.std())


@pytest.mark.parametrize(
    ("dtype", "high"),
    slow_except(
        itertools.product([jnp.uint8, jnp.int32, jnp.int16], [100, 255]),
        [(jnp.uint8, 255), (jnp.int32, 100), (jnp.int16, 100)],
    ),
)
def test_declared_integers_do_not_matter(dtype, high):
    """A few small numbers look the same in any range that is declared for them."""
    x = batch_of(spaces.Box(*FREE, (5, 6, 2))).astype(dtype)
    declared, other = (spaces.Box(0, n, (5, 6, 2), dtype) for n in (high, 50))
    assert features(other, "conv", x).std() > 0.1
    np.testing.assert_allclose(features(declared, "conv", x), features(other, "conv", x), atol=1e-5)


def test_choices_are_normalized():
    """Those that never change vanish, and those of each cell of a grid count alike."""
    rng = np.random.default_rng(0)
    cells = np.full((16, 4, 3, 3, 2), 5)
    cells[..., 1, 2, 0] = rng.integers(0, 11, (16, 4))
    cells[0, 0, 2, 2, 1] = 7
    space = gymnasium.spaces.MultiDiscrete(np.full((3, 3, 2), 11))
    found = features(space, "linear", jnp.asarray(cells)).reshape(64, 3, 3, 2, 11)
    varies = (cells.reshape(64, 3, 3, 2, 1) == np.arange(11)).std(axis=0) > 0
    assert varies.sum() == 11 + 2
    np.testing.assert_allclose(found[:, ~varies], 0, atol=1e-6)
    np.testing.assert_allclose(found[:, varies].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found[:, varies].std(axis=0), 1, atol=1e-3)


def test_choices_are_one_hot_before_the_first_update():
    """Also beside numbers, which are scaled by their declared range."""
    space = spaces.Box(jnp.array([0, 0]), jnp.array([2, 1200]), (2,), jnp.int32)
    encoder = make_encoder(space, "linear")
    seen = jnp.array([[1, 600], [2, 1200]])
    variables = encoder.init(jax.random.key(0), seen)
    expected = [[0, 1, 0, 0], [0, 0, 1, 3**0.5]]
    np.testing.assert_allclose(encoder.apply(variables, seen), expected, atol=1e-6)


def test_casts_come_last():
    """bfloat16 has a resolution of 128 at 30,000, in which differences of 50 would vanish."""
    space = spaces.Box(*FREE, (1,))
    x = 30_000 + 50 * jnp.arange(16.0).reshape(16, 1)
    exact = features(space, "linear", x)
    low = features(space, "linear", x, dtype=jnp.bfloat16)
    np.testing.assert_allclose(low, exact, rtol=0.01)
    assert len(np.unique(low)) == 16


@pytest.mark.parametrize("shape", [(16, 16, 3), (16, 16), (3,)])
def test_brightness_is_an_input(shape):
    space = spaces.Box(0, 255, shape, jnp.uint8)
    x = jnp.stack([jnp.full((4, *shape), value, jnp.uint8) for value in (10, 90, 240)])
    dark, grey, bright = features(space, "auto", x)[:, 0]
    assert np.abs(dark - grey).max() > 0.1
    assert np.abs(grey - bright).max() > 0.1


def make_some_agent():
    space = spaces.Dict({"a": INPUTS["vector"][0], "flags": spaces.Box(0, 1, (2,), jnp.bool_)})
    agent = make_agent(make_core("lstm", width=8), space, spaces.Discrete(3), encoder_width=8)
    example = zero_timestep(space, spaces.Discrete(3), 2, 5)
    params = jax.jit(agent.init)(jax.random.key(0), agent.initial_memory(2), example)
    return agent, params, example


def test_rewards_that_belong_to_an_episode_count():
    agent, params, steps = make_some_agent()
    rng = np.random.default_rng(1)
    first = rng.random((2, 5)) < 0.4
    reward = rng.standard_normal((2, 5)).astype(np.float32)
    steps = steps.replace(
        observation={**steps.observation, "a": jnp.repeat(jnp.asarray(reward)[..., None], 3, -1)},
        reward=jnp.asarray(reward),
        first=jnp.asarray(first),
    )
    params = jax.jit(functools.partial(update_normalizers, agent))(params, steps)
    found = normalizer_statistics(params["params"])
    assert int(found["encoder/reward/count"]) == (~first).sum() < first.size
    np.testing.assert_allclose(found["encoder/reward/mean"], reward[~first].mean(), rtol=1e-4)
    a = "encoder/observation/encoders_a/features/normalizer/mean"
    np.testing.assert_allclose(found[a], np.full(3, reward.mean()), rtol=1e-4)
    assert len(found) == 3 * 3


@pytest.mark.parametrize("tolerance", [1.0, 3.0])
def test_nothing_is_clipped_without_statistics(tolerance):
    """Such as inputs of a run that does not normalize them, and images of floats."""
    x = jnp.asarray([-5e5, -20.0, 0.0, 3.0, 255.0])
    module = Normalizer(tolerance=tolerance)
    variables = module.init(jax.random.key(0), x)
    np.testing.assert_array_equal(module.apply(variables, x), x)
    variables = update_normalizers(module, variables, x[1:4], method="__call__")
    y = module.apply(variables, x)
    assert (y.min(), y.max()) == (-LARGEST * tolerance, LARGEST * tolerance)


def test_only_updates_change_statistics():
    agent, params, steps = make_some_agent()
    steps = steps.replace(reward=steps.reward + 3, first=~steps.first)
    params = jax.jit(functools.partial(update_normalizers, agent))(params, steps)
    assert normalizer_statistics(params["params"])["encoder/reward/mean"] == 3

    def kernels(params):
        return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)

    optimizer = optax.adamw(0.1, mask=kernels)
    state = jax.jit(optimizer.init)(params)

    def loss(params):
        _, output = agent.apply(params, agent.initial_memory(2), steps)
        return jnp.sum(output.value**2)

    @jax.jit
    def step(params):
        changes, _ = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, changes)

    with jax.numpy_dtype_promotion("standard"):
        trained = step(params)
    before, after = (normalizer_statistics(x["params"]) for x in (params, trained))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), params, trained)
    assert moved["params"]["encoder"]["Dense_0"]["kernel"]


def test_statistics_of_another_copy():
    agent, params, steps = make_some_agent()
    other = update_normalizers(agent, params, steps)["params"]
    changed = jax.tree.map(lambda x: x + 1, params["params"])
    taken = copy_normalizers(changed, other)
    jax.tree.map(
        np.testing.assert_array_equal, normalizer_statistics(taken), normalizer_statistics(other)
    )
    jax.tree.map(
        np.testing.assert_array_equal, without_statistics(taken), without_statistics(changed)
    )
