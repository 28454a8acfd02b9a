"""Files that are either whole or not there."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes `path` at the end of the block, in one step.

    A reader sees the old file or the new one, never a part. After an exception `path` is as it was.
    Missing parent folders are made. The temporary name is that of `path` in another folder, since
    many libraries choose the format by the suffix.

    Args:
      path: the file to write.
      replace: whether a file that is there already gives way.

    Raises:
      FileExistsError: `path` exists at the end of the block, and `replace` is false. Of several
        programs that create one file at once, one succeeds.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Made in a folder beside the target, since a rename is atomic only within one file system, and
    # a new file there gets the permissions that any file of this user gets.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        temporary = Path(folder, path.name)
        yield temporary
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
