"""Numpad: find a hidden sequence of pads by trial, remember it, and repeat it."""

from gtrxl_jax.worlds.numpad.grid import NumpadDiscrete as NumpadDiscrete
from gtrxl_jax.worlds.numpad.sphere import Numpad as Numpad
