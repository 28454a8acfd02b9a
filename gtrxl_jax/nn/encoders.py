"""Encoders that map observations with any leading axes to feature vectors.

Every encoder takes observations `[..., *shape]` as the environment returns them (integers,
booleans, dicts) and returns features `[..., F]`. It computes in `dtype`, or in `param_dtype` if
that is None, regardless of the observation's dtype.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core import FrozenDict
from jaxtyping import Array, Float

from gtrxl_jax.custom import described, is_custom, named, naming_part
from gtrxl_jax.nn.layers import Dense, LayerNorm
from gtrxl_jax.nn.normalizer import Normalizer
from gtrxl_jax.ops.convolution import convolve
from gtrxl_jax.specs import ActionSpec, ArraySpec, leading_axes, observation_spec
from gtrxl_jax.specs.observation import PICTURE_SIDE
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.validation import check_choice

# `ResNetEncoder` halves each side three times: a side of 8 becomes 1.
MIN_RESNET_SIDE = 8
MIN_CONV_SIDE = 3
# The smallest side that the strides and unpadded kernels of `NatureEncoder` accept.
MIN_NATURE_SIDE = 36
# The most images that are encoded together on CPU.
PART = 32


class Features(nn.Module):
    """The features of an array of an observation, with quantities normalized, see `ArraySpec`.

    They are computed in float32 or wider, and cast to `dtype` last.
    """

    spec: ArraySpec
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "..."]:
        spec = self.spec
        if not spec.has_quantities:
            return spec.features(observation, self.dtype)
        x = spec.features(observation, np.promote_types(self.dtype, np.float32))
        normal = Normalizer(
            spec.statistics_shape, *spec.declared_moments, spec.tolerance, name="normalizer"
        )(x)
        if spec.quantities is not None:
            is_quantity_F = spec.quantities.reshape(*(1,) * (x.ndim - 1), -1)
            normal = jnp.where(is_quantity_F, normal, x)
        return normal.astype(self.dtype)


class MLPEncoder(nn.Module):
    """Flattening, then a linear layer and ReLU for each of `widths`, which may be empty.

    The first layer of an image of N values divides them by sqrt(N), and its initial weights have
    variance 1 instead of 1 / N. Adam changes every weight by about the learning rate, however many
    there are, so that a step could otherwise change the outputs of this layer much more than those
    of others.
    """

    spec: ArraySpec
    widths: tuple[int, ...] = (256,)
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "... F"]:
        x = Features(self.spec, self.dtype or self.param_dtype, name="features")(observation)
        x = x.reshape(*leading_axes(x.shape, len(self.spec.feature_shape)), -1)
        scale = math.sqrt(x.shape[-1]) if self.spec.is_image else 1.0
        for width in self.widths:
            init = nn.initializers.variance_scaling(scale**2, "fan_in", "truncated_normal")
            precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
            x = nn.relu(Dense(width, kernel_init=init, **precision)(x / scale))
            scale = 1.0
        return x


class ImageEncoder(nn.Module, abc.ABC):
    """A convolutional `trunk`, then flattening, a linear layer and ReLU.

    For images, a layer norm precedes that ReLU, so that its units stay active. Since it removes how
    bright an image is and how strong its contrasts, these are inputs of their own: the mean and the
    deviation of each channel, by another linear layer.

    Attributes:
      spec: an image `[H, W, C]`, or `[H, W]` for a single channel.
      channels: output channels of the trunk's layers or sections.
      width: F, the number of features.
    """

    spec: ArraySpec
    channels: tuple[int, ...] = ()
    width: int = 256
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def conv(
        self, channels: int, kernel: int = 3, stride: int = 1, padding: str = "SAME"
    ) -> nn.Conv:
        """Return a convolution whose gradients are also fast inside loops."""
        return nn.Conv(
            channels,
            (kernel, kernel),
            strides=stride,
            padding=padding,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            conv_general_dilated=convolve,
        )

    @abc.abstractmethod
    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        """Apply the convolutions to the spec's features."""

    @nn.compact
    def __call__(self, observation: Array) -> Float[Array, "... F"]:
        x = Features(self.spec, self.dtype or self.param_dtype, name="features")(observation)
        shape = self.spec.feature_shape
        lead = leading_axes(x.shape, len(shape))
        height, width, channels = (*shape, 1)[:3]
        x_NHWC = x.reshape(-1, height, width, channels)
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = Dense(self.width, **precision)(self._in_parts(x_NHWC).reshape(*lead, -1))
        if self.spec.is_image:
            light = Dense(self.width, use_bias=False, name="light", **precision)
            x = LayerNorm(**precision)(x) + light(_mean_and_deviation(x_NHWC).reshape(*lead, -1))
        return nn.relu(x)

    def _in_parts(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        """Apply the trunk; on CPU to few images at a time, whose activations fit the caches.

        Each part has images from all of the batch, so that devices that share it share every part.
        """
        images = len(x_NHWC)
        part = max(n for n in range(1, PART + 1) if images % n == 0)
        if jax.default_backend() != "cpu" or part < PART // 4 or images <= 2 * PART:
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
    wide = x_NHWC.astype(np.promote_types(x_NHWC.dtype, np.float32))
    mean_N11C = jnp.mean(wide, axis=(1, 2), keepdims=True)
    # The root of the variance would have an infinite gradient where an image has one color.
    deviation_NC = jnp.mean(jnp.abs(wide - mean_N11C), axis=(1, 2))
    return jnp.concatenate([mean_N11C[:, 0, 0], deviation_NC], axis=-1).astype(x_NHWC.dtype)


class SmallConvEncoder(ImageEncoder):
    """3x3 convolutions of stride 1 with ReLU, for grids of cells and MinAtar images."""

    channels: tuple[int, ...] = (16, 32)

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
    """

    channels: tuple[int, ...] = (32, 64, 64)

    def trunk(self, x_NHWC: Float[Array, "N H W C"]) -> Float[Array, "N h w c"]:
        for channels, kernel, stride in zip(self.channels, (8, 4, 3), (4, 2, 1), strict=True):
            x_NHWC = nn.relu(self.conv(channels, kernel, stride, "VALID")(x_NHWC))
        return x_NHWC


class DictEncoder(nn.Module):
    """One encoder per key of a dict observation; features are concatenated in sorted key order.

    Keys without an encoder are ignored.
    """

    encoders: Mapping[str, nn.Module]

    def __call__(self, observation: Any) -> Float[Array, "... F"]:
        observation = _by_name(observation)
        missing = sorted(set(self.encoders) - set(observation))
        if missing:
            raise ValueError(f"observation has no {missing}: it has {sorted(observation)}")
        return jnp.concatenate(
            [self.encoders[key](observation[key]) for key in sorted(self.encoders)], axis=-1
        )


def _by_name(parts: Any) -> Mapping[str, Any]:
    """Return the parts of a dict, or those of a tuple by the names "0", "1", ..."""
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
        dtype = self.dtype or self.param_dtype
        wide = np.promote_types(dtype, np.float32)
        reward = Normalizer(name="reward")(timestep.reward.astype(wide), ~timestep.first)
        with naming_part("encoder", self.observation):
            features = self.observation(timestep.observation)
        if is_custom(self.observation) and features.shape[:-1] != timestep.first.shape:
            raise ValueError(
                f"{named('encoder', self.observation, '__call__')}: it returns "
                f"{described(features)} for time steps {list(timestep.first.shape)}: return a "
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


IMAGE_ENCODERS: dict[str, tuple[type[ImageEncoder], int]] = {
    "conv": (SmallConvEncoder, MIN_CONV_SIDE),
    "nature": (NatureEncoder, MIN_NATURE_SIDE),
    "resnet": (ResNetEncoder, MIN_RESNET_SIDE),
}
"""Encoders of images, with the smallest side that they accept."""

ENCODERS = ("auto", "linear", "mlp", *IMAGE_ENCODERS)


def make_encoder(
    observation_space: Any,
    name: str = "auto",
    *,
    width: int = 256,
    vectors: str = "mlp",
    pictures: str = "resnet",
    image_axes: str = "auto",
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> nn.Module:
    """Build the encoder of an observation space.

    Args:
      observation_space: a space, or arrays like one observation; see
        `gtrxl_jax.specs.observation_spec`.
      name: "linear" (the flattened features, for a linear layer to follow), "mlp", "conv"
        (`SmallConvEncoder`), "nature" (`NatureEncoder`), "resnet" (`ResNetEncoder`), or "auto",
        which chooses by shape: `pictures` for images of at least 32 x 32 (36 x 36 if it is
        "nature"), conv for smaller images of at least 3 x 3, and `vectors` otherwise. Images have
        three axes; or two, if they are grey ones, uint8 from 0 to 255 or at least 32 x 32; or four,
        if they are stacks of frames, which become channels. In a dict or a tuple, "linear" and
        "mlp" apply to every part and the others to the images; the remaining parts use "auto".
      width: F, the number of features, per key of a dict; "linear" does not use it.
      vectors: "mlp" or "linear", which "auto" chooses for observations that are not images.
      pictures: an encoder of images, which "auto" chooses for large ones.
      image_axes: where the channels of images are: "hwc", last; "chw", first; or "auto", see
        `gtrxl_jax.specs.observation.image_axes`.
      dtype: computation dtype; None for `param_dtype`.
      param_dtype: dtype of the parameters.

    Raises:
      ValueError: if the name is unknown or the encoder does not fit the observation.
      TypeError: if the space cannot be encoded.
    """
    check_choice("encoder", name, ENCODERS)
    precision = {"dtype": dtype, "param_dtype": param_dtype}
    spec = observation_spec(observation_space, channels=image_axes)
    auto = (vectors, pictures)
    return _build(spec, name, "observation_space", auto, width, precision)


def describe_arrays(module: nn.Module, field: str = "observation") -> list[str]:
    """Return a line about each array of several axes: how the encoder in a network reads it."""
    if isinstance(module, DictEncoder):
        parts = {
            f"{field}[{key if key.isdecimal() else repr(key)}]": module.encoders[key]
            for key in sorted(module.encoders)
        }
        return [line for name, part in parts.items() for line in describe_arrays(part, name)]
    if isinstance(module, MLPEncoder | ImageEncoder):
        shape, kind = module.spec.shape, type(module).__name__
        if len(shape) < 2:
            return []
        array = f"{field} {list(shape)} is read"
        if isinstance(module, MLPEncoder):
            return [f"{array} as a vector, by the {kind}"]
        axes = module.spec.axes or "hwc"[: len(shape)]
        return [f"{array} as an image [{', '.join(axes.upper())}], by the {kind}"]
    inner = [
        getattr(module, one.name) for one in dataclasses.fields(module) if one.name != "parent"
    ]
    modules = [one for one in inner if isinstance(one, nn.Module)]
    return [line for one in modules for line in describe_arrays(one, field)]


def _build(
    spec: Any, name: str, field: str, auto: tuple[str, str], width: int, precision: dict[str, Any]
) -> nn.Module:
    if isinstance(spec, dict | tuple):
        parts = _by_name(spec)
        names = {key: _name_for_part(name, part) for key, part in parts.items()}
        if not parts or name not in ("auto", *names.values()):
            raise ValueError(f"encoder {name!r} fits no key of {field} {list(parts)}; use 'auto'")
        fields = {
            key: f"{field}[{key}]" if isinstance(spec, tuple) else f"{field}[{key!r}]"
            for key in parts
        }
        return DictEncoder(
            FrozenDict(
                {
                    key: _build(part, names[key], fields[key], auto, width, precision)
                    for key, part in parts.items()
                }
            )
        )
    shape = spec.image_shape
    if name == "auto":
        name = _name_for_array(spec, *auto)
    if name in ("linear", "mlp"):
        return MLPEncoder(spec, (width,) if name == "mlp" else (), **precision)
    encoder, side = IMAGE_ENCODERS[name]
    if len(shape) not in (2, 3):
        raise ValueError(
            f"encoder {name!r} needs images [H, W, C], but {field} has shape {shape}; use 'mlp'"
        )
    if min(shape[:2]) < side:
        remedy = "'mlp'" if min(shape[:2]) < MIN_CONV_SIDE else "'conv' or 'mlp'"
        raise ValueError(
            f"encoder {name!r} needs images of at least {side} x {side}, but {field} has shape "
            f"{shape}; use {remedy}"
        )
    return encoder(spec, width=width, **precision)


def _name_for_array(spec: ArraySpec, vectors: str, pictures: str) -> str:
    if not _has_image_axes(spec) or min(spec.image_shape[:2]) < MIN_CONV_SIDE:
        return vectors
    _, side = IMAGE_ENCODERS[pictures]
    return pictures if min(spec.image_shape[:2]) >= max(side, PICTURE_SIDE) else "conv"


def _name_for_part(name: str, part: Any) -> str:
    if isinstance(part, dict | tuple):
        return name
    return name if name in ("linear", "mlp") or _has_image_axes(part) else "auto"


def _has_image_axes(spec: ArraySpec) -> bool:
    shape = spec.image_shape
    if len(shape) == 3:
        return not isinstance(spec.categories, tuple) or len(spec.categories) == shape[-1]
    return spec.is_image
