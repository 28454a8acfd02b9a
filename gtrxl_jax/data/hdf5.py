"""HDF5: nodes without links, and a file that a full disk cannot crash.

HDF5 crashes the process if it cannot write what it has begun, see `ForgivingFile`.
"""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

PAGE = 1 << 16
"""The number of bytes that are kept in memory together."""


class ForgivingFile(io.RawIOBase):
    """An existing file that keeps in memory what the disk does not take, so that HDF5 can close it.

    Writing never raises. The first error is raised by `while_written` and `require_written`, and
    the file is of no use then.

    Args:
      path: the file.
    """

    def __init__(self, path: Path):
        self._disk = open(path, "r+b", buffering=0)  # noqa: SIM115, closed by close()
        self._error: OSError | None = None
        self._pages: dict[int, bytearray] = {}
        self._position = self._end = 0

    def while_written(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items for as long as all was written.

        Raises:
          OSError: the first error in writing; it names no file, since this one may be temporary.
        """
        for item in items:
            yield item
            self.require_written()

    def require_written(self) -> None:
        """Raise the first error in writing, if there was one; see `while_written`."""
        if self._error:
            raise self._error

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if self._error is None:
            try:
                self._write_to_disk(view)
            except OSError as error:
                self._error = error
        if self._error is not None:
            for page, start, part in self._parts(len(view)):
                self._page(page)[start : start + part.stop - part.start] = view[part]
        self._position += len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._end - self._position))
        for page, start, part in self._parts(count):
            view[part] = self._page(page)[start : start + part.stop - part.start]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self._end = self._position if size is None else size
        if self._error is None:
            try:
                self._disk.truncate(self._end)
            except OSError as error:
                self._error = error
        return self._end

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._disk.close()
        super().close()

    def _write_to_disk(self, view: memoryview) -> None:
        self._disk.seek(self._position)
        while view:
            view = view[self._disk.write(view) :]  # raises where nothing is written

    def _parts(self, count: int) -> Iterator[tuple[int, int, slice]]:
        """Yield each page of the next bytes, where they begin in it, and which of them it has."""
        done = 0
        while done < count:
            page, start = divmod(self._position + done, PAGE)
            length = min(PAGE - start, count - done)
            yield page, start, slice(done, done + length)
            done += length

    def _page(self, number: int) -> bytearray:
        """Return a page; once there was an error, it is kept."""
        if number in self._pages:
            return self._pages[number]
        self._disk.seek(number * PAGE)
        page = bytearray(PAGE)
        self._disk.readinto(page)
        if self._error is not None:
            self._pages[number] = page
        return page


def node_of(group: Any, name: str) -> Any:
    """Return a node of a group that is in the file itself: links would read any other file.

    Args:
      group: the group.
      name: the name of the node in it; behind a slash, in a group of it.

    Raises:
      KeyError: if there is none.
      ValueError: if it, or a group in which it is, is a link, or its data are in another file.
    """
    import h5py

    node = group
    for part in name.split("/"):
        # `part in node` would follow links.
        if not isinstance(node, h5py.Group) or part not in node.keys():  # noqa: SIM118
            raise KeyError(f"there is no {name}")
        if not isinstance(node.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link, and only data in the file itself are read")
        node = node[part]
    if isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
        raise ValueError(f"{name} is in another file, and only data in the file itself are read")
    return node
