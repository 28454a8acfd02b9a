"""The rule of Numpad: a hidden sequence of pads, to be pressed in order.

The rule follows GTrXL (arXiv 1910.06764, section 4.2), after Humplik et al. (arXiv 1905.06424).
The P = size^2 pads are numbered row by row. The sequence visits every pad once, and each pad is a
neighbor (of eight) of the one before it: it is a Hamiltonian path of the king's graph.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int8

SIZES = (2, 3, 4)
"""The sizes whose paths can be listed: there are 24, 784 and 343,184, and more than 10^9 for 5."""


@struct.dataclass
class Sequence:
    """The hidden sequence, and how much of it has been pressed.

    Attributes:
      rank: the place of each pad in the sequence, a permutation of 0 .. P - 1.
      lit: number of lit pads, of ranks 0 .. lit - 1.
      rewarded: number of pads that have earned their reward in this round.
      completed: number of completed rounds.
    """

    rank: Int[Array, " P"]
    lit: Int[Array, ""]
    rewarded: Int[Array, ""]
    completed: Int[Array, ""]


def require_size(size: int) -> int:
    """Return the size, the number of pads on a side.

    Raises:
      ValueError: if it is not in `SIZES`.
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(map(str, SIZES))}, got {size}")
    return size


def draw_sequence(key: jax.Array, size: int) -> Sequence:
    """Draw a sequence, uniformly from all Hamiltonian paths, of which no pad is lit yet.

    This takes one look-up in a table (686 kB for size 4, shared by all environments of a program)
    and one permutation, so resets are cheap.
    """
    ranks, symmetries = jnp.asarray(_ranks(size)), jnp.asarray(_symmetries(size))
    draw = jax.random.randint(key, (), 0, len(ranks) * len(symmetries), jnp.int32)
    path, symmetry = jnp.divmod(draw, len(symmetries))
    zero = jnp.zeros((), jnp.int32)
    return Sequence(ranks[path][symmetries[symmetry]].astype(jnp.int32), zero, zero, zero)


def press(sequence: Sequence, pad: Int[Array, ""]) -> tuple[Sequence, Float[Array, ""]]:
    """Press a pad; return the new state and the reward.

    The pad that is next in the sequence lights up, and earns 1 if it has not yet done so in this
    round. Any other pad, lit or not, clears all lit pads and stays dark itself. When all pads are
    lit the round is complete: all are cleared, and each can earn its reward again.

    Args:
      sequence: the state before.
      pad: the pad; -1 for none, which changes nothing.
    """
    pads = jnp.arange(len(sequence.rank))
    right = jnp.any((sequence.rank == sequence.lit) & (pads == pad))
    lit = jnp.where(right, sequence.lit + 1, jnp.where(pad < 0, sequence.lit, 0))
    complete = lit == len(pads)
    reward = (lit > sequence.rewarded).astype(jnp.float32)
    sequence = dataclasses.replace(
        sequence,
        lit=jnp.where(complete, 0, lit),
        rewarded=jnp.where(complete, 0, jnp.maximum(lit, sequence.rewarded)),
        completed=sequence.completed + complete.astype(jnp.int32),
    )
    return sequence, reward


def lit_pads(sequence: Sequence) -> Bool[Array, " P"]:
    """Return which pads are lit."""
    return sequence.rank < sequence.lit


def next_pad(sequence: Sequence) -> Int[Array, ""]:
    """Return the next pad of the sequence."""
    return jnp.argmax(sequence.rank == sequence.lit).astype(jnp.int32)


def pad_cells(size: int) -> Int[np.ndarray, "P 2"]:
    """Return the (column, row) of each pad."""
    row, column = np.divmod(np.arange(size**2), size)
    return np.stack([column, row], axis=1)


def pad_distances(size: int) -> Int[np.ndarray, "P P"]:
    """Return the number of moves from each pad to each other; 1 for neighbors."""
    cells = pad_cells(size)
    return np.abs(cells[:, None] - cells).max(axis=2)


def _symmetries(size: int) -> Int[np.ndarray, "8 P"]:
    """Return the rotations and reflections of the pads, the identity first."""
    grid = np.arange(size**2).reshape(size, size)
    turned = [np.rot90(side, turns) for side in (grid, grid.T) for turns in range(4)]
    return np.stack(turned).reshape(8, -1)


@functools.cache
def _ranks(size: int) -> Int8[np.ndarray, "paths P"]:
    """Return one path of each class of symmetric ones, as the rank of each pad.

    A symmetry other than the identity fixes at most `size` pads, so it maps no path to itself.
    Every class thus has exactly eight paths, and a uniform choice of a class and of a symmetry is a
    uniform choice of a path. A class is represented by its path that is first in lexicographic
    order; the first `size + 1` pads tell which that is.
    """
    is_neighbor = pad_distances(size) == 1
    paths = np.arange(size**2)[:, None]
    for length in range(2, size**2 + 1):
        is_free = is_neighbor[paths[:, -1]]
        np.put_along_axis(is_free, paths, False, axis=1)
        path, pad = np.nonzero(is_free)
        paths = np.concatenate([paths[path], pad[:, None]], axis=1)
        if length == size + 1:
            place_value = (size**2) ** np.arange(length)[::-1]
            order = _symmetries(size)[:, paths] @ place_value
            paths = paths[order[0] == order.min(axis=0)]
    return np.argsort(paths, axis=1).astype(np.int8)
