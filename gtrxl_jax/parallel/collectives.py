"""The collective operations of a compiled program, parsed from its text."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_ORIGIN = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation between devices.

    Attributes:
      kind: one of `KINDS`.
      shapes: shapes of the arrays on one device after the operation.
      num_bytes: size of these arrays, for one execution.
      times: number of executions in one run of the program. Loop iterations are counted if the
        compiler knows their number; a loop that ends by a condition counts once.
      origin: the operation in the source that it was compiled from.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    num_bytes: int
    times: int
    origin: str


def collectives(text: str) -> list[Collective]:
    """Return all collectives of a program, `jax.jit(f).lower(...).compile().as_text()`."""
    bodies, entry = _computations(text)
    return list(_walk(bodies, entry, 1))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation, and the name of the entry computation."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[2]
            bodies[name] = []
            entry = name if found[1] else entry
        elif name:
            bodies[name].append(line)
    return bodies, entry


def _walk(bodies: dict[str, list[str]], name: str, times: int) -> Iterator[Collective]:
    for line in bodies[name]:
        if found := _COLLECTIVE.search(line):
            origin = _ORIGIN.search(line)
            arrays = _ARRAY.findall(found[1])
            shapes = tuple(tuple(map(int, dims.split(","))) if dims else () for _, dims in arrays)
            yield Collective(
                kind=found[2],
                shapes=shapes,
                num_bytes=sum(
                    _bytes_of(kind) * math.prod(shape)
                    for (kind, _), shape in zip(arrays, shapes, strict=True)
                ),
                times=times,
                origin=origin[1] if origin else "",
            )
            continue
        trips = _TRIPS.search(line)
        called = _CALLED.findall(line)
        for branches in _BRANCHES.findall(line):
            called += [branch.strip(" %") for branch in branches.split(",")]
        for callee in called:
            yield from _walk(bodies, callee, times * (int(trips[1]) if trips else 1))


def _bytes_of(kind: str) -> int:
    """Return the size of one number of an XLA type: pred, f32, bf16, u8."""
    digits = re.sub(r"\D", "", kind)
    return max(int(digits) // 8, 1) if digits else 1
