"""A custom encoder: a linear layer on waves of several frequencies, for numbers of fine detail.

    cd examples
    gtrxl train --env.name CartPole-v1 --agent.encoder custom_encoder:WaveEncoder

An encoder is created for an array of an observation as `cls(spec, width=..., dtype=...,
param_dtype=...)`, and returns a vector of features for each step. In a dict of arrays,
`--agent.encoders KEY custom_encoder:WaveEncoder` is for one of them. With a class attribute
`min_side`, the shortest side that it accepts, an encoder is only for images.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from gtrxl_jax.nn.encoders import Encoder


class WaveEncoder(Encoder):
    """relu(W [x, sin(2^k x), cos(2^k x)]) for k = 0 .. octaves - 1, with all values x of the array.

    Attributes:
      octaves: the number of frequencies.
    """

    octaves: int = 4

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Return features `[..., width]`."""
        x = self.normalize(observation)
        x = x.reshape(*self.leading_axes(x), -1)
        angles = [2.0**octave * x for octave in range(self.octaves)]
        waves = [wave(angle) for angle in angles for wave in (jnp.sin, jnp.cos)]
        return nn.relu(nn.Dense(self.width, **self.precision)(jnp.concatenate([x, *waves], -1)))
