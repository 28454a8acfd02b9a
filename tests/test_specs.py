"""Specs of gymnax and gymnasium spaces, features, actions in the environment's layout, values."""

import re
from typing import Any

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
    agent_action,
    describe_outside,
    environment_action,
    first_outside,
    observation_spec,
    require_values,
)
from gtrxl_jax.specs.spaces import text_tokens, texts_of
from gtrxl_jax.specs.values import BELONGS
from gtrxl_jax.timestep import zero_timestep
from tests import spaces as every
from tests.spaces import OBSERVATIONS, draw

theirs: Any = gymnasium.spaces
INF = float("inf")
POINT = theirs.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (4,)), ArraySpec((4,), "float32")),
        (spaces.Box(0, 1, (10, 5), jnp.int32), ArraySpec((10, 5), "int32", (0, 1))),
        (spaces.Box(0, 255, (84, 84, 3), jnp.uint8), ArraySpec((84, 84, 3), "uint8", (0, 255))),
        (spaces.Box(-100, 50, (2,), jnp.int32), ArraySpec((2,), "int32", (-100, 50))),
        (spaces.Box(-1, 1, (2,), jnp.int32), ArraySpec((2,), "int32", categories=3, low=-1)),
        (
            spaces.Box(0, np.array([10, 5]), (2,), jnp.uint8),
            ArraySpec((2,), "uint8", categories=11),
        ),
        (spaces.Discrete(64), ArraySpec((), "int32", categories=64)),
        (gymnasium.spaces.Discrete(3, start=2), ArraySpec((), "int64", categories=3, low=2)),
        (gymnasium.spaces.Box(-np.inf, np.inf, (3,)), ArraySpec((3,), "float32")),
        (np.zeros((2, 2), bool), ArraySpec((2, 2), "bool")),
        (jax.ShapeDtypeStruct((8, 8, 3), jnp.uint8), ArraySpec((8, 8, 3), "uint8", (0, 255))),
        (np.zeros(3, np.int32), ArraySpec((3,), "int32")),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 1.0, (1,))}),
            {"a": ArraySpec((1,)), "b": ArraySpec((), "int32", categories=2)},
        ),
        (theirs.MultiDiscrete([3, 3]), ArraySpec((2,), "int64", categories=3)),
        (
            theirs.MultiDiscrete([3, 5], start=[1, 0]),
            ArraySpec((2,), "int64", categories=(3, 5), low=(1, 0)),
        ),
        (theirs.MultiBinary([2, 3]), ArraySpec((2, 3), "int8", (0, 1))),
        (theirs.Text(7, charset="abc"), ArraySpec((7,), "int32", categories=4)),
        (
            theirs.Box(np.array([0, 0]), np.array([1000, 2]), dtype=np.int32),
            ArraySpec((2,), "int32", (0, 1000), categories=(None, 3), low=(0, 0)),
        ),
        (spaces.Box(-jnp.inf, jnp.inf, (2,), jnp.int32), ArraySpec((2,), "int32")),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)))),
            (ArraySpec((), "int32", categories=2), ArraySpec((1,))),
        ),
    ],
)
def test_observation_spec(space, expected):
    spec = observation_spec(space)
    assert spec == expected
    assert jax.tree.map(hash, spec) == jax.tree.map(hash, expected)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_zero_timestep_of_every_kind_of_observation(name):
    space = OBSERVATIONS[name]
    observation = zero_timestep(space, spaces.Discrete(2), 2, 3).observation
    spec, drawn = observation_spec(space), draw(space, jax.random.key(0))
    assert jax.tree.map(lambda x: (x.shape[2:], x.dtype), observation) == jax.tree.map(
        lambda x: (x.shape, x.dtype), drawn
    )
    features = jax.tree.map(lambda s, x: s.features(x, jnp.float32), spec, observation)
    assert jax.tree.map(jnp.shape, features) == jax.tree.map(
        lambda s: (2, 3, *s.feature_shape), spec
    )


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_features_of_entries_with_bounds_of_their_own(lead):
    low, high = np.array([[0, -1], [5, 0]]), np.array([[1000, 1], [5, 2]])
    rng = np.random.default_rng(0)
    x = rng.integers(low, high + 1, (*lead, 2, 2))
    spec = observation_spec(theirs.Box(low, high, dtype=np.int64))
    expected = [
        x[..., 0, 0, None],
        np.eye(3)[x[..., 0, 1] + 1],
        np.ones((*lead, 1)),
        np.eye(3)[x[..., 1, 1]],
    ]
    features = spec.features(jnp.asarray(x, jnp.int32), jnp.float32)
    np.testing.assert_allclose(features, np.concatenate(expected, axis=-1), rtol=1e-6)
    assert spec.feature_shape == (8,)


def test_categories_beyond_a_narrow_dtype_are_not_matched():
    spec = observation_spec(theirs.MultiDiscrete([300, 5]))
    features = spec.features(jnp.array([43, 1], jnp.uint8), jnp.float32)
    np.testing.assert_array_equal(np.flatnonzero(features), [43, 301])


def test_bounds_by_channel_keep_the_axes_of_a_grid():
    high = np.broadcast_to([40, 1], (3, 4, 2))
    spec = observation_spec(theirs.Box(np.zeros_like(high), high, dtype=np.int32))
    assert spec == ArraySpec((3, 4, 2), "int32", (0, 40), categories=(None, 2), low=(0, 0))
    x = np.random.default_rng(0).integers(0, high + 1)
    features = spec.features(jnp.asarray(x, jnp.int32), jnp.float32)
    np.testing.assert_allclose(features[..., :1], x[..., :1], rtol=1e-6)
    np.testing.assert_array_equal(features[..., 1:], np.eye(2)[x[..., 1]])


def test_texts_become_tokens():
    space = theirs.Text(4, charset="ba ca")  # gymnasium keeps what is repeated
    tokens = text_tokens(space, ["", "a", b"b ca"])
    np.testing.assert_array_equal(tokens, [[0] * 4, [2, 0, 0, 0], [3, 1, 4, 2]])
    assert texts_of(space, tokens) == ["", "a", "b ca"]
    with pytest.raises(ValueError, match="the text 'abcab' has more than 4 characters"):
        text_tokens(space, ["abcab"])
    with pytest.raises(ValueError, match="a text has padding, the token 0, before its end"):
        texts_of(space, np.array([[1, 0, 2, 0]]))
    with pytest.raises(ValueError, match="the text 'dog' has 'd', which is not in its space"):
        text_tokens(space, ["dog"])


@pytest.mark.parametrize(
    ("shape", "channels", "axes", "image_shape"),
    [
        ((84, 84, 4), "auto", "", (84, 84, 4)),
        ((4, 84, 84), "auto", "chw", (84, 84, 4)),
        ((3, 96, 128), "auto", "chw", (96, 128, 3)),
        ((12, 64, 64), "auto", "chw", (64, 64, 12)),
        ((9, 11, 21), "auto", "", (9, 11, 21)),
        ((9, 9, 21), "auto", "", (9, 9, 21)),
        ((7, 7, 3), "auto", "", (7, 7, 3)),
        ((3, 7, 7), "auto", "", (3, 7, 7)),
        ((3, 7, 7), "chw", "chw", (7, 7, 3)),
        ((4, 84, 84), "hwc", "", (4, 84, 84)),
        ((4, 64, 64, 3), "auto", "fhwc", (64, 64, 12)),
        ((4, 3, 64, 64), "auto", "fchw", (64, 64, 12)),
        ((4, 3, 64, 64), "chw", "fchw", (64, 64, 12)),
        ((2, 5, 6, 3), "hwc", "fhwc", (5, 6, 6)),
        ((2, 5, 6, 3), "auto", "", (2, 5, 6, 3)),
        ((64, 64), "auto", "", (64, 64)),
        ((64,), "chw", "", (64,)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_axes_of_images(shape, channels, axes, image_shape, dtype):
    high = 255 if dtype == np.uint8 else 1.0
    spec = observation_spec(spaces.Box(0, high, shape, dtype), channels=channels)
    assert spec.axes == axes
    assert spec.feature_shape == spec.image_shape == image_shape


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 9, 8), (1, 2, 0)), ((3, 9, 8, 2), (1, 2, 0, 3)), ((3, 2, 9, 8), (2, 3, 0, 1))],
)
def test_features_of_images_have_channels_last(shape, order):
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, *shape)), jnp.float32)
    features = observation_spec(spaces.Box(-1.0, 1.0, shape)).features(image, jnp.float32)
    for b, t in np.ndindex(2, 3):
        expected = np.asarray(image)[b, t].transpose(order).reshape(9, 8, -1)
        np.testing.assert_array_equal(features[b, t], expected)


@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 9, 8), (1, 2, 0)), ((3, 9, 8, 2), (1, 2, 0, 3)), ((3, 2, 9, 8), (2, 3, 0, 1))],
)
def test_bounds_of_entries_move_with_their_channels(shape, order, by_channel):
    """An array is encoded as one whose channels are last as it comes."""
    rng = np.random.default_rng(0)
    moved = tuple(np.array(shape)[list(order)])
    high = np.broadcast_to(rng.choice([2, 5, 99], moved[2:] if by_channel else moved), moved)
    x = rng.integers(0, high + 1, dtype=np.int32)
    channels_last, given = (
        theirs.Box(np.zeros_like(z), z, dtype=np.int32)
        for z in (high.reshape(9, 8, -1), high.transpose(np.argsort(order)))
    )
    expected = observation_spec(channels_last, channels="hwc")
    spec = observation_spec(given, channels="hwc" if order[-1] == 3 else "chw")
    assert len(spec.feature_shape) == (3 if by_channel else 1)
    assert (spec.categories, spec.feature_shape) == (expected.categories, expected.feature_shape)
    np.testing.assert_array_equal(
        spec.features(jnp.asarray(x.transpose(np.argsort(order))), jnp.float32),
        expected.features(jnp.asarray(x.reshape(9, 8, -1)), jnp.float32),
    )


def test_stacks_of_cells_have_their_channels_one_hot():
    cells = np.random.default_rng(0).integers(0, 3, (2, 9, 8))
    features = observation_spec(spaces.Box(0, 2, (2, 9, 8), jnp.int32)).features(
        jnp.asarray(cells, jnp.int32), jnp.float32
    )
    np.testing.assert_array_equal(features, np.eye(3)[cells.transpose(1, 2, 0)].reshape(9, 8, 6))


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (spaces.Box(0, 255, (84, 84, 3), jnp.uint8), True),
        (gymnasium.spaces.Box(0, 255, (8, 9), np.uint8), True),
        (spaces.Box(0, 255, (7, 7, 3), jnp.uint8), False),
        (spaces.Box(0, 6, (9, 9, 3), jnp.uint8), False),
        (spaces.Box(0, 255, (128,), jnp.uint8), False),
        (spaces.Box(0.0, 1.0, (84, 84, 3)), True),
        (spaces.Box(0.0, 1.0, (40, 40)), True),
        (spaces.Box(0.0, 1.0, (10, 10, 4)), False),
        (spaces.Box(0, 1, (40, 40, 4), jnp.bool_), False),
        (spaces.Box(0, 1, (10, 10, 4), jnp.bool_), False),
    ],
)
def test_images_are_pixels_of_some_size(space, is_image):
    assert observation_spec(space).is_image == is_image


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_features_of_observations(lead):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*lead, 4, 4, 3), dtype=np.uint8)
    features = observation_spec(image[(0,) * len(lead)]).features(jnp.asarray(image), jnp.float32)
    np.testing.assert_array_equal(features, image)

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


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("name", every.ACTIONS)
def test_actions_of_every_kind_of_space(name, lead):
    """Drawn actions of the spec belong to the space, and come back from it as they were."""
    space = every.ACTIONS[name]
    action = action_spec(space).sample(jax.random.key(0), *lead)
    entered = environment_action(space, action)
    require_values(space, entered, "action")
    if isinstance(space, theirs.Space) and not lead:
        of_numpy = jax.tree.map(np.asarray, entered)
        contained = jax.tree.map(lambda x: x.astype(np.int8), of_numpy)
        assert space.contains(contained if name == "multi-binary" else of_numpy)
    for one in (entered, jax.device_get(entered)):
        back = agent_action(space, one)
        assert jax.tree.structure(back) == jax.tree.structure(action)
        jax.tree.map(np.testing.assert_array_equal, back, action)
        assert all(type(x) is type(jax.tree.leaves(one)[0]) for x in jax.tree.leaves(back))


def test_layout_of_nested_actions():
    space = every.ACTIONS["nested"]
    assert action_spec(space) == ActionSpec(((-1.0, 1.0),) * 2, (3, 2, 2, 2, 4))
    action = {"continuous": jnp.array([0.5, 9.0]), "discrete": jnp.array([2, 0, 1, 1, 3])}
    entered = environment_action(space, action)
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(entered)) == {
        "hand": (1, [0.5, 1.0]),
        "switch": [0, 1],
        "tool": [[2], [3]],
    }


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
        center, half = spec.center_and_half_width()
        scaled = (np.asarray(continuous) - center.astype(np.float32)) / half.astype(np.float32)
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
        (observation_spec, theirs.Graph(POINT, None), TypeError, "observation_space is a Graph"),
        (observation_spec, theirs.OneOf((POINT,)), TypeError, "observation_space is a OneOf; use"),
        (
            observation_spec,
            {"x": theirs.Box(0, 5, (0,), np.int32)},
            ValueError,
            r"\['x'\] has the sh",
        ),
        (observation_spec, "image", TypeError, "observation_space is a str"),
        (observation_spec, spaces.Discrete(10**6), ValueError, "too many for one-hot"),
        (observation_spec, theirs.MultiDiscrete([2, 9999]), ValueError, "too many for one-hot"),
        (observation_spec, {"x": [1]}, TypeError, r"observation_space\['x'\] is a list"),
        (observation_spec, (POINT, [1]), TypeError, r"observation_space\[1\] is a list"),
        (action_spec, spaces.Box(0, 5, (2,), jnp.int32), ValueError, "must have a float dtype"),
        (action_spec, spaces.Box(1.0, 1.0, (2,)), ValueError, "low must be below high"),
        (
            action_spec,
            spaces.Dict({"a": TWO, "b": TWO, "c": 3}),
            TypeError,
            r"space\['c'\] is a int",
        ),
        (action_spec, spaces.Tuple([]), ValueError, "at least one"),
        (action_spec, spaces.Discrete(0), ValueError, "at least one"),
        (action_spec, theirs.Tuple((theirs.Text(5),)), TypeError, r"action_space\[0\] is a Text"),
        (
            action_spec,
            np.zeros(2),
            TypeError,
            "is a ndarray, which no policy supports",
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


OUTSIDE = {
    "discrete": (spaces.Discrete(3), np.int32(5), "x is 5, outside Discrete(3)"),
    "negative": (spaces.Discrete(3), np.int64(-1), "x is -1, outside Discrete(3)"),
    "start": (theirs.Discrete(3, start=2), np.int32(1), "x is 1, outside Discrete(3, start=2)"),
    "multi-discrete": (
        theirs.MultiDiscrete([2, 3]),
        np.array([1, 3]),
        "x[1] is 3, outside MultiDiscrete([2, 3])",
    ),
    "multi-binary": (
        theirs.MultiBinary(2),
        np.array([1, -1], np.int8),
        "x[1] is -1, outside MultiBinary([2])",
    ),
    "text": (theirs.Text(2, charset="a"), np.array([1, 2], np.int32), "x[1] is 2, outside Text(2)"),
    "integers": (
        spaces.Box(0, 10, (2, 1), jnp.int32),
        np.array([[10], [11]], np.int32),
        "x[1, 0] is 11, outside Box(0, 10, (2, 1), int32)",
    ),
    "by entry": (
        theirs.Box(np.array([0, 0]), np.array([9, 2]), dtype=np.int32),
        np.array([3, 3], np.int32),
        "x[1] is 3, outside Box(0, [9, 2], (2,), int32)",
    ),
    "bytes": (
        spaces.Box(0, 255, (1,), jnp.uint8),
        np.array([256], np.int32),
        "x[0] is 256, outside Box(0, 255, (1,), uint8)",
    ),
    "unsigned": (
        theirs.Box(0, 10, (), np.uint32),
        np.uint32(2**32 - 1),
        "x is 4294967295, outside Box(0, 10, (), uint32)",
    ),
    "flag": (
        theirs.Box(0, 1, (), np.bool_),
        np.int32(2),
        "x is 2, outside Box(False, True, (), bool)",
    ),
    "nan": (POINT, np.array([0, np.nan], np.float32), "x[1] is nan, not finite"),
    "infinite": (POINT, np.array([-np.inf, 0], np.float32), "x[0] is -inf, not finite"),
    "nested": (
        {"a": (POINT, spaces.Discrete(3))},
        {"a": (np.zeros(2, np.float32), np.int32(5))},
        "x['a'][1] is 5, outside Discrete(3)",
    ),
    "whole floats": (spaces.Discrete(3), np.float32(0.5), "x is 0.5, outside Discrete(3)"),
}


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
@pytest.mark.parametrize("name", OUTSIDE)
def test_first_value_outside_is_named_in_programs(name, lead):
    space, values, line = OUTSIDE[name]
    one = jax.device_get(draw(space, jax.random.key(0)))
    fine = jax.tree.map(lambda x: np.broadcast_to(x, (*lead, *x.shape)), one)
    assert jax.jit(lambda x: first_outside(space, x))(fine)[0] == BELONGS

    def spoil(fine, value):
        spoiled = fine.astype(value.dtype)
        spoiled[(-1,) * len(lead)] = value
        return spoiled

    spoiled = jax.tree.map(spoil, fine, values)
    found = jax.device_get(jax.jit(lambda x: first_outside(space, x))(spoiled))
    assert describe_outside(space, found, "x") == line
    if name != "whole floats":
        require_values(space, fine, "x")
        with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
            require_values(space, spoiled, "x")


@pytest.mark.parametrize(
    ("space", "values", "error", "message"),
    [
        (
            theirs.Box(0, 2**40, (1,), np.int64),
            np.array([2**35]),
            ValueError,
            "x[0] is 34359738368, too large for int32",
        ),
        (
            theirs.Box(np.array([0, 300]), np.array([9, 400]), dtype=np.int32),
            np.array([9, 255], np.uint8),
            ValueError,
            "x[1] is 255, outside Box([0, 300], [9, 400], (2,), int32)",
        ),
        (
            theirs.Discrete(3, start=5),
            np.array(True),
            ValueError,
            "x is True, outside Discrete(3, start=5)",
        ),
        (
            theirs.Box(-1, 1, (1,), np.float64),
            np.array([-1e300]),
            ValueError,
            "x[0] is -1e+300, too large for float32",
        ),
        (
            spaces.Box(0, 255, (2,), jnp.uint8),
            np.array([0.5, 0]),
            TypeError,
            "x is float64, but its space is Box(0, 255, (2,), uint8): convert it to uint8",
        ),
        (
            spaces.Discrete(3),
            np.float32(1),
            TypeError,
            "x is float32, but its space is Discrete(3): convert it to int32",
        ),
        (POINT, np.array(["1", "2"]), TypeError, "x is <U1, but its space is"),
        (POINT, np.zeros((2, 3)), ValueError, "x has shape (2, 3), but"),
        ({"a": POINT}, np.zeros(2), ValueError, "x must have the entries ['a'], not ndarray"),
        (
            {"a": POINT},
            {"b": np.zeros(2)},
            ValueError,
            "x must have the entries ['a'], not ['b']",
        ),
        (
            (POINT, POINT),
            (np.zeros(2),),
            ValueError,
            "entries of a tuple of 2, not [0]",
        ),
    ],
)
def test_values_that_do_not_belong_are_refused(space, values, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        require_values(space, values, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Box(0.0, 1.0, (2,)), np.array([-3.0, 1e30])),
        (spaces.Box(0.0, 1.0, (2,)), np.array([1, 2])),
        (spaces.Box(0, 10, (2,), jnp.int32), np.array([True, False])),
        (spaces.Box(-jnp.inf, jnp.inf, (2,), jnp.int32), np.array([-5, 2**31 - 1])),
        (theirs.Box(0, 255, (2,), np.uint8), np.array([0, 255], np.uint8)),
        (theirs.Box(-1, 300, (2,), np.int32), np.array([0, 255], np.uint8)),
    ],
)
def test_values_that_belong(space, values):
    require_values(space, values)
    assert first_outside(space, jnp.asarray(values))[0] == BELONGS
