"""Pictures of the pads."""

import itertools

import numpy as np
from jaxtyping import Bool, Float, UInt8

from gtrxl_jax.envs.cells import Cell, draw_cells
from gtrxl_jax.envs.numpad.sequence import Sequence, lit_pads, pad_cells

PIXELS = 64
"""The distance between the centres of two pads, in the picture."""


def draw_pads(
    sequence: Sequence, size: int, pad_side: float, centre: Float[np.ndarray, "2"], radius: float
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw the pads, the hidden sequence and the player, on the host.

    Lit pads are green, the player is a red disc, and the sequence is a blue line that starts at the
    pad with a dot. Lengths are relative to the distance between the centres of two pads.

    Args:
      sequence: the sequence.
      size: number of pads on a side.
      pad_side: side of a pad.
      centre: the (column, row) of the player, which may be between pads.
      radius: the radius of the player.
    """
    line = (np.arange(size * PIXELS) + 0.5) / PIXELS - 0.5
    points = np.stack(np.meshgrid(line, line), axis=-1)
    cells = np.full(points.shape[:2], Cell.WALL)

    def near(begin: np.ndarray, end: np.ndarray, distance: float) -> Bool[np.ndarray, "H W"]:
        """Return the points within a distance of a line segment."""
        along = (points - begin) @ (end - begin) / max(1, np.sum((end - begin) ** 2))
        foot = begin + np.clip(along, 0, 1)[..., None] * (end - begin)
        return np.linalg.norm(points - foot, axis=-1) <= distance

    for pad, is_lit in zip(pad_cells(size), np.asarray(lit_pads(sequence)), strict=True):
        on_pad = np.abs(points - pad).max(axis=-1) <= pad_side / 2
        cells[on_pad] = Cell.LIT if is_lit else Cell.FLOOR
    path = pad_cells(size)[np.argsort(np.asarray(sequence.rank))]
    cells[near(path[0], path[0], 0.12)] = Cell.UP
    for begin, end in itertools.pairwise(path):
        cells[near(begin, end, 0.025)] = Cell.UP
    cells[near(centre, centre, radius)] = Cell.AGENT
    return draw_cells(cells, pixels=1)
