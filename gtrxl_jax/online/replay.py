"""A prioritized replay of segments, of which every environment has its own part.

Each environment draws from its own segments, by their priorities (Schaul et al. 2016). The arrays
thus begin with the axis of environments, which devices split, and drawing sends nothing between
devices. (The prioritized buffer of flashbax has one sum tree over all environments.)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.parallel.placement import batch_field


@struct.dataclass
class Replay:
    """The latest C segments of each of E environments, in a ring.

    Attributes:
      count: number of segments of an environment so far, including those that were overwritten.
      segments: pytree of arrays `[E, C, ...]`.
      priority_EC: their priorities.
    """

    count: Int[Array, ""]
    segments: Any = batch_field()
    priority_EC: Float[Array, "E C"] = batch_field()

    @property
    def capacity(self) -> int:
        """C."""
        return self.priority_EC.shape[1]

    @property
    def size(self) -> Int[Array, ""]:
        """The number of segments that an environment has."""
        return jnp.minimum(self.count, self.capacity)


def make_replay(segments: Any, num_envs: int, capacity: int, dtype: Any) -> Replay:
    """Return an empty replay.

    Args:
      segments: shapes and dtypes of the segments of a rollout, `[E * K, ...]`.
      num_envs: E.
      capacity: C.
      dtype: dtype of the priorities.
    """
    empty = jax.tree.map(lambda x: jnp.zeros((num_envs, capacity, *x.shape[1:]), x.dtype), segments)
    return Replay(jnp.zeros((), jnp.int32), empty, jnp.zeros((num_envs, capacity), dtype))


def insert(replay: Replay, segments: Any, priority_B: Float[Array, " B"]) -> Replay:
    """Replace the oldest segments by K new ones of each environment, in consecutive rows."""
    num_envs, capacity = replay.priority_EC.shape
    added = len(priority_B) // num_envs
    slots_K = (replay.count + jnp.arange(added, dtype=jnp.int32)) % capacity

    def put(ring_EC: Array, new_B: Array) -> Array:
        return ring_EC.at[:, slots_K].set(new_B.reshape(num_envs, added, *new_B.shape[1:]))

    return Replay(
        segments=jax.tree.map(put, replay.segments, segments),
        priority_EC=put(replay.priority_EC, priority_B),
        count=replay.count + added,
    )


def is_drawable(replay: Replay, history: int) -> Bool[Array, " C"]:
    """Return which slots hold a segment that `history` others of its environment precede."""
    age_C = (replay.count - 1 - jnp.arange(replay.capacity, dtype=jnp.int32)) % replay.capacity
    return age_C < replay.size - history


def draw(
    replay: Replay, key: Key[Array, ""], number: int, history: int, exponent: float
) -> tuple[Int[Array, "E N"], Float[Array, "E N"]]:
    """Draw N segments of each environment with probabilities ~ priority^exponent.

    Returns:
      Their slots, and their probabilities among the segments of the environment.
    """
    # A segment without an error can be drawn too.
    logit_EC = exponent * jnp.log(replay.priority_EC + 1e-6)
    logit_EC = jnp.where(is_drawable(replay, history), logit_EC, -jnp.inf)
    slot_NE = jax.random.categorical(key, logit_EC, axis=-1, shape=(number, len(logit_EC)))
    probability_EC = jax.nn.softmax(logit_EC, axis=-1)
    slot_EN = slot_NE.T.astype(jnp.int32)
    return slot_EN, jnp.take_along_axis(probability_EC, slot_EN, axis=1)


def take(replay: Replay, slot_EN: Int[Array, "E N"]) -> Any:
    """Return the segments in slots of each environment, `[E * N, ...]`."""
    slot_EN = slot_EN % replay.capacity

    def of_array(ring_EC: Array) -> Array:
        rows = jax.vmap(lambda ring_C, slot_N: ring_C[slot_N])(ring_EC, slot_EN)
        return rows.reshape(-1, *rows.shape[2:])

    return jax.tree.map(of_array, replay.segments)


def set_priorities(
    replay: Replay, slot_EN: Int[Array, "E N"], priority_B: Float[Array, " B"]
) -> Replay:
    """Return the replay with new priorities of segments that were taken, `[E * N]`."""
    new_EN = priority_B.reshape(slot_EN.shape)
    put = jax.vmap(lambda row_C, slot_N, new_N: row_C.at[slot_N].set(new_N))
    return dataclasses.replace(replay, priority_EC=put(replay.priority_EC, slot_EN, new_EN))
