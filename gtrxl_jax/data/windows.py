"""Cut episodes into windows of K segments of T steps for offline training.

Dimensions in names: E episodes, F chosen episodes, T the largest number of actions of any
episode, B windows, K segments, T steps of a segment, S = K*T.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt

from gtrxl_jax.data.trajectories import AnyArray, Trajectories, returns_to_go
from gtrxl_jax.segments import Segments
from gtrxl_jax.specs import agent_action
from gtrxl_jax.validation import require_choice, require_count

STARTS = ("episode", "uniform", "covering")
WEIGHTS = ("uniform", "length")


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How windows are sampled.

    Attributes:
      start: where a window begins. "episode": at step 0. "uniform": at any step of the episode with
        equal probability, as in Chen et al. (2021); the first steps of an episode are then in fewer
        windows than later ones, step 0 in 1/S as many. "covering": the same, but also at the S - 1
        places before the episode, from where the window is moved to step 0, so that no step is in
        fewer windows than those in the middle. A window that begins fewer than S steps before the
        end of its episode, or in an episode shorter than S, is padded.
      weight: how episodes are chosen. "uniform": with equal probability. "length": in proportion to
        their number of steps, so that with start "uniform" every step of the data is equally likely
        to begin a window. With start "covering", a step of an episode of L steps is in
        L / (L + S - 1) as many windows as one of a long episode.
    """

    start: str = "episode"
    weight: str = "uniform"


def sample_segments(
    trajectories: Trajectories,
    key: Key[Array, ""] | UInt[Array, "2"],
    batch: int,
    segments: int,
    unroll: int,
    start: str = "episode",
    weight: str = "uniform",
    episodes: Int[AnyArray, " F"] | None = None,
    needs: tuple[str, ...] = (),
) -> Segments:
    """Sample windows independently, with replacement. Pure.

    `batch` to `weight`, and `needs`, are static.

    Args:
      trajectories: E episodes, on a device.
      key: one PRNG key.
      batch: B, the number of windows.
      segments: K.
      unroll: T, the number of steps of a segment.
      start: where a window begins, see `Sampling`.
      weight: how episodes are chosen, see `Sampling`.
      episodes: indices of the episodes to sample from; all by default.
      needs: names of optional fields of `Segments`.

    Raises:
      ValueError: if a number is below 1, or the start or weight is unknown.
      TypeError: if a number is not an integer.
    """
    steps = segments * unroll
    episode_B, start_B = draw_windows(
        trajectories.length, key, batch, steps, start, weight, episodes
    )
    return take_segments(trajectories, episode_B, start_B, segments, unroll, needs)


def draw_windows(
    length: Int[AnyArray, " E"],
    key: Key[Array, ""] | UInt[Array, "2"],
    batch: int,
    steps: int,
    start: str = "episode",
    weight: str = "uniform",
    episodes: Int[AnyArray, " F"] | None = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Draw the episode of each window of S `steps`, and where it begins. See `sample_segments`."""
    require_count("batch", batch)
    require_choice("start", start, STARTS)
    require_choice("weight", weight, WEIGHTS)
    episode_F = jnp.asarray(np.arange(len(length)) if episodes is None else episodes, jnp.int32)
    length_F = jnp.asarray(length, jnp.int32)[episode_F]
    key_episode, key_start = jax.random.split(key)
    zero = jnp.zeros((), jnp.int32)
    if weight == "uniform":
        place_B = jax.random.randint(key_episode, (batch,), 0, len(length_F), jnp.int32)
    else:
        # Global step s belongs to the first episode that ends after it.
        end_F = jnp.cumsum(length_F, dtype=jnp.int32)
        step_B = jax.random.randint(key_episode, (batch,), zero, end_F[-1], jnp.int32)
        place_B = jnp.searchsorted(end_F, step_B, side="right").astype(jnp.int32)
    if start == "episode":
        return episode_F[place_B], jnp.zeros((batch,), jnp.int32)
    first = zero if start == "uniform" else zero - (steps - 1)
    start_B = jax.random.randint(key_start, (batch,), first, length_F[place_B], jnp.int32)
    return episode_F[place_B], jnp.maximum(start_B, 0)


def take_segments(
    trajectories: Trajectories,
    episode: Int[AnyArray, " B"],
    start: Int[AnyArray, " B"],
    segments: int,
    unroll: int,
    needs: tuple[str, ...] = (),
) -> Segments:
    """Cut the windows that begin at the given steps of the given episodes. Pure.

    Args:
      trajectories: E episodes.
      episode: episode of each window, below E.
      start: step of the episode at which each window begins, below the episode's length.
      segments: K.
      unroll: T.
      needs: names of optional fields of `Segments`.
    """
    require_count("segments", segments)
    require_count("unroll", unroll)
    episode_B, start_B = (jnp.asarray(x, jnp.int32) for x in (episode, start))
    length_B = jnp.asarray(trajectories.length)[episode_B]
    step_BS = start_B[:, None] + jnp.arange(segments * unroll, dtype=jnp.int32)[None]
    mask_BS = step_BS < length_B[:, None]

    def window(value_ET: Any, step_BS: Array = step_BS) -> Array:
        value_ET = jnp.asarray(value_ET)
        return value_ET[episode_B[:, None], jnp.minimum(step_BS, value_ET.shape[1] - 1)]

    def masked(value_BS: Array) -> Array:
        rest = value_BS.shape[2:]
        mask = mask_BS.reshape(*mask_BS.shape, *(1 for _ in rest))
        value_BS = jnp.where(mask, value_BS, jnp.zeros((), value_BS.dtype))
        return value_BS.reshape(-1, segments, unroll, *rest)

    # Only of the drawn episodes, since there may be many more.
    returns_BT = returns_to_go(jnp.asarray(trajectories.rewards)[episode_B], length_B)
    inside_BS = jnp.minimum(step_BS, trajectories.max_length - 1)
    observations, actions = (
        jax.tree.map(window, values) for values in (trajectories.observations, trajectories.actions)
    )
    actions = agent_action(trajectories.spaces.action, actions)
    optional: dict[str, Any] = {}
    if "rewards" in needs:
        optional["rewards"] = window(trajectories.rewards)
    if "last" in needs:
        optional["last"] = step_BS == length_B[:, None] - 1
    if "terminated" in needs:
        terminated_B = jnp.asarray(trajectories.terminated)[episode_B]
        optional["terminated"] = (step_BS == length_B[:, None] - 1) & terminated_B[:, None]
    if "next_observations" in needs:
        optional["next_observations"] = jax.tree.map(
            lambda x_ET: window(x_ET, step_BS + 1), trajectories.observations
        )
    return Segments(
        observations=jax.tree.map(masked, observations),
        actions=jax.tree.map(masked, actions),
        returns_to_go=masked(jnp.take_along_axis(returns_BT, inside_BS, axis=1)),
        timesteps=masked(step_BS),
        mask=mask_BS.reshape(-1, segments, unroll),
        **jax.tree.map(masked, optional),
    )


def cut_segments(trajectories: Trajectories, segments: int, unroll: int) -> Segments:
    """Cut every episode into consecutive windows, one for each S steps or remainder thereof.

    An episode longer than S becomes several independent windows. Use this to process a whole set,
    such as for validation; it cannot be jitted, since the number of windows depends on the lengths.

    Raises:
      ValueError: if segments or unroll is below 1.
      TypeError: if segments or unroll is not an integer.
    """
    require_count("segments", segments)
    require_count("unroll", unroll)
    size = segments * unroll
    length_E = np.asarray(trajectories.length)
    windows = [(e, start) for e, n in enumerate(length_E) for start in range(0, n, size)]
    episode_B, start_B = np.array(windows, np.int32).T
    return _take(trajectories, episode_B, start_B, segments, unroll)


_take = jax.jit(take_segments, static_argnums=(3, 4))
