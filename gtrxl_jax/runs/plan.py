"""Plan a run: compile its program for devices that this machine lacks, and run nothing.

The program is that of `Programs`, so a plan is of the very program that a run on those devices
compiles. Sizes are those of the compiled program. Times are estimates, not measurements: for TPUs,
XLA writes into a program how many cycles it expects each instruction to take, by which it chooses
among forms of an operation. They leave out when instructions wait for each other or for the host.
"""

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding

from gtrxl_jax.parallel.hlo import Collective, collectives, instructions
from gtrxl_jax.parallel.placement import AXES
from gtrxl_jax.parallel.topologies import CHIPS, GIB, GPU_OPTIONS, bandwidth, devices_of
from gtrxl_jax.runs.trainer import Trainer

SCOPES = ("act", "env", "learn")
"""Parts of an update, marked in its program by `jax.named_scope`; environments are in acting."""


class NeedsMemoryError(MemoryError):
    """The program of a run needs more memory than a device has."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Equal collectives of one part of an update.

    Attributes:
      part: one of `SCOPES`, or "".
      kind: see `Collective`.
      count: number of collectives in an update.
      num_bytes: bytes of their results on a device, of all together.
    """

    part: str
    kind: str
    count: float
    num_bytes: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a run before it runs; bytes are those on one device.

    Attributes:
      topology: the devices for which the program was compiled.
      kind: what JAX calls such a device.
      devices: number of devices.
      hosts: number of hosts, each with a process.
      steps: number of steps of an update, of all devices and seeds together, see `Trainer`.
      state: bytes of the arrays of the state, by their place in it: `learner/optimizer`.
      data: bytes of the data of an iteration.
      arguments: bytes of all arguments of the program as they are laid out in memory.
      temporaries: bytes that the program needs besides its arguments.
      code: bytes of the compiled program; 0 for GPUs, where it is unknown.
      memory: bytes of memory of a device.
      exchanges: the collectives of an update.
      lower_seconds: seconds in which this machine traced and lowered the program.
      compile_seconds: seconds in which it compiled it.
      kernels: the number of kernels that a GPU launches in an update, by part; empty for TPUs.
      cycles: the compiler's estimate of the cycles of an update, by part; empty without one.
      seconds: these in seconds; empty if the clock of the device is not known.
      exchange_seconds: estimate of the exchange in an update, from its bytes and the bandwidth of
        the links; None if that is not known. It is not the compiler's.
      steps_per_second: estimate that follows from both; None without.
    """

    topology: str
    kind: str
    devices: int
    hosts: int
    steps: float
    state: dict[str, int]
    data: int
    arguments: int
    temporaries: int
    code: int
    memory: int
    exchanges: list[Exchange]
    lower_seconds: float
    compile_seconds: float
    kernels: dict[str, float]
    cycles: dict[str, float]
    seconds: dict[str, float]
    exchange_seconds: float | None
    steps_per_second: float | None

    @property
    def needed(self) -> int:
        """The bytes of memory that a device needs."""
        return self.arguments + self.temporaries + self.code


def plan(trainer: Trainer, topology: str) -> Plan:
    """Compile the program of a run's last iteration for a topology.

    Args:
      trainer: the run. Data of offline runs are read or generated.
      topology: see `topologies.devices_of`.

    Raises:
      ValueError: if there is no such topology, or its devices do not divide the batch.
      ModuleNotFoundError: if the compiler is not installed.
      NeedsMemoryError: if the program needs more memory than a device has.
    """
    programs = trainer.programs(devices=devices_of(topology))
    devices = programs.mesh.devices.flat
    kind, is_gpu = devices[0].device_kind, devices[0].platform == "gpu"
    chip = CHIPS[kind]
    stage, data = _abstract_data(trainer, programs.mesh)
    began = time.monotonic()
    lowered = programs.lower(stage, data)
    lower_seconds = time.monotonic() - began
    began = time.monotonic()
    with _naming_memory(kind), without_cache():
        compiled: Any = lowered.compile(GPU_OPTIONS if is_gpu else None)
    compile_seconds = time.monotonic() - began
    config, updates = trainer.config, programs.updates
    steps = config.num_seeds * trainer.steps_per_iteration / config.updates_per_iteration
    sizes, text = compiled.memory_analysis(), compiled.as_text()
    crossing = collectives(text)
    kernels: Counter[str] = Counter()
    cycles: Counter[str] = Counter()
    for one in instructions(text):
        kernels[_part(one.origin)] += one.times * one.is_kernel
        cycles[_part(one.origin)] += one.times * one.cycles
    seconds, exchange_seconds, speed = {}, None, None
    if chip.clock:
        seconds = {part: number / chip.clock for part, number in _each_update(cycles, updates)}
    if sent_per_second := bandwidth(topology, chip):
        sent = sum(one.times * one.sent_bytes for one in crossing) / updates
        exchange_seconds = sent / sent_per_second
    if seconds and not trainer.on_host:  # Host environments are not in the program.
        speed = steps / (sum(seconds.values()) + (exchange_seconds or 0))
    made = Plan(
        topology=topology,
        kind=kind,
        devices=len(devices),
        hosts=len({device.process_index for device in devices}),
        steps=steps,
        state=_bytes_by_place(programs.like),
        data=sum(map(_num_bytes, jax.tree.leaves(data))),
        arguments=sizes.argument_size_in_bytes,
        temporaries=sizes.temp_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes,
        code=sizes.generated_code_size_in_bytes,
        memory=chip.memory,
        exchanges=_exchanges(crossing, updates),
        lower_seconds=lower_seconds,
        compile_seconds=compile_seconds,
        kernels=dict(_each_update(kernels, updates)) if is_gpu else {},
        cycles=dict(_each_update(cycles, updates)),
        seconds=seconds,
        exchange_seconds=exchange_seconds,
        steps_per_second=speed,
    )
    if made.needed > made.memory:
        raise _needs_memory(made.needed / GIB, made.memory / GIB, kind)
    return made


def _abstract_data(trainer: Trainer, mesh: Mesh) -> Any:
    """Return the last stage, and its data as they are placed on the mesh, without their values."""
    grid = np.array(jax.local_devices(backend="cpu")[:1]).reshape(1, 1)
    here = Mesh(grid, AXES, axis_types=mesh.axis_types)
    with contextlib.closing(trainer.feed(trainer.num_iterations, here)) as feed:
        stage, data = next(feed)

    def place(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, x.sharding.spec))

    return stage, jax.tree.map(place, data)


def _num_bytes(leaf: Any) -> int:
    """Return the bytes of an array on one device."""
    shape = leaf.sharding.shard_shape(leaf.shape)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, leaf.dtype))
        shape = leaf.shape
    return int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize


def _bytes_by_place(state: Any) -> dict[str, int]:
    """Return the bytes of a state by the first two names of their paths."""
    total: Counter[str] = Counter()
    for path, leaf in jax.tree.leaves_with_path(state):
        total[jax.tree_util.keystr(path[:2], simple=True, separator="/")] += _num_bytes(leaf)
    return dict(total)


def _part(origin: str) -> str:
    """Return the innermost of the `SCOPES` in the name of an operation; "" if it is in none."""
    names = re.findall(r"[\w.]+", origin)
    return next((name for name in reversed(names) if name in SCOPES), "")


def _exchanges(crossing: Sequence[Collective], updates: int) -> list[Exchange]:
    count: Counter[tuple[str, str]] = Counter()
    num_bytes: Counter[tuple[str, str]] = Counter()
    for one in crossing:
        place = _part(one.origin), one.kind
        count[place] += one.times
        num_bytes[place] += one.times * one.num_bytes
    return [
        Exchange(*place, count[place] / updates, num_bytes[place] / updates)
        for place in sorted(count)
    ]


def _each_update(total: Counter[str], updates: int) -> Iterator[tuple[str, float]]:
    """Yield the parts of an update, in their order, with their share of a total."""
    for part in (*SCOPES, ""):
        if total[part]:
            yield part, total[part] / updates


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Do not read programs from JAX's compilation cache, nor write them.

    Those for devices that are not here cannot be read.
    """
    config: Any = jax.config
    enabled = config.jax_enable_compilation_cache
    try:
        config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
    finally:
        config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def _naming_memory(kind: str) -> Iterator[None]:
    """Raise `NeedsMemoryError` where the compiler says that a program does not fit."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        patterns = r"Used ([\d.]+)G of ([\d.]+)G hbm", r"\(([\d.]+)G\) exceeds .*\(([\d.]+)G\)"
        found = next(filter(None, (re.search(one, str(error)) for one in patterns)), None)
        if found is None:
            raise NeedsMemoryError(f"the program does not fit into a {kind}") from None
        raise _needs_memory(float(found[1]), float(found[2]), kind) from None


def _needs_memory(needed: float, available: float, kind: str) -> NeedsMemoryError:
    """Return an error, given numbers of GiB."""
    return NeedsMemoryError(
        f"the program needs {needed:.2f} GiB of each {kind}, which has {available:.2f} GiB, "
        f"{needed - available:.2f} GiB too little"
    )
