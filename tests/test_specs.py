"""Specs of gymnax and gymnasium spaces, features, and actions in the environment's layout."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from gtrxl_jax.specs import (
    ActionSpec,
    ArraySpec,
    action_spec,
    environment_action,
    observation_spec,
)
from gtrxl_jax.timestep import zero_timestep

INF = float("inf")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (4,)), ArraySpec((4,), "float32")),
        (spaces.Box(0, 1, (10, 5), jnp.int32), ArraySpec((10, 5), "int32")),
        (spaces.Box(0, 255, (84, 84, 3), jnp.uint8), ArraySpec((84, 84, 3), "uint8", 1 / 255)),
        (spaces.Box(-100, 50, (2,), jnp.int32), ArraySpec((2,), "int32", 1 / 100)),
        (spaces.Box(-1, 1, (2,), jnp.int32), ArraySpec((2,), "int32", categories=3, low=-1)),
        (spaces.Box(0, np.array([10, 5]), (2,), jnp.uint8), ArraySpec((2,), "uint8", 1, 11)),
        (spaces.Discrete(64), ArraySpec((), "int32", categories=64)),
        (gymnasium.spaces.Discrete(3, start=2), ArraySpec((), "int64", categories=3, low=2)),
        (gymnasium.spaces.Box(-np.inf, np.inf, (3,)), ArraySpec((3,), "float32")),
        (np.zeros((2, 2), bool), ArraySpec((2, 2), "bool")),
        (jax.ShapeDtypeStruct((8, 8, 3), jnp.uint8), ArraySpec((8, 8, 3), "uint8", 1 / 255)),
        (np.zeros(3, np.int32), ArraySpec((3,), "int32")),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 1.0, (1,))}),
            {"a": ArraySpec((1,)), "b": ArraySpec((), "int32", categories=2)},
        ),
    ],
)
def test_observation_spec(space, expected):
    assert observation_spec(space) == expected


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (spaces.Box(0, 255, (84, 84, 3), jnp.uint8), True),
        (gymnasium.spaces.Box(0, 255, (8, 9), np.uint8), True),
        (spaces.Box(0, 255, (7, 7, 3), jnp.uint8), False),
        (spaces.Box(0, 6, (9, 9, 3), jnp.uint8), False),
        (spaces.Box(0, 255, (128,), jnp.uint8), False),
        (spaces.Box(0.0, 1.0, (84, 84, 3)), False),
        (spaces.Box(0, 1, (10, 10, 4), jnp.bool_), False),
    ],
)
def test_images_are_bytes_of_some_size(space, is_image):
    assert observation_spec(space).is_image == is_image


def test_an_image_without_contrast_has_finite_features_and_gradients():
    image = jnp.full((8, 8, 3), 255, jnp.uint8)
    features = observation_spec(image).features(image, jnp.float32)
    np.testing.assert_array_equal(features, np.zeros((8, 8, 3)))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_features_of_observations(lead):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*lead, 4, 4, 3), dtype=np.uint8)
    features = observation_spec(image[(0,) * len(lead)]).features(jnp.asarray(image), jnp.float32)
    np.testing.assert_allclose(features, image / 255, rtol=1e-6)

    image = rng.integers(0, 256, (*lead, 8, 9, 3), dtype=np.uint8)
    features = observation_spec(image[(0,) * len(lead)]).features(jnp.asarray(image), jnp.float32)
    mean, variance = (f(image / 255, axis=(-3, -2, -1), keepdims=True) for f in (np.mean, np.var))
    np.testing.assert_allclose(features, (image / 255 - mean) / np.sqrt(variance + 1e-4), atol=1e-5)

    signs = rng.integers(-1, 2, (*lead, 4))
    spec = observation_spec(spaces.Box(-1, 1, (4,), jnp.int32))
    expected = np.eye(3)[signs + 1].reshape(*lead, 12)
    np.testing.assert_array_equal(spec.features(jnp.asarray(signs), jnp.float32), expected)
    assert spec.feature_shape == (12,)

    spec = observation_spec(spaces.Discrete(5))
    state = rng.integers(0, 5, lead)
    np.testing.assert_array_equal(spec.features(jnp.asarray(state), jnp.float32), np.eye(5)[state])

    flags = jnp.ones((*lead, 2), bool)
    assert ArraySpec((2,), "bool").features(flags, jnp.bfloat16).dtype == jnp.bfloat16


CONTINUOUS = spaces.Box(np.array([-1.0, 0.0, -np.inf]), np.array([1.0, 10.0, np.inf]), (3,))
BOUNDS = ((-1.0, 1.0), (0.0, 10.0), (-INF, INF))
TWO = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])

ACTIONS = {
    "discrete": (spaces.Discrete(3), ActionSpec(discrete=(3,))),
    "continuous": (CONTINUOUS, ActionSpec(continuous=BOUNDS)),
    "tuple": (TWO, ActionSpec(discrete=(2, 3))),
    "multi-discrete": (gymnasium.spaces.MultiDiscrete([2, 3]), ActionSpec(discrete=(2, 3))),
    "hybrid": (
        spaces.Dict({"continuous": CONTINUOUS, "discrete": spaces.Discrete(2)}),
        ActionSpec(BOUNDS, (2,)),
    ),
    "hybrid-tuple": (spaces.Tuple([CONTINUOUS, TWO]), ActionSpec(BOUNDS, (2, 3))),
    "hybrid-gymnasium": (
        gymnasium.spaces.Dict(
            continuous=gymnasium.spaces.Box(-2, 2, (1,)),
            discrete=gymnasium.spaces.MultiDiscrete([4, 4]),
        ),
        ActionSpec(((-2.0, 2.0),), (4, 4)),
    ),
}


@pytest.mark.parametrize(("space", "expected"), ACTIONS.values(), ids=ACTIONS)
def test_action_spec(space, expected):
    spec = action_spec(space)
    assert spec == expected
    assert hash(spec) == hash(expected)


@pytest.mark.parametrize(("space", "spec"), ACTIONS.values(), ids=ACTIONS)
def test_environment_action_layout(space, spec):
    action = environment_action(space, spec.zeros())
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        assert space.contains(np.asarray(action))
        return
    if isinstance(space, gymnasium.spaces.Dict):
        assert space.contains(jax.tree.map(np.asarray, action))
        return
    example = space.sample(jax.random.key(0))
    example = dict(example) if isinstance(example, dict) else example
    assert jax.tree.map(jnp.shape, action) == jax.tree.map(jnp.shape, example)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("name", ["continuous", "hybrid", "hybrid-tuple", "hybrid-gymnasium"])
def test_environment_action_is_clipped(name, lead):
    space, spec = ACTIONS[name]
    rng = np.random.default_rng(0)
    drawn = jnp.asarray(rng.normal(0, 20, (*lead, spec.num_continuous)), jnp.float32)
    drawn = drawn.at[..., 0].set(-30.0)
    action = drawn
    if spec.is_hybrid:
        action = {"continuous": drawn, "discrete": spec.zeros(*lead)["discrete"]}
    given = jax.jit(lambda action: environment_action(space, action))(action)
    if spec.is_hybrid:
        given = given[0] if isinstance(given, tuple) else given["continuous"]
    low, high = np.array(spec.continuous).T
    assert given.dtype == drawn.dtype
    np.testing.assert_array_equal(given, np.clip(drawn, low, high))
    assert np.all(given[..., 0] == low[0])
    if name != "hybrid-gymnasium":
        np.testing.assert_array_equal(given[..., 2], drawn[..., 2])  # unbounded


def test_environment_action_keeps_nan():
    given = environment_action(CONTINUOUS, jnp.array([jnp.nan, jnp.inf, jnp.inf]))
    np.testing.assert_array_equal(given, [np.nan, 10.0, np.inf])


def test_environment_action_keeps_order_of_choices():
    choices = jnp.array([[1, 2], [0, 1]])
    first, second = environment_action(TWO, {"discrete": choices})
    np.testing.assert_array_equal(first, [1, 0])
    np.testing.assert_array_equal(second, [2, 1])


def test_features_of_actions():
    spec = ActionSpec(BOUNDS, (2, 3))
    action = {"continuous": jnp.array([[-1.0, 10.0, 7.0]]), "discrete": jnp.array([[1, 2]])}
    np.testing.assert_allclose(
        spec.features(action, jnp.float32), [[-1.0, 1.0, 7.0, 0, 1, 0, 0, 1]], rtol=1e-6
    )
    assert spec.num_features == 8
    one = ActionSpec(discrete=(3,)).features(jnp.array([[2, 0]]), jnp.float32)
    np.testing.assert_array_equal(one, [[[0, 0, 1], [1, 0, 0]]])


@pytest.mark.parametrize("lead", [(), (3,), (1, 1), (2, 3)])
@pytest.mark.parametrize(("space", "spec"), ACTIONS.values(), ids=ACTIONS)
def test_features_of_every_kind_of_action(space, spec, lead):
    del space
    rng = np.random.default_rng(1)
    continuous = jnp.asarray(rng.uniform(0, 1, (*lead, spec.num_continuous)), jnp.float32)
    choices = [rng.integers(0, size, lead) for size in spec.discrete]
    action = spec.zeros(*lead)
    if spec.is_hybrid:
        parts = {"continuous": continuous, "discrete": jnp.stack(jnp.asarray(choices), axis=-1)}
        action = {name: parts[name] for name in action}
    else:
        action = continuous if spec.continuous else jnp.asarray(choices[0])
    features = spec.features(action, jnp.float32)
    one_hot = [np.eye(size)[choice] for size, choice in zip(spec.discrete, choices, strict=True)]
    if one_hot:
        np.testing.assert_array_equal(
            features[..., spec.num_continuous :], np.concatenate(one_hot, axis=-1)
        )
    if spec.continuous:
        centre, half = spec.centre_and_half_width()
        scaled = (np.asarray(continuous) - centre.astype(np.float32)) / half.astype(np.float32)
        np.testing.assert_allclose(features[..., : spec.num_continuous], scaled, rtol=1e-6)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_random_actions_fill_bounds(lead):
    spec = ActionSpec(((-1.0, 1.0), (0.0, 10.0)), (2, 5))
    sample = jax.vmap(lambda key: spec.sample(key, *lead))
    drawn = sample(jax.random.split(jax.random.key(0), 300))
    assert drawn["continuous"].shape == (300, *lead, 2)
    assert drawn["discrete"].shape == (300, *lead, 2)
    for k, (low, high) in enumerate(spec.continuous):
        x = drawn["continuous"][..., k]
        assert x.min() >= low
        assert x.max() <= high
        np.testing.assert_allclose(x.mean(), (low + high) / 2, atol=0.1 * (high - low))
        np.testing.assert_allclose(x.std(), (high - low) / 12**0.5, rtol=0.1)
    for k, size in enumerate(spec.discrete):
        counts = np.bincount(drawn["discrete"][..., k].ravel(), minlength=size)
        assert len(counts) == size
        assert counts.min() > 0.6 * counts.mean()


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("space", "spec"), ACTIONS.values(), ids=ACTIONS)
def test_zero_timestep_matches_spaces(space, spec, lead):
    timestep = zero_timestep({"image": np.zeros((4, 4, 3), np.uint8)}, space, *lead)
    assert {leaf.shape[: len(lead)] for leaf in jax.tree.leaves(timestep)} == {lead}
    assert timestep.observation["image"].dtype == jnp.uint8
    assert spec.features(timestep.action, jnp.float32).shape == (*lead, spec.num_features)
    assert np.all(timestep.first)
    assert not np.any(timestep.last)


@pytest.mark.parametrize(
    ("read", "space", "error", "message"),
    [
        (observation_spec, TWO, TypeError, "observation_space is a Tuple; use a Box"),
        (observation_spec, "image", TypeError, "observation_space is a str"),
        (observation_spec, spaces.Discrete(10**6), ValueError, "too many for one-hot"),
        (observation_spec, {"x": [1]}, TypeError, r"observation_space\['x'\] is a list"),
        (action_spec, spaces.Box(-1.0, 1.0, ()), ValueError, "must have one axis"),
        (action_spec, spaces.Box(0, 5, (2,), jnp.int32), ValueError, "must have a float dtype"),
        (action_spec, spaces.Box(1.0, 1.0, (2,)), ValueError, "low must be below high"),
        (action_spec, spaces.Dict({"move": CONTINUOUS}), ValueError, r"Dict of \['move'\]"),
        (action_spec, spaces.Tuple([spaces.Discrete(3)]), ValueError, "use Discrete for a single"),
        (action_spec, spaces.Tuple([]), ValueError, "at least 1"),
        (action_spec, spaces.Tuple([TWO, TWO]), TypeError, "no policy supports"),
        (action_spec, gymnasium.spaces.Discrete(3, start=1), ValueError, "0 .. n - 1"),
        (action_spec, gymnasium.spaces.Text(5), TypeError, "no policy supports"),
        (
            action_spec,
            spaces.Dict({"continuous": TWO, "discrete": TWO}),
            TypeError,
            "must be a Box",
        ),
    ],
)
def test_unsupported_spaces_raise(read, space, error, message):
    with pytest.raises(error, match=message) as caught:
        read(space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (ActionSpec(BOUNDS), jnp.zeros((2, 1))),
        (ActionSpec(BOUNDS), {"continuous": jnp.zeros((2, 3))}),
        (ActionSpec(discrete=(2, 3)), {"discrete": jnp.zeros((2, 1), jnp.int32)}),
        (ActionSpec(discrete=(2, 3)), jnp.zeros((2, 3), jnp.int32)),
        (ActionSpec(discrete=(2, 3)), {"choices": jnp.zeros((2, 2), jnp.int32)}),
        (ActionSpec(discrete=(3,)), {"discrete": jnp.zeros(2, jnp.int32)}),
        (ActionSpec(BOUNDS, (2,)), (jnp.zeros((2, 3)),)),
        (ActionSpec(BOUNDS, (2, 3)), jnp.zeros((2, 5))),
        (ActionSpec(BOUNDS, (2,)), {"continuous": jnp.zeros((2, 3))}),
    ],
)
def test_actions_with_wrong_layout_raise(spec, action):
    with pytest.raises(ValueError, match="use the layout of the policy's samples"):
        spec.features(action, jnp.float32)


def test_observations_with_wrong_shape_raise():
    with pytest.raises(ValueError, match=r"shape \(2, 5\), but one observation of its space has"):
        ArraySpec((4,)).features(jnp.zeros((2, 5)), jnp.float32)
