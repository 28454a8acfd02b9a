"""Wads, the files of Doom's maps, from text and arrays."""

import io
import json
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def pack(lumps: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a wad with lumps, each with a name of at most eight capitals and digits."""
    lumps, position, directory = [*lumps], 12, b""
    for name, content in lumps:
        directory += struct.pack("<ii8s", position, len(content), name.encode("ascii"))
        position += len(content)
    header = struct.pack("<4sii", b"PWAD", len(lumps), position)
    return header + b"".join(content for _, content in lumps) + directory


def block(kind: str, **fields: Any) -> str:
    """Return a block of UDMF, the text of maps."""
    inside = "".join(f"{name} = {json.dumps(x)}; " for name, x in fields.items())
    return f"{kind} {{ {inside}}}\n"


def room(side: int, height: int, wall: str, floor: str, ceiling: str) -> str:
    """Return the blocks of a square room around the origin; walls are seen from inside."""
    half = side // 2
    corners = [(-half, -half), (-half, half), (half, half), (half, -half)]
    vertices = [block("vertex", x=x, y=y) for x, y in corners]
    lines = [block("linedef", v1=k, v2=(k + 1) % 4, sidefront=k, blocking=True) for k in range(4)]
    sides = [block("sidedef", sector=0, texturemiddle=wall)] * 4
    sector = block(
        "sector",
        heightfloor=0,
        heightceiling=height,
        texturefloor=floor,
        textureceiling=ceiling,
        lightlevel=240,
    )
    return "".join([*vertices, *lines, *sides, sector])


def thing(x: int, number: int) -> str:
    """Return the block of a thing at (x, 0), its kind by number, at every level of difficulty."""
    skills = {f"skill{k}": True for k in range(1, 6)}
    return block("thing", x=x, y=0, type=number, angle=0, single=True, **skills)


def sprite(image_RC3: UInt8[np.ndarray, "R C 3"]) -> bytes:
    """Return the PNG of a sprite that stands on the floor, a pixel for each of Doom's units."""
    rows, columns, _ = image_RC3.shape
    chunks = PngInfo()
    chunks.add(b"grAb", struct.pack(">ii", columns // 2, rows))  # where the thing is in the image
    file = io.BytesIO()
    Image.fromarray(image_RC3).save(file, format="PNG", pnginfo=chunks)
    return file.getvalue()
