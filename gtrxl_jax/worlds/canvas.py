"""Drawings of lines and discs, in the colors of cells."""

import numpy as np
from jaxtyping import UInt8

from gtrxl_jax.worlds.cells import Cell, draw_cells

Point = tuple[float, float] | np.ndarray


class Canvas:
    """A rectangle of the plane, on which shapes are drawn over one another.

    Args:
      x: its left and right end.
      y: its lower and upper end; with `downwards`, its upper and lower end.
      pixels: number of pixels per unit of length.
      background: the color of the empty canvas.
      downwards: whether y increases from the top of the image to its bottom.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        pixels: int,
        background: Cell = Cell.FLOOR,
        *,
        downwards: bool = False,
    ):
        self.x, self.y = (
            low + (np.arange(round((high - low) * pixels)) + 0.5) / pixels for low, high in (x, y)
        )
        self.cells = np.full((len(self.y), len(self.x)), background)
        self._downwards = downwards

    def line(self, begin: Point, end: Point, width: float, color: Cell) -> None:
        """Draw a line with round ends."""
        begin, end, radius = np.asarray(begin, float), np.asarray(end, float), width / 2
        columns, rows = (
            slice(*np.searchsorted(values, (np.min(ends) - radius, np.max(ends) + radius)))
            for values, ends in ((self.x, (begin[0], end[0])), (self.y, (begin[1], end[1])))
        )
        x, y = self.x[columns] - begin[0], self.y[rows, None] - begin[1]
        along_x, along_y = end - begin
        # Where the nearest point of the line is, from 0 at its begin to 1 at its end.
        place = np.clip((x * along_x + y * along_y) / (along_x**2 + along_y**2 or 1.0), 0, 1)
        is_near = (x - place * along_x) ** 2 + (y - place * along_y) ** 2 <= radius**2
        self.cells[rows, columns][is_near] = color

    def disc(self, center: Point, radius: float, color: Cell) -> None:
        """Draw a disc."""
        self.line(center, center, 2 * radius, color)

    def box(self, center: Point, width: float, height: float, color: Cell) -> None:
        """Draw a rectangle."""
        in_x = np.abs(self.x - center[0]) <= width / 2
        in_y = np.abs(self.y - center[1]) <= height / 2
        self.cells[in_y[:, None] & in_x] = color

    def image(self) -> UInt8[np.ndarray, "H W 3"]:
        """Return the image."""
        return draw_cells(self.cells if self._downwards else self.cells[::-1], pixels=1)
