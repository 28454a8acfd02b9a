"""Atomic file writes, and errors and lines that name a file."""

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any

_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without hard links, as of memory cards and cloud storage."""


@contextlib.contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add a path to errors of the operating system that name none, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is moved to `path` atomically at the end of the block.

    Readers see either the old or the new file, never a part of it. After an exception, `path` is
    unchanged. Missing parent folders are created. The temporary file has the name of `path`, in
    another folder, since many libraries infer the format from the suffix.

    Args:
      path: the file to write.
      replace: whether to replace an existing file.

    Raises:
      FileExistsError: if `path` exists at the end of the block and `replace` is false. If several
        programs create the same file concurrently, exactly one succeeds.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a folder next to the target, since a rename is atomic only within one file system. A new
    # file there has the user's default permissions.
    try:
        hidden = tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-")
    except OSError as error:
        error.filename = str(path)
        raise
    with hidden as folder:
        temporary = Path(folder, path.name)
        with naming_file(path):
            yield temporary
        if replace:
            os.replace(temporary, path)
        else:
            _rename_new(temporary, path)


def _rename_new(temporary: Path, path: Path) -> None:
    """Rename a file to a path that does not exist.

    Raises:
      FileExistsError: if it does.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        # The file is claimed first, so that of several programs one succeeds; it is empty until
        # it is replaced.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.replace(temporary, path)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text atomically, as UTF-8, in which what UTF-8 lacks is escaped."""
    with atomic(path) as temporary:
        temporary.write_text(text, "utf-8", "backslashreplace")


def printable(text: str) -> str:
    """Escape what a line of a terminal cannot show: control characters, and invalid UTF-8."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Append a line to a file, which is created if missing: the whole line or, on failure, nothing.

    Programs that append concurrently wait for each other. An incomplete last line, as a program
    leaves that is killed while it writes, is replaced.
    """
    with open(path, "a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        append_to(file, path, line.encode() + b"\n")


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed.

    Returns False if another process has locked it, or has removed or replaced it since it was
    opened: a lock of what is no longer at the path excludes nobody.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except (BlockingIOError, FileNotFoundError):
        return False


def is_locked(file: IO[Any]) -> bool:
    """Return whether another process has locked an open file, which may be read-only.

    The test holds a shared lock for an instant; several callers may hold it at once.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        return False
    except BlockingIOError:
        return True


def append_to(file: FileIO, path: str | os.PathLike[str], content: bytes) -> None:
    """Append to an unbuffered file of that path: all of the content or, on failure, nothing."""
    with naming_file(path):
        length = file.seek(0, os.SEEK_END)
        if file.write(content) < len(content):
            file.truncate(length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Return whether an error is a full disk, also in the messages of other libraries."""
    return getattr(error, "errno", None) in _FULL or any(
        os.strerror(number) in str(error) for number in _FULL
    )
