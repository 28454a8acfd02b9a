"""Small images made of colored cells."""

import enum

import numpy as np
from jaxtyping import Int, UInt8


class Cell(enum.IntEnum):
    """The content of a cell. UP and DOWN are the two values of a cue, whatever their meaning."""

    WALL = 0
    FLOOR = 1
    AGENT = 2
    UP = 3
    DOWN = 4
    LIT = 5


_COLORS = np.array(
    [(38, 41, 48), (226, 229, 233), (214, 69, 65), (46, 134, 193), (230, 150, 40), (88, 166, 92)],
    np.uint8,
)


def draw_cells(
    cells: Int[np.ndarray, "rows columns"], pixels: int
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw each cell as a square of side `pixels`, with a thin gap if `pixels` is at least 6."""
    image = _COLORS[cells].repeat(pixels, axis=0).repeat(pixels, axis=1)
    if pixels >= 6:
        image[::pixels] = image[:, ::pixels] = _COLORS[Cell.WALL]
    return image


def progress_bar(done: float, columns: int) -> Int[np.ndarray, " columns"]:
    """Return the cells of a bar of which the fraction `done` is lit."""
    return np.where(np.arange(columns) < round(done * columns), Cell.LIT, Cell.FLOOR)
