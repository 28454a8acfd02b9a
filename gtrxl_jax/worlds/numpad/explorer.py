"""A player that does not know the sequence and remembers everything, for both worlds."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from gtrxl_jax.worlds.numpad.sequence import pad_distances


@struct.dataclass
class Notes:
    """What the explorer remembers of an episode.

    Attributes:
      rank: the place of each pad in the sequence; P where unknown.
      known: number of known pads, the first ones of the sequence.
      excluded: the pads that have been tried and are not the next one after those.
      touched: what the player touched last: a pad, or -1 for the ground between pads.
      pad: the last pad that it touched; -1 before the first observation.
      lit: number of lit pads in the last observation.
    """

    rank: Int[Array, " P"]
    known: Int[Array, ""]
    excluded: Bool[Array, " P"]
    touched: Int[Array, ""]
    pad: Int[Array, ""]
    lit: Int[Array, ""]


def first_notes(size: int) -> Notes:
    """Return the notes before an episode."""
    zero = jnp.zeros((), jnp.int32)
    pads = size**2
    return Notes(
        rank=jnp.full(pads, pads, jnp.int32),
        known=zero,
        excluded=jnp.zeros(pads, jnp.bool_),
        touched=zero - 1,
        pad=zero - 1,
        lit=zero,
    )


def explore(
    notes: Notes, touched: Int[Array, ""], is_lit: Bool[Array, " P"], size: int
) -> tuple[Notes, Int[Array, ""]]:
    """Take note of an observation, and choose the pad to go to.

    The explorer presses the pads that it knows, then the nearest one that it has not excluded: for
    the first pad of the sequence it may be any, for the others it is a neighbor of the one before.
    Among equally near ones it tries those with the fewest dark neighbors first (Warnsdorff's rule:
    a path that leaves such a pad out can seldom return to it). It forgets nothing and tries nothing
    twice, but this order is a heuristic, so that its return is close to the largest one that memory
    allows, and not equal to it.

    Args:
      notes: the notes on the episode so far.
      touched: what the player touched last, a pad or -1.
      is_lit: which pads are lit.
      size: number of pads on a side.

    Returns:
      The new notes, and the pad.
    """
    pads = jnp.arange(size**2, dtype=jnp.int32)
    distances = jnp.asarray(pad_distances(size), jnp.int32)
    lit = jnp.sum(is_lit, dtype=jnp.int32)

    entered = (touched >= 0) & (touched != notes.touched) & (notes.pad >= 0)
    # The last pad needs no attempt, and lights no pad: it completes the round.
    tried = entered & (notes.lit == notes.known) & (lit == 0) & (notes.known < len(pads) - 1)
    excluded = notes.excluded | (tried & (pads == touched))
    found = lit > notes.known
    pad = jnp.where(touched >= 0, touched, notes.pad)
    notes = Notes(
        rank=jnp.where(is_lit & (notes.rank == len(pads)), notes.known, notes.rank),
        known=jnp.maximum(lit, notes.known),
        excluded=excluded & ~found,
        touched=touched,
        pad=pad,
        lit=lit,
    )

    dark_neighbors = jnp.sum((distances == 1) & ~is_lit[None], axis=1, dtype=jnp.int32)
    candidate = ~is_lit & ~notes.excluded & (pads != pad)
    cost = jnp.where(candidate, 9 * distances[pad] + dark_neighbors, 9 * len(pads))
    target = jnp.where(lit < notes.known, jnp.argmax(notes.rank == lit), jnp.argmin(cost))
    return notes, target.astype(jnp.int32)
