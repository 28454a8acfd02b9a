"""The record that data pass to sequence models."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class Segments:
    """Segments of K consecutive steps, each of one episode.

    The leading axes are `[B, K]` for one segment of each of B trajectories, the input of a model,
    or `[B, N, K]` for B windows of N consecutive segments each, a batch of training data.

    Padding occurs only at the end of a window, where `mask` is false and everything else is 0.

    Attributes:
      observations: pytree `[..., K, ...]`, the observations given which the actions were chosen.
      actions: in the layout of `specs.ActionSpec`: `[..., K]` int32, `[..., K, C]` floats, or a
        dict of both.
      returns_to_go: undiscounted sum of the current and all later rewards of the whole episode,
        including those beyond the window.
      timesteps: index of the step in its episode, from 0.
      mask: whether the step is real rather than padding.
    """

    observations: Any
    actions: Any
    returns_to_go: Float[Array, "*lead K"]
    timesteps: Int[Array, "*lead K"]
    mask: Bool[Array, "*lead K"]


def zero_segment(timestep: Any) -> Segments:
    """Return a segment `[B, K]` for time steps `[B, K]` of zeros."""
    return Segments(
        observations=timestep.observation,
        actions=timestep.action,
        returns_to_go=timestep.reward,
        timesteps=timestep.reward.astype(jnp.int32),
        mask=timestep.first,
    )
