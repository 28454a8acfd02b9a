"""Encoders for every kind of observation, against plain NumPy."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from gymnax.environments import spaces

from gtrxl_jax.nn import encoders
from gtrxl_jax.nn.encoders import (
    PART,
    DictEncoder,
    Encoder,
    InputEncoder,
    LinearEncoder,
    MLPEncoder,
    ResNetEncoder,
    SmallConvEncoder,
    TextEncoder,
    describe_arrays,
    make_encoder,
    register_encoder,
)
from gtrxl_jax.nn.normalizer import normalizer_statistics, without_statistics
from gtrxl_jax.parallel.hlo import collectives
from gtrxl_jax.specs import ActionSpec, ArraySpec, observation_spec
from gtrxl_jax.timestep import zero_timestep

VECTOR = spaces.Box(-1.0, 1.0, (4,))
GRID = spaces.Box(0, 1, (10, 10, 4), jnp.bool_)
SYMBOLS = spaces.Box(0, 12, (5, 5, 2), jnp.uint8)
IMAGE = spaces.Box(0, 255, (32, 40, 3), jnp.uint8)
OBSERVATIONS = {
    "vector": (VECTOR, MLPEncoder),
    "scalar": (spaces.Box(0.0, 1.0, ()), MLPEncoder),
    "matrix": (spaces.Box(0, 1, (10, 5), jnp.int32), MLPEncoder),
    "discrete": (spaces.Discrete(7), MLPEncoder),
    "pixel": (spaces.Box(0.0, 1.0, (1, 1, 3)), MLPEncoder),
    "grid": (GRID, SmallConvEncoder),
    "symbols": (SYMBOLS, SmallConvEncoder),
    "picture": (IMAGE, ResNetEncoder),
    "dict": (spaces.Dict({"image": GRID, "state": spaces.Discrete(3)}), DictEncoder),
}


def random_observation(space, rng, *lead):
    def draw(spec):
        if spec.dtype == "bool":
            return jnp.asarray(rng.random((*lead, *spec.shape)) < 0.5)
        if np.issubdtype(spec.dtype, np.integer):
            high = spec.categories or 256
            return jnp.asarray(rng.integers(0, high, (*lead, *spec.shape)), spec.dtype)
        return jnp.asarray(rng.standard_normal((*lead, *spec.shape)), spec.dtype)

    return jax.tree.map(draw, observation_spec(space))


@pytest.mark.parametrize(("space", "kind"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_any_observation_with_any_leading_axes(space, kind):
    encoder = make_encoder(space, width=8)
    assert isinstance(encoder, kind)
    assert hash(encoder) == hash(make_encoder(space, width=8))
    observation = random_observation(space, np.random.default_rng(0), 2, 3)
    params = jax.jit(encoder.init)(jax.random.key(0), observation)
    features_BTF = jax.jit(encoder.apply)(params, observation)
    keys = len(space.spaces) if kind is DictEncoder else 1
    assert features_BTF.shape == (2, 3, 8 * keys)
    assert features_BTF.dtype == jnp.float32
    for index in ((1, 2), (slice(None), 2)):
        fewer_axes = jax.tree.map(lambda x, i=index: x[i], observation)
        features = jax.jit(encoder.apply)(params, fewer_axes)
        np.testing.assert_allclose(features, features_BTF[index], atol=1e-5)


@pytest.mark.parametrize(("space", "kind"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_parameters_have_gradients_and_stay_float32(space, kind):
    observation = random_observation(space, np.random.default_rng(1), 16)
    encoder = make_encoder(space, width=8)
    low = make_encoder(space, width=8, dtype=jnp.bfloat16)
    params = jax.jit(low.init)(jax.random.key(1), observation)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}

    def loss(params):
        features = encoder.apply(params, observation)
        return jnp.sum(features**2), features

    gradient, features = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(without_statistics(gradient)))
    assert not any(np.any(leaf != 0) for leaf in normalizer_statistics(gradient).values())
    low_features = jax.jit(low.apply)(params, observation)
    assert low_features.dtype == jnp.bfloat16
    error = jnp.abs(low_features.astype(jnp.float32) - features)
    assert float(jnp.max(error)) < 0.05 * float(jnp.max(features))


def conv(x_HWC, params):
    """Compute a zero-padded 3x3 convolution of stride 1 as a sum of nine shifted products."""
    height, width, _ = x_HWC.shape
    padded = np.pad(x_HWC, [(1, 1), (1, 1), (0, 0)])
    kernel, bias = np.asarray(params["kernel"]), np.asarray(params["bias"])
    return bias + sum(
        padded[i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)
    )


def pool(x_HWC):
    """Compute 3x3 max-pooling of stride 2; "SAME" pads an even side at its end only."""
    height, width, channels = x_HWC.shape
    out = np.empty(((height + 1) // 2, (width + 1) // 2, channels))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            top, left = 2 * i - height % 2, 2 * j - width % 2
            window = x_HWC[max(top, 0) : top + 3, max(left, 0) : left + 3]
            out[i, j] = window.max(axis=(0, 1))
    return out


def normalized(image, params):
    seen = jax.tree.map(np.float64, params["features"]["normalizer"])
    return (image - seen["mean"]) / np.sqrt(seen["variance"])


def relu(x):
    return np.maximum(x, 0)


def randomized(params, rng):
    return jax.tree.map(
        lambda p: p + jnp.asarray(0.1 * np.abs(rng.standard_normal(p.shape)), p.dtype), params
    )


@pytest.mark.usefixtures("x64")
def test_resnet_against_numpy():
    rng = np.random.default_rng(2)
    image = rng.integers(0, 256, (13, 10, 3), dtype=np.uint8)
    encoder = ResNetEncoder(
        observation_spec(image), channels=(2, 3, 3), width=16, param_dtype=jnp.float64
    )
    params = randomized(jax.jit(encoder.init)(jax.random.key(0), jnp.asarray(image)), rng)
    layers = params["params"]
    convs = iter(layers[f"Conv_{i}"] for i in range(15))
    x = normalized(image, layers)
    for _ in range(3):
        x = pool(conv(x, next(convs)))
        for _ in range(2):
            x = x + conv(relu(conv(relu(x), next(convs))), next(convs))
    dense, norm = (jax.tree.map(np.asarray, layers[name]) for name in ("Dense_0", "LayerNorm_0"))
    y = relu(x).ravel() @ dense["kernel"] + dense["bias"]
    y = (y - y.mean()) / np.sqrt(y.var() + 1e-6)
    pixels = normalized(image, layers)
    mean = pixels.mean((0, 1))
    light = np.concatenate([mean, np.abs(pixels - mean).mean((0, 1))])
    y = y * norm["scale"] + norm["bias"] + light @ np.asarray(layers["light"]["kernel"])
    expected = relu(y)
    assert x.shape == (2, 2, 3)
    assert np.any(expected)
    actual = jax.jit(encoder.apply)(params, jnp.asarray(image))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_small_conv_and_mlp_against_numpy():
    rng = np.random.default_rng(3)
    grid = rng.random((4, 6, 2))
    cells = jnp.asarray(grid)
    encoder = SmallConvEncoder(
        ArraySpec((4, 6, 2)), channels=(3, 5), width=4, param_dtype=jnp.float64
    )
    params = randomized(encoder.init(jax.random.key(0), cells), rng)
    layers = params["params"]
    x = relu(conv(relu(conv(grid, layers["Conv_0"])), layers["Conv_1"])).ravel()
    expected = relu(x @ np.asarray(layers["Dense_0"]["kernel"]) + layers["Dense_0"]["bias"])
    np.testing.assert_allclose(encoder.apply(params, cells), expected, atol=1e-9)

    encoder = MLPEncoder(ArraySpec((4, 6, 2)), width=5, layers=2, param_dtype=jnp.float64)
    params = randomized(encoder.init(jax.random.key(0), cells), rng)
    x = grid.ravel()
    for layer in (params["params"]["Dense_0"], params["params"]["Dense_1"]):
        x = relu(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    np.testing.assert_allclose(encoder.apply(params, cells), x, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_text_against_numpy():
    """An LSTM reads the tokens that are not 0, in their order."""
    rng = np.random.default_rng(5)
    tokens = np.array([[[3, 1, 4, 0, 0], [3, 0, 1, 4, 0]], [[1, 3, 4, 0, 0], [0, 0, 0, 0, 0]]])
    encoder = TextEncoder(ArraySpec((5,), "int64", categories=6), 3, param_dtype=jnp.float64)
    assert encoder.units == 64
    encoder = encoder.clone(units=4)
    params = randomized(encoder.init(jax.random.key(0), jnp.asarray(tokens)), rng)
    layers = jax.tree.map(np.asarray, params["params"])
    kernel, hidden = layers["lstm"]["input"]["kernel"], layers["lstm"]["hidden"]

    def read(row):
        c, h = np.zeros(4), np.zeros(4)
        for token in row[row > 0]:
            x = layers["embedding"]["embedding"][token]
            i, f, g, o = np.split(x @ kernel + h @ hidden["kernel"] + hidden["bias"], 4)
            i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
        return h

    found = encoder.apply(params, jnp.asarray(tokens))
    expected = np.array([[read(row) for row in rows] for rows in tokens])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[0, 0], found[0, 1])
    assert np.abs(found[0, 0] - found[1, 0]).max() > 1e-3
    np.testing.assert_allclose(encoder.apply(params, jnp.asarray(tokens[0, 0])), expected[0, 0])


@pytest.mark.usefixtures("x64")
def test_mlp_of_an_image_against_numpy():
    rng = np.random.default_rng(4)
    image = rng.integers(0, 256, (8, 9, 3), dtype=np.uint8)
    encoder = MLPEncoder(observation_spec(image), width=5, layers=2, param_dtype=jnp.float64)
    params = randomized(encoder.init(jax.random.key(0), jnp.asarray(image)), rng)
    first, second = (params["params"][f"Dense_{n}"] for n in range(2))
    x = normalized(image, params["params"]).ravel() / np.sqrt(image.size)
    for layer in (first, second):
        x = relu(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    assert np.any(x)
    np.testing.assert_allclose(encoder.apply(params, jnp.asarray(image)), x, atol=1e-9)


def test_features_of_images_of_any_size_are_as_large_as_those_of_vectors():
    def scale(values):
        encoder = make_encoder(values[0], "mlp", width=64)
        return float(jnp.std(encoder.apply(encoder.init(jax.random.key(0), values), values)))

    rng = np.random.default_rng(8)
    of_vectors = scale(jnp.asarray(rng.standard_normal((64, 50)), jnp.float32))
    for side in (8, 40):
        of_images = scale(jnp.asarray(rng.integers(0, 256, (64, side, side, 3)), jnp.uint8))
        assert 0.8 < of_images / of_vectors < 1.25


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "side"), [("conv", 5), pytest.param("nature", 36, marks=pytest.mark.slow)]
)
def test_many_images_are_encoded_in_parts(name, side):
    """With the features and gradients of few images at a time, which are not divided."""
    rng = np.random.default_rng(6)
    images = jnp.asarray(rng.random((3 * PART, side, side, 2)))
    encoder = make_encoder(images[0], name, width=4, param_dtype=jnp.float64)
    params = jax.jit(encoder.init)(jax.random.key(0), images[0])
    factors = jnp.asarray(rng.standard_normal((len(images), 4)))

    def learn(params, images, factors):
        return jax.vjp(lambda p, x: jnp.sum(encoder.apply(p, x) * factors), params, images)[1](1.0)

    def count(images):
        return str(jax.make_jaxpr(encoder.apply)(params, images)).count("scan[")

    assert [count(images), count(images[:PART]), count(images[: 2 * PART + 3])] == [1, 0, 0]
    learn = jax.jit(learn)
    of_params, of_images = learn(params, images, factors)
    parts = [
        learn(params, images[n : n + PART], factors[n : n + PART])
        for n in range(0, len(images), PART)
    ]
    jax.tree.map(
        lambda whole, *of_parts: np.testing.assert_allclose(whole, sum(of_parts), atol=1e-9),
        of_params,
        *(of_params for of_params, _ in parts),
    )
    expected = jnp.concatenate([of_images for _, of_images in parts])
    np.testing.assert_allclose(of_images, expected, atol=1e-12)


def test_parts_of_a_batch_on_devices_are_on_the_same_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    batch = jax.sharding.NamedSharding(mesh, jax.P("data"))
    images = jax.ShapeDtypeStruct((PART, 5, 6, 6, 2), jnp.float32, sharding=batch)
    encoder = make_encoder(jnp.zeros((6, 6, 2)), "conv", width=4)
    params = encoder.init(jax.random.key(0), jnp.zeros((6, 6, 2)))
    gradient = jax.jit(jax.grad(lambda params, x: jnp.sum(encoder.apply(params, x) ** 2)))
    sent = collectives(gradient.lower(params, images).compile().as_text())
    assert {one.kind for one in sent} == {"all-reduce"}


def test_images_without_channel_axis():
    """A grey image has the features of one with a channel of the same values."""
    image = jnp.asarray(np.random.default_rng(4).integers(0, 256, (9, 9), dtype=np.uint8))
    encoder, same = (make_encoder(x, "conv", width=4) for x in (image, image[..., None]))
    params = encoder.init(jax.random.key(0), image)
    assert params["params"]["Conv_0"]["kernel"].shape == (3, 3, 1, 16)
    features = encoder.apply(params, image)
    like = same.init(jax.random.key(0), image[..., None])
    params = jax.tree.map(lambda x, y: x.reshape(y.shape), params, like)
    np.testing.assert_allclose(features, same.apply(params, image[..., None]), atol=1e-6)


def test_dict_features_are_concatenated():
    space = spaces.Dict({"image": IMAGE, "state": VECTOR})
    observation = random_observation(space, np.random.default_rng(5), 2)
    observation["unused"] = jnp.zeros(2)
    encoder = make_encoder(space, "conv", width=4)
    assert isinstance(encoder.encoders["image"], SmallConvEncoder)
    assert isinstance(make_encoder(space, "mlp").encoders["image"], MLPEncoder)
    variables = encoder.init(jax.random.key(0), observation)
    parts = [
        encoder.encoders[key].apply(
            {"params": variables["params"][f"encoders_{key}"]}, observation[key]
        )
        for key in ("image", "state")
    ]
    np.testing.assert_allclose(
        encoder.apply(variables, observation), np.concatenate(parts, axis=-1), atol=1e-6
    )
    with pytest.raises(ValueError, match=r"observation has no \['state'\]: it has \['image'\]"):
        encoder.apply(variables, {"image": observation["image"]})


@pytest.mark.parametrize(
    ("space", "name", "message"),
    [
        (VECTOR, "resnett", "unknown encoder 'resnett': did you mean 'resnet'"),
        (VECTOR, "resnet", r"needs images \[H, W, C\], but observation_space has shape \(4,\)"),
        (VECTOR, "conv", "use 'mlp'"),
        (SYMBOLS, "resnet", "at least 8 x 8, but observation_space has shape .* use 'conv' or"),
        (spaces.Box(0.0, 1.0, (2, 9, 1)), "conv", "at least 3 x 3, .* use 'mlp'"),
        (spaces.Dict({"state": VECTOR}), "resnet", r"fits no key of observation_space \['state'\]"),
        (spaces.Dict({"a": SYMBOLS, "b": VECTOR}), "resnet", r"observation_space\['a'\] has shape"),
        (spaces.Dict({}), "auto", "fits no key"),
        (VECTOR, "text", "needs a row of tokens, .* without categories; use 'auto'"),
        (SYMBOLS, "text", r"needs a row of tokens, but observation_space has shape \(5, 5, 2\)"),
    ],
)
def test_unsuitable_encoders_are_rejected(space, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_encoder(space, name)
    assert "\n" not in str(caught.value)


BOTH = spaces.Dict({"image": IMAGE, "state": VECTOR})
PAIR = spaces.Tuple([IMAGE, VECTOR])


@pytest.mark.parametrize("keys", [("image", "state"), ("0", "1")])
def test_encoders_of_single_keys(keys):
    image, state = keys
    space = BOTH if image == "image" else PAIR

    def kinds(*arguments):
        parts = make_encoder(space, *arguments).encoders
        return [type(parts[key]) for key in keys]

    assert kinds("mlp", {image: "conv"}) == [SmallConvEncoder, MLPEncoder]
    assert kinds("resnet", {state: "linear"}) == [ResNetEncoder, LinearEncoder]
    assert kinds("linear", {image: "auto", state: "mlp"}) == [ResNetEncoder, MLPEncoder]


@pytest.mark.parametrize(
    ("space", "encoders", "message"),
    [
        (BOTH, {"imag": "conv"}, "unknown key of encoders 'imag': .* Valid: image, state"),
        (PAIR, {"2": "conv"}, "unknown key of encoders '2': .* Valid: 0, 1"),
        (VECTOR, {"state": "mlp"}, "encoders has the key 'state', but .* has no keys: use encoder"),
        (BOTH, {"state": "conv"}, r"needs images .*, but observation_space\['state'\] has shape"),
        (BOTH, {"image": "conv", "state": "conw"}, "unknown encoder 'conw': did you mean 'conv'"),
    ],
)
def test_unsuitable_encoders_of_keys_are_rejected(space, encoders, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_encoder(space, encoders=encoders)
    assert "\n" not in str(caught.value)


class Halves(nn.Module):
    """A custom encoder without the base class."""

    spec: ArraySpec
    width: int = 1
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __call__(self, observation):
        return observation / 2


class Center(Encoder):
    """A custom encoder of images."""

    min_side = 5

    def __call__(self, observation):
        return self.spec.features(observation, jnp.float32)[..., 2, 2, :]


HALVES, CENTER = (f"{__name__}:{kind.__name__}" for kind in (Halves, Center))


def test_custom_encoders():
    x = jnp.ones((2, 3, *VECTOR.shape))
    encoder = make_encoder(VECTOR, HALVES, width=8, param_dtype=jnp.bfloat16)
    assert (encoder.width, encoder.param_dtype) == (8, jnp.bfloat16)
    np.testing.assert_array_equal(encoder.apply({}, x), x / 2)

    encoder = make_encoder(BOTH, CENTER)
    assert [type(part) for part in encoder.encoders.values()] == [Center, MLPEncoder]
    assert "is read as an image [H, W, C], by the Center" in describe_arrays(encoder)[0]
    encoder = make_encoder(BOTH, encoders={"state": HALVES})
    assert [type(part) for part in encoder.encoders.values()] == [ResNetEncoder, Halves]
    with pytest.raises(ValueError, match="needs images of at least 5 x 5"):
        make_encoder(spaces.Box(0.0, 1.0, (4, 4, 3)), CENTER)


def test_registered_encoders(monkeypatch):
    monkeypatch.setattr(encoders, "ENCODERS", copy.copy(encoders.ENCODERS))
    register_encoder("halves", Halves)
    assert type(make_encoder(VECTOR, "halves")) is Halves
    with pytest.raises(ValueError, match="encoder 'mlp' is already registered"):
        register_encoder("mlp", Halves)


@pytest.mark.parametrize(
    ("shape", "kind", "read"),
    [
        ((84, 84, 4), ResNetEncoder, "an image [H, W, C]"),
        ((4, 84, 84), ResNetEncoder, "an image [C, H, W]"),
        ((3, 64, 64), ResNetEncoder, "an image [C, H, W]"),
        ((64, 64), ResNetEncoder, "an image [H, W]"),
        ((4, 64, 64, 3), ResNetEncoder, "an image [F, H, W, C]"),
        ((4, 3, 64, 64), ResNetEncoder, "an image [F, C, H, W]"),
        ((2, 9, 9), SmallConvEncoder, "an image [C, H, W]"),
        ((2, 3, 4, 5), MLPEncoder, "a vector"),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_axes_of_images_are_recognized_and_said(shape, kind, read, dtype):
    space = spaces.Box(0, 255 if dtype == np.uint8 else 1.0, shape, dtype)
    encoder = make_encoder({"eye": space, "state": VECTOR}, width=8)
    assert type(encoder.encoders["eye"]) is kind
    assert describe_arrays(encoder) == [
        f"observation['eye'] {list(shape)} is read as {read}, by the {kind.__name__}"
    ]
    observation = {"eye": jnp.zeros((2, *shape), dtype), "state": jnp.zeros((2, *VECTOR.shape))}
    shapes = jax.eval_shape(lambda x: encoder.init_with_output(jax.random.key(0), x), observation)
    assert shapes[0].shape == (2, 16)


def test_given_axes_of_images():
    space = spaces.Box(0, 255, (9, 9, 16), jnp.uint8)
    for axes, order in (("auto", "H, W, C"), ("hwc", "H, W, C"), ("chw", "C, H, W")):
        (line,) = describe_arrays(make_encoder(space, image_axes=axes))
        assert f"[{order}]" in line
    with pytest.raises(ValueError, match="unknown image_axes 'whc'"):
        make_encoder(space, image_axes="whc")


def test_an_image_with_channels_first_has_the_features_of_the_same_image():
    image = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 9, 8, 3)), jnp.uint8)
    last, first = (
        make_encoder(spaces.Box(0, 255, shape, jnp.uint8), width=5, image_axes=axes)
        for shape, axes in (((9, 8, 3), "hwc"), ((3, 9, 8), "chw"))
    )
    params = last.init(jax.random.key(0), image)
    expected = last.apply(params, image)
    np.testing.assert_array_equal(first.apply(params, image.transpose(0, 3, 1, 2)), expected)


def input_encoder(**settings):
    return InputEncoder(
        MLPEncoder(ArraySpec((4,)), 8), ActionSpec(discrete=(3,)), width=5, **settings
    )


@pytest.fixture
def timestep():
    timestep = zero_timestep(VECTOR, spaces.Discrete(3), 2, 3)
    return timestep.replace(
        action=jnp.array([[2, 1, 0], [1, 1, 2]]),
        reward=jnp.array([[3.0, -0.25, 0.5], [-7.0, 0.25, 2.0]]),
        first=jnp.array([[True, False, False], [False, True, False]]),
    )


def test_input_encoder_against_numpy(timestep):
    encoder = input_encoder()
    params = encoder.init(jax.random.key(0), timestep)
    statistics = {"count": 9.0, "mean": 0.5, "variance": 0.0625}
    params["params"]["reward"] |= jax.tree.map(jnp.float32, statistics)
    features = MLPEncoder(ArraySpec((4,)), 8).apply(
        {"params": params["params"]["observation"]}, timestep.observation
    )
    going_on = ~np.asarray(timestep.first)[..., None]
    action = np.eye(3)[np.asarray(timestep.action)] * going_on
    reward = np.clip((np.asarray(timestep.reward) - 0.5) / 0.25, -10, 10)[..., None] * going_on
    dense = jax.tree.map(np.asarray, params["params"]["Dense_0"])
    expected = np.concatenate([features, action, reward], axis=-1) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(encoder.apply(params, timestep), expected, atol=1e-6)


def test_share_of_inactive_units_is_recorded(timestep):
    """Of 8 units, two have a bias below all inputs; another is active in a single step."""
    encoder = input_encoder()
    params = encoder.init(jax.random.key(0), timestep)
    dense = params["params"]["observation"]["Dense_0"]
    dense["kernel"] = jnp.eye(4, 8)
    dense["bias"] = jnp.array([0.0, 1, 1, 1, 1, 1, -9, -9])
    seen = jnp.zeros((2, 3, 4)).at[1, 2, 0].set(1.0)
    _, recorded = encoder.apply(params, timestep.replace(observation=seen), mutable=["metrics"])
    np.testing.assert_allclose(recorded["metrics"]["inactive"], [2 / 8])


def test_first_step_ignores_previous_episode(timestep):
    encoder = input_encoder()
    params = encoder.init(jax.random.key(0), timestep)
    other = timestep.replace(
        action=jnp.where(timestep.first, 0, timestep.action),
        reward=jnp.where(timestep.first, jnp.nan, timestep.reward),
    )
    np.testing.assert_array_equal(encoder.apply(params, timestep), encoder.apply(params, other))

    def loss(reward):
        return jnp.sum(encoder.apply(params, timestep.replace(reward=reward)) ** 2)

    gradient = jax.grad(loss)(timestep.reward)
    np.testing.assert_array_equal(gradient == 0, timestep.first)


def test_leading_axes_must_agree(timestep):
    encoder = input_encoder()
    mixed = timestep.replace(reward=timestep.reward[:, 0])
    with pytest.raises(ValueError, match=r"timestep.reward has the leading axes \(2,\)"):
        encoder.init(jax.random.key(0), mixed)
