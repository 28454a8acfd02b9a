"""Images of the pads."""

import itertools

import numpy as np
from jaxtyping import Float, UInt8

from gtrxl_jax.worlds.canvas import Canvas
from gtrxl_jax.worlds.cells import Cell
from gtrxl_jax.worlds.numpad.sequence import Sequence, lit_pads, pad_cells

PIXELS = 64
"""The distance between the centers of two pads, in the image."""


def draw_pads(
    sequence: Sequence, size: int, pad_side: float, center: Float[np.ndarray, "2"], radius: float
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw the pads, the hidden sequence and the player, on the host.

    Lit pads are green, the player is a red disc, and the sequence is a blue line that starts at the
    pad with a dot. Lengths are relative to the distance between the centers of two pads.

    Args:
      sequence: the sequence.
      size: number of pads on a side.
      pad_side: side of a pad.
      center: the (column, row) of the player, which may be between pads.
      radius: the radius of the player.
    """
    ends = (-0.5, size - 0.5)
    canvas = Canvas(ends, ends, PIXELS, Cell.WALL, downwards=True)
    for pad, is_lit in zip(pad_cells(size), np.asarray(lit_pads(sequence)), strict=True):
        canvas.box(pad, pad_side, pad_side, Cell.LIT if is_lit else Cell.FLOOR)
    path = pad_cells(size)[np.argsort(np.asarray(sequence.rank))]
    canvas.disc(path[0], 0.12, Cell.UP)
    for begin, end in itertools.pairwise(path):
        canvas.line(begin, end, 0.05, Cell.UP)
    canvas.disc(center, radius, Cell.AGENT)
    return canvas.image()
