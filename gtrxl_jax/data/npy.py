"""NPY files, of which only the header is read."""

from typing import Any

import numpy as np


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an NPY file: shape, whether the first axis is the fastest, and dtype.

    Raises:
      ValueError: if it is damaged, or the array has Python objects, which would be unpickled.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"NPY files of version {version} are not supported")
    if dtype.hasobject:
        raise ValueError("its elements are Python objects, which are never unpickled")
    return shape, fortran, dtype
