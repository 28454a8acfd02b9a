"""Auxiliary losses for agents with any core: reconstruction, pixel control, and RND.

All are modules that sow their loss into "losses", which algorithms add to their own, see
`online.algorithm.sum_losses`. Acting does not compute them.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gtrxl_jax.nn.encoders import Features
from gtrxl_jax.nn.layers import Dense
from gtrxl_jax.nn.normalizer import Normalizer
from gtrxl_jax.ops.pixel_control import cell_size, pixel_changes, pixel_control_loss
from gtrxl_jax.ops.promotion import at_least_float32
from gtrxl_jax.ops.reconstruction import reconstruction_error
from gtrxl_jax.specs import ActionSpec, ArraySpec
from gtrxl_jax.specs.observation import QUANTITY
from gtrxl_jax.timestep import TimeStep


class Deconvolution(nn.Module):
    """A vector to an image: a linear layer with ReLU, then transposed convolutions of stride 2.

    Attributes:
      height, width: the size of the image, to which the result is cropped.
      channels: the output channels of each transposed convolution; ReLU between them.
      kernel: the side of their kernels.
      dtype, param_dtype: see `Encoder`.
    """

    height: int
    width: int
    channels: tuple[int, ...]
    kernel: int = 4
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... H W C"]:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        lead, scale, start = x.shape[:-1], 2 ** len(self.channels), 32
        rows, columns = math.ceil(self.height / scale), math.ceil(self.width / scale)
        x = Dense(rows * columns * start, **precision)(x)
        x_NHWC = x.reshape(-1, rows, columns, start)
        for channels in self.channels:
            kernel = (self.kernel, self.kernel)
            x_NHWC = nn.ConvTranspose(channels, kernel, (2, 2), **precision)(nn.relu(x_NHWC))
        x_NHWC = x_NHWC[:, : self.height, : self.width]
        return x_NHWC.reshape(*lead, *x_NHWC.shape[1:])


class Reconstruction(nn.Module):
    """Reconstructs the observation, the previous action and its reward from the core's output.

    The targets are the features of encoders, of which quantities are normalized, by statistics of
    their own. The loss of a step is the mean over the arrays of the observation, plus the action's
    and the reward's unless it is the first of an episode; of each array it is the mean over its
    entries, see `ops.reconstruction`. Reported are the three parts.

    Attributes:
      specs: the arrays of the observation, in the order of `jax.tree.leaves`.
      action: the layout of the previous action.
      cost: weight of the loss.
      hidden: units of the hidden layer.
      dtype, param_dtype: see `Encoder`.
    """

    specs: tuple[ArraySpec, ...]
    action: ActionSpec
    cost: float
    hidden: int = 256
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        wide = at_least_float32(self.param_dtype)
        self.arrays = [Features(spec, wide) for spec in self.specs]
        self.reward_normalizer = Normalizer()
        self.layer = Dense(self.hidden, **precision)
        self.decoders = [self._decoder(spec, precision) for spec in self.specs]
        self.rest = Dense(self.action.num_features + 1, param_dtype=self.param_dtype)

    def _decoder(self, spec: ArraySpec, precision: dict[str, Any]) -> nn.Module:
        if not spec.is_image:
            return Dense(math.prod(spec.feature_shape), param_dtype=self.param_dtype)
        height, width, channels = spec.image_feature_shape
        return Deconvolution(height, width, (32, 16, channels), **precision)

    def targets(self, timesteps: TimeStep) -> list[Float[Array, "... F"]]:
        """Return the features of each array of the observation, of the action and the reward."""
        wide, lead = at_least_float32(self.param_dtype), timesteps.first.shape

        def target(normalize: Features, x: Array) -> Float[Array, "... F"]:
            spec = normalize.spec
            given, normalized = (
                y.reshape(*lead, -1) for y in (spec.features(x, wide), normalize(x))
            )
            is_quantity_F = (spec.feature_groups == QUANTITY).reshape(*(1,) * len(lead), -1)
            return jnp.where(is_quantity_F, normalized, given)

        arrays = jax.tree.leaves(timesteps.observation)
        features = [target(one, x) for one, x in zip(self.arrays, arrays, strict=True)]
        reward = self.reward_normalizer(timesteps.reward.astype(wide), ~timesteps.first)
        return [*features, self.action.features(timesteps.action, wide), reward[..., None]]

    def __call__(self, y: Float[Array, "... D"], timesteps: TimeStep) -> None:
        """Sow the loss on time steps, given the core's output."""
        x = nn.relu(self.layer(y))
        wide = x.astype(at_least_float32(self.param_dtype))
        *arrays, action, reward = self.targets(timesteps)
        errors = []
        for spec, decoder, target in zip(self.specs, self.decoders, arrays, strict=True):
            output = decoder(x if spec.is_image else wide).reshape(target.shape)
            errors.append(
                reconstruction_error(output.astype(target.dtype), target, spec.feature_groups)
            )
        outputs = self.rest(wide)
        parts = {
            "observation": sum(errors) / len(errors),
            "action": reconstruction_error(outputs[..., :-1], action, self.action.feature_groups),
            "reward": jnp.square(outputs[..., -1] - jax.lax.stop_gradient(reward[..., 0])),
        }
        for name in ("action", "reward"):
            parts[name] = jnp.where(timesteps.first, 0, parts[name])
        if not self.is_initializing():
            self.sow("losses", "loss", self.cost * jnp.mean(sum(parts.values())))
            for name, part in parts.items():
                self.sow("metrics", name, jnp.mean(part))


class PixelControl(nn.Module):
    """Values of the actions for changing each cell of an image, and their loss.

    The values are dueling: those of the state and the advantages of the actions are maps, by
    transposed convolutions of the core's output. See `ops.pixel_control`.

    Attributes:
      spec: the image.
      leaf: number of the image among the leaves of the observation.
      num_actions: A.
      cost: weight of the loss.
      dtype, param_dtype: see `Encoder`.
    """

    spec: ArraySpec
    leaf: int
    num_actions: int
    cost: float
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, y_BSD: Float[Array, "B S D"], timesteps: TimeStep) -> None:
        """Sow the loss on a segment, given the core's output."""
        height, width, *_ = self.spec.feature_shape
        cell = cell_size(height, width)
        q_BSHWA = self.values(y_BSD, height // cell, width // cell)
        loss = jnp.zeros((), q_BSHWA.dtype)
        if y_BSD.shape[1] > 1:  # otherwise there is no transition, as in initialization
            loss = pixel_control_loss(
                q_BSHWA=q_BSHWA,
                change_BSHW=pixel_changes(self.image(timesteps, q_BSHWA.dtype), cell),
                action_BS=timesteps.action,
                discount_BS=timesteps.discount.astype(q_BSHWA.dtype),
                last_BS=timesteps.last,
            )
        if not self.is_initializing():
            self.sow("losses", "loss", self.cost * loss)

    def values(
        self, y: Float[Array, "B S D"], rows: int, columns: int
    ) -> Float[Array, "B S H W A"]:
        """Return Q = V + A - mean A of each cell."""
        outputs = Deconvolution(
            rows,
            columns,
            (1 + self.num_actions,),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="maps",
        )(y).astype(at_least_float32(self.param_dtype))
        advantage = outputs[..., 1:]
        return outputs[..., :1] + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

    def image(self, timesteps: TimeStep, dtype: Any) -> Float[Array, "B S H W C"]:
        """Return the image, from 0 to 1 if the space declares a range, otherwise as it is."""
        x = self.spec.features(jax.tree.leaves(timesteps.observation)[self.leaf], dtype)
        if self.spec.range is not None:
            low, high = self.spec.range
            x = (x - low) / (high - low)
        return x.reshape(*x.shape[:2], *self.spec.image_feature_shape)


class RandomDistillation(nn.Module):
    """Random network distillation, RND (Burda et al. 2018): how unfamiliar an observation is.

    A predictor learns the features of a random network, which is never trained. Its error, the mean
    over the features, is large for observations unlike those that it has learned from. The bonus of
    an observation is this error relative to its root mean square over all observations so far:
    about 1 at first, and decreasing for observations that recur. Episodes do not end for it, see
    `online.algorithm.compute_bonus`.

    Attributes:
      target, predictor: encoders of the observation, see `make_encoder`.
      scale: weight of the bonus.
      features: number of features to predict.
      hidden: units of each hidden layer, one of the target and two of the predictor.
      dtype, param_dtype: see `Encoder`.
    """

    target: nn.Module
    predictor: nn.Module
    scale: float
    features: int = 64
    hidden: int = 128
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.target_layer = Dense(self.hidden, **precision)
        self.target_features = Dense(self.features, param_dtype=self.param_dtype)
        self.predictor_layers = [Dense(self.hidden, **precision) for _ in range(2)]
        self.predictor_features = Dense(self.features, param_dtype=self.param_dtype)
        self.normalizer = Normalizer(center=False)

    def error(self, observation: Any) -> Float[Array, "..."]:
        """Return the squared error of each observation, the mean over the features."""
        wide = at_least_float32(self.param_dtype)
        x = nn.relu(self.target_layer(self.target(observation)))
        target = jax.lax.stop_gradient(self.target_features(x.astype(wide)))
        x = self.predictor(observation)
        for layer in self.predictor_layers:
            x = nn.relu(layer(x))
        return jnp.mean(jnp.square(self.predictor_features(x.astype(wide)) - target), axis=-1)

    def bonus(self, observation: Any) -> Float[Array, "..."]:
        """Return the bonus of each observation, which is not differentiated."""
        return self.scale * self.normalizer(jax.lax.stop_gradient(self.error(observation)))

    def __call__(self, y: Float[Array, "... D"], timesteps: TimeStep) -> None:
        """Sow the predictor's loss on time steps; the core's output is not used."""
        loss = jnp.mean(self.error(timesteps.observation))
        if self.is_initializing():
            self.bonus(timesteps.observation)
        else:
            self.sow("losses", "loss", loss)
