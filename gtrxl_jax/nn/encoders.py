"""Encoders that map observations with any leading axes to feature vectors, and their registry.

An encoder is a Flax module `cls(spec, width=..., dtype=..., param_dtype=...)` for an array of an
observation, see `Encoder`. It takes observations `[..., *shape]` as the environment returns them
(integers, booleans) and returns features `[..., F]`. It computes in `dtype`, or in `param_dtype` if
that is None, regardless of the observation's dtype.
"""

import abc
import dataclasses
import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict
from jaxtyping import Array, Float

from gtrxl_jax.custom import describe_array, describe_part, is_custom, wrap_errors
from gtrxl_jax.nn.cores.recurrent import LSTMCell, orthogonal
from gtrxl_jax.nn.layers import Dense, LayerNorm
from gtrxl_jax.nn.normalizer import Normalizer
from gtrxl_jax.ops.convolution import convolve
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.platforms import platform
from gtrxl_jax.plugins import Registry, find_plugin, is_plugin
from gtrxl_jax.specs import ActionSpec, ArraySpec, leading_axes, observation_spec
from gtrxl_jax.specs.observation import LARGE_IMAGE_SIDE
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import require_choice, require_instance

# The most images that are encoded together on CPU.
PART = 32


class Features(nn.Module):
    """The normalized features of an array of an observation, see `ArraySpec`.

    Choices and flags are normalized too: most of the cells of a grid, for example, never change,
    and what they all add to each unit of the first layer would otherwise keep half of the ReLUs at
    0.

    They are computed in float32 or wider, and cast to `dtype` last.
    """

    spec: ArraySpec
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "..."]:
        spec = self.spec
        x = spec.features(observation, at_least_float32(self.dtype))
        normalize = Normalizer(
            spec.statistics_shape, *spec.declared_moments, spec.tolerance, name="normalizer"
        )
        return normalize(x).astype(self.dtype)


class Encoder(nn.Module):
    """Base class of the encoders of arrays; a custom encoder need not have it.

    Attributes:
      spec: the array.
      width: F, the number of features.
      dtype: computation dtype; None for `param_dtype`.
      param_dtype: dtype of the parameters.
      min_side: the shortest side of the images that the encoder accepts; None if it also accepts
        arrays that are not images.
    """

    spec: ArraySpec
    width: int = 256
    dtype: Any = None
    param_dtype: Any = jnp.float32

    min_side: ClassVar[int | None] = None

    @property
    def precision(self) -> dict[str, Any]:
        """The dtypes of the layers."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def normalize(self, observation: Array) -> Float[Array, "..."]:
        """Return the features of the array, `[..., *spec.feature_shape]`; see `Features`."""
        return Features(self.spec, self.dtype or self.param_dtype, name="features")(observation)

    def leading_axes(self, x: Float[Array, "..."]) -> tuple[int, ...]:
        """Return the leading axes of what `normalize` returns."""
        return leading_axes(x.shape, len(self.spec.feature_shape))


class MLPEncoder(Encoder):
    """Flattening, then linear layers of `width` units with ReLU.

    The first layer of an image of N values divides them by sqrt(N), and its initial weights have
    variance 1 instead of 1 / N. Adam changes every weight by about the learning rate, however many
    there are, so that a step could otherwise change the outputs of this layer much more than those
    of others.

    Attributes:
      layers: the number of linear layers.
    """

    layers: int = 1

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "... F"]:
        x = self.normalize(observation)
        x = x.reshape(*self.leading_axes(x), -1)
        scale = math.sqrt(x.shape[-1]) if self.spec.is_image else 1.0
        for _ in range(self.layers):
            init = nn.initializers.variance_scaling(scale**2, "fan_in", "truncated_normal")
            x = nn.relu(Dense(self.width, kernel_init=init, **self.precision)(x / scale))
            scale = 1.0
        return x


class LinearEncoder(MLPEncoder):
    """Flattening alone, for a linear layer to follow; `width` is unused."""

    layers: int = 0


class ImageEncoder(Encoder, abc.ABC):
    """A convolutional `trunk`, then flattening, a linear layer and ReLU.

    For images, a layer norm precedes that ReLU, so that its units stay active. Since it removes how
    bright an image is and how strong its contrasts, these are inputs of their own: the mean and the
    deviation of each channel, by another linear layer.

    Attributes:
      spec: an image `[H, W, C]`, or `[H, W]` for a single channel.
      channels: output channels of the trunk's layers or sections.
    """

    channels: tuple[int, ...] = ()

    def conv(
        self, channels: int, kernel: int = 3, stride: int = 1, padding: str = "SAME"
    ) -> nn.Conv:
        """Return a convolution whose gradients are also fast inside loops."""
        return nn.Conv(
            channels,
            (kernel, kernel),
            strides=stride,
            padding=padding,
            conv_general_dilated=convolve,
            **self.precision,
        )

    @abc.abstractmethod
    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        """Apply the convolutions to the spec's features."""

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "... F"]:
        x = self.normalize(observation)
        lead = self.leading_axes(x)
        x_NHWC = x.reshape(-1, *self.spec.image_feature_shape)
        x = Dense(self.width, **self.precision)(self._apply_trunk(x_NHWC).reshape(*lead, -1))
        if self.spec.is_image:
            light = Dense(self.width, use_bias=False, name="light", **self.precision)
            x = LayerNorm(**self.precision)(x)
            x = x + light(_mean_and_deviation(x_NHWC).reshape(*lead, -1))
        return nn.relu(x)

    def _apply_trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        """Apply the trunk; on CPU to few images at a time, whose activations fit the caches.

        Each part has images from all of the batch, so that devices that share it share every part.
        """
        images = len(x_NHWC)
        part = max(n for n in range(1, PART + 1) if images % n == 0)
        if platform() != "cpu" or part < PART // 4 or images <= 2 * PART:
            return self.trunk(x_NHWC)
        parts = nn.scan(
            lambda encoder, _, part: (None, encoder.trunk(part)),
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        _, y = parts(self, None, x_NHWC.reshape(part, images // part, *x_NHWC.shape[1:]))
        return y.reshape(images, *y.shape[2:])


def _mean_and_deviation(x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N 2*C"]:
    """Return the mean and the mean absolute deviation of each channel of images."""
    wide = x_NHWC.astype(at_least_float32(x_NHWC.dtype))
    mean_N11C = jnp.mean(wide, axis=(1, 2), keepdims=True)
    # The root of the variance would have an infinite gradient where an image has one color.
    deviation_NC = jnp.mean(jnp.abs(wide - mean_N11C), axis=(1, 2))
    return jnp.concatenate([mean_N11C[:, 0, 0], deviation_NC], axis=-1).astype(x_NHWC.dtype)


class SmallConvEncoder(ImageEncoder):
    """3x3 convolutions of stride 1 with ReLU, for grids of cells and MinAtar images."""

    channels: tuple[int, ...] = (16, 32)
    min_side: ClassVar[int] = 3

    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N H W c"]:
        for channels in self.channels:
            x_NHWC = nn.relu(self.conv(channels)(x_NHWC))
        return x_NHWC


class ResNetEncoder(ImageEncoder):
    """The residual network of IMPALA (Espeholt et al. 2018, figure 3), as in GTrXL's appendix.

    Each section is a 3x3 convolution, a 3x3 max-pooling of stride 2 and two residual blocks
    x + conv(ReLU(conv(ReLU(x)))).
    """

    channels: tuple[int, ...] = (16, 32, 32)
    min_side: ClassVar[int] = 8  # which becomes 1, halved by each of three sections

    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        for channels in self.channels:
            x_NHWC = self.conv(channels)(x_NHWC)
            x_NHWC = nn.max_pool(x_NHWC, (3, 3), strides=(2, 2), padding="SAME")
            for _ in range(2):
                residual = self.conv(channels)(nn.relu(x_NHWC))
                x_NHWC = x_NHWC + self.conv(channels)(nn.relu(residual))
        return nn.relu(x_NHWC)


class NatureEncoder(ImageEncoder):
    """The convolutional network of DQN (Mnih et al. 2015), which RATE uses for images.

    Kernels of 8, 4 and 3 with strides of 4, 2 and 1, no padding, and ReLU after each.

    Attributes:
      channels: of the three convolutions.
      strides: of the three convolutions.
    """

    channels: tuple[int, ...] = (32, 64, 64)
    strides: tuple[int, ...] = (4, 2, 1)
    min_side: ClassVar[int] = 36  # the least for these strides and unpadded kernels

    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        for channels, kernel, stride in zip(self.channels, (8, 4, 3), self.strides, strict=True):
            x_NHWC = nn.relu(self.conv(channels, kernel, stride, "VALID")(x_NHWC))
        return x_NHWC


class TextEncoder(Encoder):
    """The last hidden state of an LSTM that reads a row of tokens, each embedded as a vector.

    Tokens 0, the padding at the end of a text and unknown words, are skipped. A text without any
    others has features of zeros. `width` is unused.

    Attributes:
      spec: a row of tokens `[N]`, with equal numbers of categories.
      units: F, the number of units of the LSTM and of the embedding (64 in GTrXL's appendix).
    """

    units: int = 64

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "... F"]:
        low, size = self.spec.low, self.spec.categories
        assert isinstance(low, int)
        assert isinstance(size, int)
        lead = leading_axes(observation.shape, 1)
        token_MN = observation.reshape(-1, *self.spec.shape).astype(jnp.int32)
        embed = nn.Embed(size, self.units, **self.precision, name="embedding")
        word_MNE = embed(token_MN - low)
        cell = LSTMCell(self.units, orthogonal, **self.precision, name="lstm")
        zeros_MF = jnp.zeros((len(token_MN), self.units), word_MNE.dtype)

        def read(cell: LSTMCell, carry: Any, word: Any) -> tuple[Any, None]:
            word_ME, is_word_M = word
            new, _ = cell(carry, word_ME)
            return jax.tree.map(partial(jnp.where, is_word_M[:, None]), new, carry), None

        scan = nn.scan(read, variable_broadcast="params", split_rngs={"params": False}, in_axes=1)
        (_, hidden_MF), _ = scan(cell, (zeros_MF, zeros_MF), (word_MNE, token_MN != 0))
        return hidden_MF.reshape(*lead, self.units)


class DictEncoder(nn.Module):
    """One encoder per key of a dict observation; features are concatenated in sorted key order.

    Keys without an encoder are ignored.
    """

    encoders: Mapping[str, nn.Module]

    def __call__(self, observation: Any) -> Float[Array, "... F"]:
        observation = _by_key(observation)
        missing = sorted(set(self.encoders) - set(observation))
        if missing:
            raise ValueError(f"observation has no {missing}: it has {sorted(observation)}")
        features = {key: self.encoders[key](observation[key]) for key in sorted(self.encoders)}
        axes = {key: x.shape[:-1] for key, x in features.items()}
        if len(set(axes.values())) > 1:
            raise ValueError(
                f"observation has parts with the leading axes {axes}: all must have the axes [B], "
                "or all [B, T]"
            )
        return jnp.concatenate(list(features.values()), axis=-1)


def _by_key(parts: Any) -> Mapping[str, Any]:
    """Return the parts of a dict, or of a tuple by the keys "0", "1", ..."""
    if isinstance(parts, tuple):
        return {str(number): part for number, part in enumerate(parts)}
    return parts


class InputEncoder(nn.Module):
    """Encoder of a whole time step to one vector of the core's width.

    It concatenates the observation's features, the previous action and its reward, normalized like
    quantities of an observation, and applies a linear layer. On the first step of an episode the
    action and the reward are set to zero, since they belong to the previous episode.

    It records the metric "inactive", the share of the observation's features that are zero in all
    steps of a batch: of the units behind a ReLU, the share of those that do nothing.

    Attributes:
      observation: the observation's encoder.
      action: the layout of the previous action, see `ActionSpec.features`.
      width: D, the width of the core.
      dtype: computation dtype; None for `param_dtype`.
      param_dtype: dtype of the parameters.
    """

    observation: nn.Module
    action: ActionSpec
    width: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Float[Array, "... D"]:
        _check_timestep(timestep)
        dtype = self.dtype or self.param_dtype
        wide = at_least_float32(dtype)
        reward = Normalizer(name="reward")(timestep.reward.astype(wide), ~timestep.first)
        with wrap_errors("encoder", self.observation):
            features = self.observation(timestep.observation)
        if is_custom(self.observation) and features.shape[:-1] != timestep.first.shape:
            raise ValueError(
                f"{describe_part('encoder', self.observation, '__call__')}: it returns "
                f"{describe_array(features)} for time steps {list(timestep.first.shape)}: return a "
                "vector of features for each, [..., F]"
            )
        inputs = {
            "observation": features,
            "action": self.action.features(timestep.action, dtype),
            "reward": reward.astype(dtype)[..., None],
        }
        for name, x in inputs.items():
            if x.shape[:-1] != timestep.first.shape:
                raise ValueError(
                    f"timestep.{name} has the leading axes {x.shape[:-1]}, but timestep.first has "
                    f"{timestep.first.shape}: all fields must have the axes [B], or all [B, T]"
                )
        self._record(inputs["observation"])
        first = timestep.first[..., None]
        for name in ("action", "reward"):
            # Select instead of multiplying by zero, which would keep NaN.
            inputs[name] = jnp.where(first, jnp.zeros_like(inputs[name]), inputs[name])
        x = jnp.concatenate(list(inputs.values()), axis=-1)
        return Dense(self.width, dtype=self.dtype, param_dtype=self.param_dtype)(x)

    def _record(self, features: Float[Array, "... F"]) -> None:
        if not self.is_initializing():
            is_zero_F = jnp.all(features == 0, axis=tuple(range(features.ndim - 1)))
            self.sow("metrics", "inactive", jnp.mean(is_zero_F.astype(jnp.float32)))


def _check_timestep(timestep: Any) -> None:
    """Raise TypeError unless an agent can read it, apart from its observation and action."""
    require_instance("timestep", timestep, TimeStep, "pass one, as zero_timestep returns")
    for name in ("reward", "first"):
        if not hasattr(value := getattr(timestep, name), "dtype"):
            found = type(value).__name__
            raise TypeError(f"timestep.{name} must be an array, not {found}: see zero_timestep")
    if timestep.first.dtype != jnp.bool_:
        raise TypeError(
            f"timestep.first must be bool, not {timestep.first.dtype}: true where an episode begins"
        )


ENCODERS = Registry("encoder", nn.Module)
"""The class of each registered encoder."""


def register_encoder(name: str, encoder: type[nn.Module]) -> None:
    """Register an encoder of arrays, for configs and the command line; see `Encoder`.

    Raises:
      ValueError: if another class is registered under the name.
    """
    ENCODERS.register(name, encoder)


register_encoder("linear", LinearEncoder)
register_encoder("mlp", MLPEncoder)
register_encoder("conv", SmallConvEncoder)
register_encoder("nature", NatureEncoder)
register_encoder("resnet", ResNetEncoder)
register_encoder("text", TextEncoder)


def find_encoder(name: str, field: str = "encoder") -> type[nn.Module] | None:
    """Return the class of an encoder; None for "auto".

    Args:
      name: "auto", a registered name, or `package.module:Name`.
      field: the field of a config that has the name, for error messages.

    Raises:
      ValueError: if the name is unknown, or its module has not been imported.
    """
    if name == "auto":
        return None
    if is_plugin(name):
        return find_plugin(field, name, nn.Module)
    return ENCODERS[require_choice(field, name, ("auto", *ENCODERS))]


def require_encoders(group: str, encoder: str, encoders: Mapping[str, str]) -> None:
    """Raise ValueError unless all names of a config's encoders are known; see `find_encoder`."""
    find_encoder(encoder, f"{group}.encoder")
    for key, name in encoders.items():
        find_encoder(name, f"{group}.encoders {key}")


def make_encoder(
    observation_space: Any,
    name: str = "auto",
    encoders: Mapping[str, str] | None = None,
    *,
    width: int = 256,
    vectors: str = "mlp",
    images: str = "resnet",
    image_axes: str = "auto",
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> nn.Module:
    """Build the encoder of an observation space.

    Args:
      observation_space: a space, or arrays like one observation; see
        `gtrxl_jax.specs.observation_spec`.
      name: "linear" (the flattened features, for a linear layer to follow), "mlp", "conv"
        (`SmallConvEncoder`), "nature" (`NatureEncoder`), "resnet" (`ResNetEncoder`), "text"
        (`TextEncoder`), another registered name, `package.module:Name`, or "auto", which chooses
        by shape: `images` for images of at least 32 x 32 (36 x 36 if it is "nature"), conv for
        smaller images of at least 3 x 3, and `vectors` otherwise. Images have three axes; or two,
        if they are grey ones, uint8 from 0 to 255 or at least 32 x 32; or four, if they are stacks
        of frames, which become channels. In a dict or a tuple, encoders with a `min_side` apply to
        the images, and "auto" to the remaining parts; encoders without one, such as "mlp", apply to
        every part.
      encoders: the names for single keys of a dict; in a tuple, the keys are "0", "1", ...
      width: F, the number of features, per key of a dict; "linear" does not use it.
      vectors: an encoder, which "auto" chooses for observations that are not images.
      images: an encoder of images, which "auto" chooses for large ones.
      image_axes: where the channels of images are: "hwc", last; "chw", first; or "auto", see
        `gtrxl_jax.specs.observation.image_axes`.
      dtype: computation dtype; None for `param_dtype`.
      param_dtype: dtype of the parameters.

    Raises:
      ValueError: if a name or a key is unknown, an encoder does not fit the observation, or a
        custom encoder does not return a vector of features.
      TypeError: if the space cannot be encoded.
    """
    find_encoder(name)
    spec = observation_spec(observation_space, channels=image_axes)
    for key in encoders or ():
        if not isinstance(spec, dict | tuple):
            raise ValueError(
                f"encoders has the key {key!r}, but observation_space has no keys: use encoder"
            )
        require_choice("key of encoders", key, _by_key(spec))

    def build(spec: Any, name: str, field: str, given: dict[str, str]) -> nn.Module:
        if not isinstance(spec, dict | tuple):
            kind = find_encoder(name) or _choose(spec, find_encoder(vectors), find_encoder(images))
            _require_fit(kind, name, spec, field)
            return _construct(kind, spec, width=width, dtype=dtype, param_dtype=param_dtype)
        parts = _by_key(spec)
        rest = {key: _name_for(name, part) for key, part in parts.items() if key not in given}
        if not parts or (rest and name not in ("auto", *rest.values())):
            raise ValueError(f"encoder {name!r} fits no key of {field} {list(rest)}; use 'auto'")
        names = rest | given
        fields = {
            key: f"{field}[{key}]" if isinstance(spec, tuple) else f"{field}[{key!r}]"
            for key in parts
        }
        built = {key: build(part, names[key], fields[key], {}) for key, part in parts.items()}
        return DictEncoder(FrozenDict(built))

    return build(spec, name, "observation_space", dict(encoders or {}))


def describe_arrays(module: nn.Module, field: str = "observation") -> list[str]:
    """Return a line about each array of several axes: how the encoder in a network reads it."""
    if isinstance(module, DictEncoder):
        parts = {
            f"{field}[{key if key.isdecimal() else repr(key)}]": module.encoders[key]
            for key in sorted(module.encoders)
        }
        return [line for name, part in parts.items() for line in describe_arrays(part, name)]
    spec = getattr(module, "spec", None)
    if isinstance(spec, ArraySpec):
        if len(spec.shape) < 2:
            return []
        how = ""
        if isinstance(module, MLPEncoder):
            how = " as a vector,"
        elif _min_side(type(module)) is not None:
            axes = spec.axes or "hwc"[: len(spec.shape)]
            how = f" as an image [{', '.join(axes.upper())}],"
        return [f"{field} {list(spec.shape)} is read{how} by the {type(module).__name__}"]
    inner = [
        getattr(module, one.name) for one in dataclasses.fields(module) if one.name != "parent"
    ]
    modules = [one for one in inner if isinstance(one, nn.Module)]
    return [line for one in modules for line in describe_arrays(one, field)]


def _min_side(kind: type[nn.Module]) -> int | None:
    return getattr(kind, "min_side", None)


def _choose(spec: ArraySpec, vectors: Any, images: Any) -> type[nn.Module]:
    """Return the encoder of an array for "auto"."""
    side = min(spec.image_shape[:2], default=0)
    if not _has_image_axes(spec) or side < SmallConvEncoder.min_side:
        return vectors
    return images if side >= max(images.min_side, LARGE_IMAGE_SIDE) else SmallConvEncoder


def _name_for(name: str, part: Any) -> str:
    """Return the name of the encoder of a part of an observation, given the observation's."""
    kind = find_encoder(name)
    if kind is None or _min_side(kind) is None or isinstance(part, dict | tuple):
        return name
    return name if _has_image_axes(part) else "auto"


def _has_image_axes(spec: ArraySpec) -> bool:
    shape = spec.image_shape
    if len(shape) == 3:
        return not isinstance(spec.categories, tuple) or len(spec.categories) == shape[-1]
    return spec.is_image


def _require_fit(kind: type[nn.Module], name: str, spec: ArraySpec, field: str) -> None:
    shape, least = spec.image_shape, _min_side(kind)
    if kind is TextEncoder and not (len(shape) == 1 and isinstance(spec.categories, int)):
        raise ValueError(
            f"encoder {name!r} needs a row of tokens, but {field} has shape {shape}"
            f"{'' if spec.categories else ' without categories'}; use 'auto'"
        )
    if least is None:
        return
    if len(shape) not in (2, 3):
        raise ValueError(
            f"encoder {name!r} needs images [H, W, C], but {field} has shape {shape}; use 'mlp'"
        )
    if (side := min(shape[:2])) < least:
        remedy = "'mlp'" if side < SmallConvEncoder.min_side else "'conv' or 'mlp'"
        raise ValueError(
            f"encoder {name!r} needs images of at least {least} x {least}, but {field} has shape "
            f"{shape}; use {remedy}"
        )


def _construct(kind: type[nn.Module], spec: ArraySpec, **settings: Any) -> nn.Module:
    """Return an encoder, after checking a custom one. Compiles nothing."""
    try:
        inspect.signature(kind).bind(spec, **settings)
    except TypeError as error:
        raise ValueError(
            f"{describe_part('encoder', kind)}: {error}: it is created as {kind.__name__}(spec, "
            f"{', '.join(f'{name}=...' for name in settings)})"
        ) from None
    if not is_custom(kind):
        return kind(spec, **settings)
    lead = (2, 3)
    x = jax.ShapeDtypeStruct((*lead, *spec.shape), jax.dtypes.canonicalize_dtype(spec.dtype))
    with wrap_errors("encoder", kind):
        encoder = kind(spec, **settings)
        features, _ = jax.eval_shape(encoder.init_with_output, jax.random.key(0), x)
    if getattr(features, "shape", ())[:-1] != lead:
        returned = (
            describe_array(features) if hasattr(features, "dtype") else type(features).__name__
        )
        raise ValueError(
            f"{describe_part('encoder', encoder, '__call__')}: "
            f"it returns {returned} for observations {list(x.shape)}: return a vector of "
            "features for each, [..., F]"
        )
    return encoder
