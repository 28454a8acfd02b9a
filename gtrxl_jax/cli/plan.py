"""The command `gtrxl plan`: what a training command would do on devices that are not here."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gtrxl_jax.cli.parsing import SIZES
from gtrxl_jax.files import printable

if TYPE_CHECKING:
    from gtrxl_jax.runs.plan import Plan


def plan(arguments: Sequence[str]) -> None:
    """Run `gtrxl plan`."""
    import jax

    # Nothing is run on the devices of this machine, which may be those of another run.
    jax.config.update("jax_platforms", "cpu")
    from gtrxl_jax.cli.arguments import PlanTrain, parse_plan
    from gtrxl_jax.offline.trainer import OfflineTrainer
    from gtrxl_jax.online.host import make_trainer
    from gtrxl_jax.parallel.topologies import devices_of
    from gtrxl_jax.runs.plan import NeedsMemoryError, plan

    command: Any = parse_plan(arguments)
    is_online, config = isinstance(command, PlanTrain), command.config
    devices = devices_of(command.topology)
    trainer: Any = make_trainer(config) if is_online else OfflineTrainer(config)
    trainer.mesh(devices)
    if not command.quiet and not command.json:
        print(f"compiling for {command.topology}, which may take minutes", file=sys.stderr)
    try:
        made = plan(trainer, command.topology)
    except NeedsMemoryError as error:
        sizes = SIZES["train" if is_online else "train-offline"]
        raise MemoryError(f"{error}: reduce {sizes}") from None
    if is_online:
        size_of_batch, rows, unit = config.env.num_envs, "environments", "steps"
        steps, caches = config.segments * config.unroll, cache_bytes(trainer, devices)
    else:
        size_of_batch, rows, unit = config.batch_size, "trajectories", "updates"
        steps, caches = None, None
    batch = size_of_batch // made.devices
    if command.json:
        print(json.dumps(dataclasses.asdict(made) | {rows: batch, "caches": caches}, indent=2))
        return
    print(printable(f"{trainer.title}: compiles for {made.topology}, and fits"))
    for name, value in rows_of(made, f"{batch} {rows}", unit, steps, caches):
        print(f"{name:26}  {value}".rstrip())


def cache_bytes(trainer: Any, devices: Sequence[Any]) -> int:
    """Return the bytes on a device of what acting computes at the start of a rollout, and keeps."""
    import jax

    config, mesh = trainer.config, trainer.mesh(devices)

    def start(params: Any, memory: Any) -> Any:
        return trainer.algorithm.behavior.start(params, memory, config.unroll)

    state = jax.eval_shape(trainer.init, 0)
    params = jax.eval_shape(trainer.algorithm.acting_params, state.learner)
    memory = jax.eval_shape(trainer.init_actor, jax.random.key(0)).memory
    with jax.set_mesh(mesh):
        program = jax.make_jaxpr(start)(params, memory).jaxpr
    total = 0
    for variable in program.outvars:
        array: Any = variable.aval
        if variable not in program.invars:  # parameters and memory are there anyway
            # The batch is the first axis, or the second of caches stacked over layers.
            share = mesh.size if config.env.num_envs in array.shape[:2] else 1
            total += config.num_seeds * array.size * array.dtype.itemsize // share
    return total


NAMES = {"act": "acting", "env": "environments", "learn": "learning", "": "the rest"}
"""What the table calls the parts of an update."""

PLACES = {
    "learner/trainable": "parameters",
    "learner/params": "parameters",
    "learner/optimizer": "optimizer",
    "learner/algorithm": "the algorithm's own",
    "learner/target": "target network",
    "learner/replay": "replay",
    "actor/memory": "memory",
    "actor/stream": "environments",
}
"""What it calls the places of arrays in the state of a run."""


def rows_of(
    made: "Plan", batch: str, unit: str, steps: int | None = None, caches: int | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the table.

    Args:
      made: the plan.
      batch: the part of the batch that a device has.
      unit: the steps of `Trainer`.
      steps: the number of acting steps in an update; None offline.
      caches: the bytes that acting caches; None offline.
    """
    hosts = f"{made.hosts} host{'s' if made.hosts > 1 else ''}"
    yield "devices", f"{made.devices} x {made.kind}, {hosts}, {batch} a device"
    yield "memory of a device", f"{size(made.needed)} of {size(made.memory)}"
    large = {place: n for place, n in made.state.items() if n > made.needed / 1000}
    for place, num_bytes in large.items():
        yield f"  {PLACES.get(place, place)}", size(num_bytes)
    if made.data:
        yield "  data", size(made.data)
    yield "  small arrays, padding", size(made.arguments - made.data - sum(large.values()))
    of_caches = "" if caches is None else f", of which {size(caches)} for acting's caches"
    yield "  temporaries", f"{size(made.temporaries)}{of_caches}"
    if made.code:
        yield "  code", size(made.code)
    yield "exchange in an update", "" if made.exchanges else "none"
    for one in made.exchanges:
        of_all = f"{size(one.num_bytes)} in {one.count:,.4g} operations"
        yield f"  {NAMES[one.part]}", f"{one.kind}, {of_all}"
    yield "lowering, compilation", f"{made.lower_seconds:.0f} s, {made.compile_seconds:.0f} s here"
    if made.kernels:
        yield "kernels in an update", ""
        for part, number in made.kernels.items():
            yield f"  {NAMES[part]}", f"{number:,.0f}"
    if made.cycles:
        yield from _estimates(made, steps, unit)


def _estimates(made: "Plan", steps: int | None, unit: str) -> Iterator[tuple[str, str]]:
    yield "an update", ""
    for part, cycles in made.cycles.items():
        text = f"{cycles:,.0f} cycles"
        if seconds := made.seconds.get(part):
            text = milliseconds(seconds)
            if steps and part in ("act", "env"):
                text += f", {milliseconds(seconds / steps)} a step"
        yield f"  {NAMES[part]}", f"{text} (estimate by XLA)"
    if made.exchange_seconds is not None:
        yield "  exchange", f"{milliseconds(made.exchange_seconds)} (estimate by bandwidth)"
    if made.steps_per_second:
        yield f"{unit} a second", f"{made.steps_per_second:,.0f} (estimate by these)"


def size(num_bytes: float) -> str:
    """Format a number of bytes: 1.25 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def milliseconds(seconds: float) -> str:
    """Format a time: 1.75 ms."""
    return f"{1e3 * seconds:.3g} ms"
