"""Decks of cards, of which a task distinguishes only the colors, suits or ranks, and images.

Drawing at random from the cards that remain has the same distribution as dealing a shuffled deck,
but needs no shuffle at each reset, and no state but a count for each kind of card.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8

from gtrxl_jax.worlds.base import require_count
from gtrxl_jax.worlds.cells import Cell, draw_cells, progress_bar

DECK = 52
COLORS, SUITS, RANKS = 2, 4, 13
"""The number of kinds of cards, which are equally frequent in a deck."""

COLUMNS = 16
"""Cards in a row of an image."""
_OF_SUIT = np.array([Cell.AGENT, Cell.UP, Cell.DOWN, Cell.LIT])


def num_cards(num_decks: int) -> int:
    """Return the number of cards of several decks.

    Raises:
      ValueError: if there is no deck.
    """
    require_count("num_decks", num_decks)
    return DECK * num_decks


def full_deck(cards: int, kinds: int) -> Int[Array, " K"]:
    """Return the number of cards of each of K kinds."""
    return jnp.full((kinds,), cards // kinds, jnp.int32)


def draw(key: jax.Array, left_K: Int[Array, " K"]) -> tuple[Int[Array, ""], Int[Array, " K"]]:
    """Draw one of the cards that are left, all of which are equally likely.

    Args:
      key: a PRNG key.
      left_K: the number of cards left of each kind; at least one card is left.

    Returns:
      The kind of the card, and the cards left without it.
    """
    place = jax.random.randint(key, (), 0, jnp.sum(left_K))
    kind = jnp.argmax(place < jnp.cumsum(left_K)).astype(jnp.int32)
    return kind, left_K.at[kind].add(-1)


def draw_suits(
    suit_N: Int[Array, " N"], is_shown_N: Bool[np.ndarray, " N"], done: float
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw a row of cards, those not shown as gaps, and the part of the episode done, on the host.

    The suits 0 to 3 are red, blue, orange and green.
    """
    rows = -(-len(is_shown_N) // COLUMNS)
    cells = np.full((rows + 4, COLUMNS + 2), Cell.WALL)
    cards = np.where(is_shown_N, _OF_SUIT[np.asarray(suit_N)], Cell.FLOOR)
    cells[1:-3, 1:-1].flat[: len(cards)] = cards
    cells[-2, 1:-1] = progress_bar(done, COLUMNS)
    return draw_cells(cells, pixels=24)
