"""The record that data pass to sequence models."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class Segments:
    """Segments of T consecutive steps, each of one episode.

    The leading axes are `[B, T]` for one segment of each of B trajectories, the input of a model,
    or `[B, K, T]` for B windows of K consecutive segments each, a batch of training data.

    Padding occurs only at the end of a window, where `mask` is false and everything else is 0.

    The fields of `OPTIONAL` are None unless the algorithm needs them.

    Attributes:
      observations: pytree `[..., T, ...]`, the observations given which the actions were chosen.
      actions: in the layout of `specs.ActionSpec`: `[..., T]` int32, `[..., T, C]` floats, or a
        dict of both.
      returns_to_go: undiscounted sum of the current and all later rewards of the whole episode,
        including those beyond the window.
      timesteps: index of the step in its episode, from 0.
      mask: whether the step is real rather than padding.
      rewards: the reward of the action.
      last: whether the action was the last of its episode.
      terminated: whether the episode terminated with it; a last action that did not terminate it
        was followed by a truncation.
      next_observations: the observations after the actions, also at the end of a window and of an
        episode.
    """

    observations: Any
    actions: Any
    returns_to_go: Float[Array, "*lead T"]
    timesteps: Int[Array, "*lead T"]
    mask: Bool[Array, "*lead T"]
    rewards: Float[Array, "*lead T"] | None = None
    last: Bool[Array, "*lead T"] | None = None
    terminated: Bool[Array, "*lead T"] | None = None
    next_observations: Any = None


OPTIONAL = ("rewards", "last", "terminated", "next_observations")
"""The fields that only some algorithms need."""


def zero_segment(timestep: Any, needs: tuple[str, ...] = ()) -> Segments:
    """Return a segment for time steps `[B, T]` of zeros, with the optional fields named."""
    optional = {
        "rewards": timestep.reward,
        "last": timestep.last,
        "terminated": timestep.last,
        "next_observations": timestep.observation,
    }
    return Segments(
        observations=timestep.observation,
        actions=timestep.action,
        returns_to_go=timestep.reward,
        timesteps=timestep.reward.astype(jnp.int32),
        mask=timestep.first,
        **{name: optional[name] for name in needs},
    )
