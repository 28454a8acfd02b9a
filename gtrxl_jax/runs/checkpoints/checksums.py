"""Checksums that identify damaged checkpoints before their content is interpreted.

`checksums.json` is a file in each checkpoint with the size and the CRC-32 of every other file, the
run's record at that step, and a CRC-32 of these entries. It is written last, before the checkpoint
is renamed. (The underlying storage format has no checksum of array data, so a flipped bit would
otherwise be read as another number.)
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "checksums.json"


class UnusableError(ValueError):
    """Raised for a checkpoint that is not as this run wrote it."""


def write(folder: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write the checksums of all files in and below `folder`, with a JSON record."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    content = {
        "record": dict(record),
        "files": {str(path.relative_to(folder)): _describe(path) for path in sorted(files)},
    }
    checked = {"crc32": _crc_of(content), **content}
    with open(Path(folder, NAME), "w", encoding="utf-8") as file:
        json.dump(checked, file)
        file.flush()
        os.fsync(file.fileno())


def verify(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record if all files in the folder exist and are unchanged.

    Raises:
      UnusableError: naming the first file that is missing or has changed.
    """
    try:
        content = json.loads(Path(folder, NAME).read_text("utf-8"))
        stated, record, files = (content.pop(name) for name in ("crc32", "record", "files"))
    except FileNotFoundError:
        raise UnusableError(f"it has no {NAME}: it was not written by this library") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UnusableError(f"its {NAME} cannot be read") from None
    if stated != _crc_of({"record": record, "files": files}):
        raise UnusableError(f"its {NAME} has changed")
    for name, description in files.items():
        path = Path(folder, name)
        try:
            size = path.stat().st_size
            if size != description[0]:
                raise UnusableError(f"{name} has {size:,} bytes instead of {description[0]:,}")
            if _describe(path) != description:
                raise UnusableError(f"the content of {name} has changed")
        except (FileNotFoundError, IsADirectoryError):
            raise UnusableError(f"{name} is missing") from None
    return record


def _describe(path: Path) -> list[int]:
    """Return the size and the CRC-32 of a file."""
    crc = size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return [size, crc]


def _crc_of(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
