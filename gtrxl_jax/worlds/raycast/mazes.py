"""Random mazes of rooms and winding corridors."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from gtrxl_jax.worlds.raycast.routes import fill_dead_ends

TRIES = 48
"""The number of rooms that are tried; about as many as fit are placed."""


@struct.dataclass
class Maze:
    """A maze of S x S cells, S odd, built on a lattice of N x N nodes.

    Node (i, j) is the cell of row 2 i + 1 and column 2 j + 1; the cells between are walls or gaps.

    Attributes:
      open_SS: whether each cell is open.
      is_room_SS: whether each cell belongs to a room.
      room_NN: the room of each node, from 1 upward; 0 in corridors.
    """

    open_SS: Bool[Array, "S S"]
    is_room_SS: Bool[Array, "S S"]
    room_NN: Int[Array, "N N"]


def draw_maze(
    key: Key[Array, ""],
    side: int,
    max_rooms: int,
    max_room_side: int,
    extra_gaps: Float[Array, ""] | float,
) -> Maze:
    """Draw a connected maze without dead ends, like the mazes of DeepMind Lab.

    1. Rooms, rectangles of odd sides from 3 cells, are tried at random places, and kept if they
       do not overlap another.
    2. A random spanning tree joins all nodes (Kruskal's algorithm on edges in random order), and
       each edge left out is opened with the probability `extra_gaps`, which makes loops.
    3. Dead ends are filled.

    The maze is connected, as rooms are, as a spanning tree is, and as filling a dead end, a cell
    with at most one open neighbor, cannot separate others.

    Args:
      key: a PRNG key.
      side: S, the number of cells along a side including the walls around, odd.
      max_rooms: the most rooms to place.
      max_room_side: the longest side of a room in cells, odd.
      extra_gaps: probability of opening an edge that the spanning tree does not need.
    """
    key_rooms, key_edges, key_gaps = jax.random.split(key, 3)
    room_NN = _draw_rooms(key_rooms, (side - 1) // 2, max_rooms, (max_room_side + 1) // 2)
    is_across_NM, is_down_MN = (a == b for a, b in _edges(room_NN))
    is_across_NM &= room_NN[:, 1:] > 0
    is_down_MN &= room_NN[1:] > 0
    inside_E = jnp.concatenate([is_across_NM.ravel(), is_down_MN.ravel()])
    open_E = _join(key_edges, room_NN.shape[0], inside_E)
    open_E |= jax.random.bernoulli(key_gaps, extra_gaps, open_E.shape)
    open_across_NM, open_down_MN = (
        x_E.reshape(shape)
        for x_E, shape in zip(
            jnp.split(open_E, 2), (is_across_NM.shape, is_down_MN.shape), strict=True
        )
    )
    # A wall's post inside a room has gaps on all sides.
    is_post_MM = is_across_NM[1:] & is_across_NM[:-1] & is_down_MN[:, 1:] & is_down_MN[:, :-1]
    all_NN = jnp.ones(room_NN.shape, bool)
    open_SS = _cells(side, all_NN, open_across_NM, open_down_MN, is_post_MM)
    return Maze(
        fill_dead_ends(open_SS),
        _cells(side, room_NN > 0, is_across_NM, is_down_MN, is_post_MM),
        room_NN,
    )


def draw_places(key: Key[Array, ""], maze: Maze, count: int) -> Float[Array, "count 2"]:
    """Draw the middles of different nodes, each in a room of its own while there are such.

    Returns:
      x and y of each place.
    """
    nodes = maze.room_NN.shape[0]
    room_M, open_M = maze.room_NN.ravel(), maze.open_SS[1::2, 1::2].ravel()
    score_M = jnp.where(open_M, jax.random.uniform(key, room_M.shape), -jnp.inf)
    score_M += 2 * (room_M > 0).astype(jnp.float32)
    places = []
    for _ in range(count):
        place = jnp.argmax(score_M)
        places.append(place)
        score_M -= jnp.where((room_M == room_M[place]) & (room_M > 0), jnp.float32(2), 0)
        score_M = score_M.at[place].set(-jnp.inf)
    row_K, column_K = jnp.divmod(jnp.stack(places), nodes)
    return 2 * jnp.stack([column_K, row_K], axis=1).astype(jnp.float32) + 1.5


def _draw_rooms(key: Key[Array, ""], nodes: int, max_rooms: int, longest: int) -> Int[Array, "N N"]:
    """Place rooms of 2 to `longest` nodes along each side."""
    key_side, key_place = jax.random.split(key)
    # The smaller of two draws, so that several rooms fit.
    side_T2 = jnp.min(jax.random.randint(key_side, (2, TRIES, 2), 2, longest + 1), axis=0)
    place_T2 = jax.random.randint(key_place, (TRIES, 2), 0, nodes - side_T2 + 1)
    node_N = jnp.arange(nodes)

    def place(carry: tuple[Array, Array], room: tuple[Array, Array]) -> tuple[Any, None]:
        room_NN, number = carry
        low_2, side_2 = room
        in_rows_N, in_columns_N = (
            (node_N >= low_2[axis]) & (node_N < low_2[axis] + side_2[axis]) for axis in (0, 1)
        )
        covers_NN = in_rows_N[:, None] & in_columns_N[None]
        fits = (number < max_rooms) & ~jnp.any(covers_NN & (room_NN > 0))
        number += fits.astype(jnp.int32)
        return (jnp.where(covers_NN & fits, number, room_NN), number), None

    start = jnp.zeros((nodes, nodes), jnp.int32), jnp.int32(0)
    return jax.lax.scan(place, start, (place_T2, side_T2))[0][0]


def _edges(x_NN: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the values at both ends of the edges along rows, and of those along columns."""
    return (x_NN[:, :-1], x_NN[:, 1:]), (x_NN[:-1], x_NN[1:])


def _join(key: Key[Array, ""], nodes: int, inside_E: Bool[Array, " E"]) -> Bool[Array, " E"]:
    """Return the edges of a random spanning tree, and all edges inside rooms, which come first."""
    node_M = jnp.arange(nodes**2, dtype=jnp.int32)
    ends = _edges(node_M.reshape(nodes, nodes))
    one_E, other_E = (jnp.concatenate([pair[k].ravel() for pair in ends]) for k in (0, 1))
    rank_E = jnp.where(inside_E, -1.0, jax.random.uniform(key, inside_E.shape))

    def join(tree_M: Array, edge: Array) -> tuple[Array, Array]:
        one, other = tree_M[one_E[edge]], tree_M[other_E[edge]]
        return jnp.where(tree_M == other, one, tree_M), one != other

    order_E = jnp.argsort(rank_E)
    _, joins_E = jax.lax.scan(join, node_M, order_E)
    return inside_E | jnp.zeros_like(joins_E).at[order_E].set(joins_E)


def _cells(side: int, node_NN: Array, across_NM: Array, down_MN: Array, post_MM: Array) -> Array:
    """Interleave nodes, the edges between them and the posts between those, in walls."""
    cell_SS = jnp.zeros((side, side), bool)
    cell_SS = cell_SS.at[1::2, 1::2].set(node_NN)
    cell_SS = cell_SS.at[1::2, 2:-1:2].set(across_NM)
    cell_SS = cell_SS.at[2:-1:2, 1::2].set(down_MN)
    return cell_SS.at[2:-1:2, 2:-1:2].set(post_MM)
