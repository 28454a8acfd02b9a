"""Images of MiniGrid's cells, equal to those that the package minigrid draws."""

import enum
import functools

import numpy as np
from jaxtyping import UInt8


class Kind(enum.IntEnum):
    """The kinds of cell in MiniGrid-Memory. Walls are grey, keys and balls are green."""

    UNSEEN = 0
    EMPTY = 1
    WALL = 2
    KEY = 3
    BALL = 4


GREY, GREEN, RED, BLACK = (100, 100, 100), (0, 255, 0), (255, 0, 0), (0, 0, 0)

_SAMPLES = 3
"""Samples of a pixel in each direction, whose mean is its color."""

_LINE = 0.031
"""Width of the lines between cells, at the upper and the left side; a cell has the side 1."""


@functools.cache
def draw_tile(
    kind: Kind, pixels: int, lit: bool, heading: int | None = None
) -> UInt8[np.ndarray, "pixels pixels 3"]:
    """Draw a cell.

    Args:
      kind: what is in the cell.
      pixels: side of the image.
      lit: whether the cell is highlighted, as those that the agent sees are.
      heading: direction of the agent if it is in the cell, in quarter turns clockwise from right.
    """
    side = _SAMPLES * pixels
    y, x = (np.indices((side, side)) + 0.5) / side
    image = np.zeros((side, side, 3), np.uint8)
    image[(x <= _LINE) | (y <= _LINE)] = GREY
    if kind == Kind.WALL:
        image[:] = GREY
    elif kind == Kind.BALL:
        image[_disc(x, y, 0.5, 0.5, 0.31)] = GREEN
    elif kind == Kind.KEY:
        shaft = _box(x, y, 0.50, 0.63, 0.31, 0.88)
        teeth = _box(x, y, 0.38, 0.50, 0.59, 0.66) | _box(x, y, 0.38, 0.50, 0.81, 0.88)
        image[shaft | teeth | _disc(x, y, 0.56, 0.28, 0.19)] = GREEN
        image[_disc(x, y, 0.56, 0.28, 0.064)] = BLACK
    if heading is not None:
        # The triangle (0.12, 0.19), (0.87, 0.5), (0.12, 0.81) points to the right.
        pointer = (x >= 0.12) & (np.abs(y - 0.5) <= (0.87 - x) * 0.31 / 0.75)
        image[np.rot90(pointer, -heading)] = RED
    if lit:
        image = (image + 0.3 * (255 - image)).astype(np.uint8)
    samples = image.reshape(pixels, _SAMPLES, pixels, _SAMPLES, 3)
    # In this order, since the means are rounded down.
    return samples.mean(axis=3).mean(axis=1).astype(np.uint8)


def _box(
    x: np.ndarray, y: np.ndarray, left: float, right: float, top: float, bottom: float
) -> np.ndarray:
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def _disc(x: np.ndarray, y: np.ndarray, x0: float, y0: float, radius: float) -> np.ndarray:
    return (x - x0) * (x - x0) + (y - y0) * (y - y0) <= radius * radius
