"""What a compiled program does, parsed from its text, `jax.jit(f).lower(...).compile().as_text()`.

The text lists computations, one instruction a line. An instruction may call other computations: a
loop its body, a conditional its branches, a fusion the instructions that it fuses.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_WITH_OPERANDS = re.compile(r" (?:all-gather|collective-permute)-start\(")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONDITION = re.compile(r" while\(.*?condition=%?([\w.-]+)")
_LIMIT = re.compile(r"ROOT .* compare\([^)]*?%?([\w.-]+)\), direction=LT")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_KERNEL = re.compile(r" (?:fusion|custom-call)\(")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=)")
_DEVICES = re.compile(r"\b(?:replica_count|num_partitions)=(\d+)")
_CHAIN = re.compile(r'chain_id="\d+"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An executed instruction.

    Attributes:
      line: its text.
      origin: the operation in the source that it was compiled from, or, if that is unknown, the
        operation of the instruction that calls it.
      times: number of executions in one run of the program. Loop iterations are counted if their
        number is constant; a loop that ends by another condition counts once.
      cycles: the compiler's estimate of one execution, including what it calls, in clock cycles; 0
        if there is none, or if it is part of the estimate of its caller.
      is_kernel: whether it is a fusion or a call of a library, which a GPU has to launch.
    """

    line: str
    origin: str
    times: int
    cycles: int = 0
    is_kernel: bool = False


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation between devices.

    Attributes:
      kind: one of `KINDS`.
      shapes: shapes of the arrays on one device after the operation.
      num_bytes: size of these arrays, for one execution.
      times: see `Instruction`.
      origin: see `Instruction`.
      group: number of devices that exchange with each other.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    num_bytes: int
    times: int
    origin: str
    group: int = 1

    @property
    def sent_bytes(self) -> int:
        """The bytes that a device of a large group sends, for one execution.

        An all-reduce sends everything twice; a reduce-scatter what it reduces, of which its result
        is a part; and other collectives their result.
        """
        return self.num_bytes * {"all-reduce": 2, "reduce-scatter": self.group}.get(self.kind, 1)


def collectives(text: str) -> list[Collective]:
    """Return all collectives of a program, `jax.jit(f).lower(...).compile().as_text()`.

    A collective that runs in parts beside other work, which TPUs can fuse into other instructions
    and into loops, counts once, where its first part is.
    """
    found, chains = [], set()
    devices = math.prod(map(int, _DEVICES.findall(text.partition("\n")[0])))
    for one in instructions(text):
        if match := _COLLECTIVE.search(one.line):
            if _CHAIN.search(one.line):
                (channel,) = _CHANNEL.findall(one.line)
                if channel in chains:
                    continue
                chains.add(channel)
            arrays = [
                (kind, tuple(map(int, dims.split(","))) if dims else ())
                for kind, dims in _ARRAY.findall(match[1])
            ]
            if _WITH_OPERANDS.search(one.line):
                # The types of the operands come first, and those of contexts, u32[], at the end.
                arrays = [array for array in arrays if array != ("u32", ())]
                arrays = arrays[len(arrays) // 2 :]
            num_bytes = sum(_bytes_of(kind) * math.prod(shape) for kind, shape in arrays)
            shapes = tuple(shape for _, shape in arrays)
            group = _group_size(one.line) or devices
            found.append(Collective(match[2], shapes, num_bytes, one.times, one.origin, group))
    return found


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the collectives and kernels of a program, and whatever has an estimated cost.

    Of a conditional, all branches are included.
    """
    bodies, entry = _computations(text)
    return _walk(bodies, entry, Instruction("", "", times=1))


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


def _walk(bodies: dict[str, list[str]], name: str, caller: Instruction) -> Iterator[Instruction]:
    for line in bodies[name]:
        is_collective = any(kind in line for kind in KINDS) and _COLLECTIVE.search(line)
        cycles = _CYCLES.search(line)
        called = _CALLED.findall(line)
        for branches in _BRANCHES.findall(line):
            called += [branch.strip(" %") for branch in branches.split(",")]
        if not (is_collective or cycles or called or _KERNEL.search(line)):
            continue
        origin = _ORIGIN.search(line)
        one = Instruction(
            line=line,
            origin=origin[1] if origin else caller.origin,
            times=caller.times,
            cycles=int(cycles[1]) if cycles and not caller.cycles else 0,
            is_kernel=bool(_KERNEL.search(line)) and not caller.is_kernel,
        )
        if is_collective or one.cycles or one.is_kernel:
            yield one
        if is_collective:
            continue
        one = dataclasses.replace(
            one,
            times=one.times * _trips(bodies, line),
            cycles=one.cycles or caller.cycles,
            is_kernel=one.is_kernel or caller.is_kernel,
        )
        for callee in called:
            yield from _walk(bodies, callee, one)


def _trips(bodies: dict[str, list[str]], line: str) -> int:
    """Return how often an instruction executes what it calls; 1 for a loop of unknown length."""
    if trips := _TRIPS.search(line):
        return int(trips[1])
    if condition := _CONDITION.search(line):
        # A loop that counts from 0, as of `lax.scan`, and compares with a constant.
        body = "\n".join(bodies[condition[1]])
        limit = _LIMIT.search(body)
        constant = limit and re.search(rf"%?{re.escape(limit[1])} = .* constant\((\d+)\)", body)
        return int(constant[1]) if constant else 1
    return 1


def _group_size(line: str) -> int:
    """Return the number of devices in each group of a collective; 0 for one of all devices."""
    found = _GROUP.search(line)
    if not found:
        return 0
    members, size = found.groups()
    return members.count(",") + 1 if members else int(size)


def _bytes_of(kind: str) -> int:
    """Return the size of one number of an XLA type: pred, f32, bf16, u8."""
    digits = re.sub(r"\D", "", kind)
    return max(int(digits) // 8, 1) if digits else 1
