"""Cores: the time of a segment, forward and backward, and of an acting step, for each core.

    python experiments/bench/cores.py

All cores have the same width and number of layers, so their parameters and states differ in size;
both are in the table. The batch is such that all segments have the same number of steps in total,
so that only the length of the sequence differs between them. Acting takes a step of the largest
batch, with all cores' steps timed in turn.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from timing import Row, interleaved, show

from gtrxl_jax.nn.core import CORES, CoreConfig
from gtrxl_jax.nn.cores.registry import make_core


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    cores: tuple[str, ...] = ()
    """Registered names; all if empty."""
    layers: int = 2
    width: int = 256
    memory_size: int = 128
    """Steps that the transformers attend to."""
    steps: int = 8192
    """Steps of a segment, over its batch."""
    unrolls: tuple[int, ...] = (128, 1024)
    """Lengths of the segments."""
    rounds: int = 3
    keep: bool = True
    """Write the table to results/bench."""


def core_of(name: str, settings: Settings) -> Any:
    """Return a core of the common size, with the default values of its other settings."""
    kind = CoreConfig.named(name)
    sizes = {"memory_size": settings.memory_size, "layers": settings.layers}
    known = {field.name for field in dataclasses.fields(kind)}
    changes: dict[str, Any] = {field: size for field, size in sizes.items() if field in known}
    return make_core(name, width=settings.width, **changes)


def size(tree: Any) -> int:
    """Return the number of array elements."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def segments(core: Any, params: Any, batch: int, unroll: int) -> Any:
    """Return a call of the gradient of a loss of random segments."""
    x_BTD = jax.random.normal(jax.random.key(1), (batch, unroll, core.width))
    first_BT = jax.random.uniform(jax.random.key(2), (batch, unroll)) < 0.01
    memory = core.initial_memory(batch)

    @jax.jit
    def gradient(params: Any, x_BTD: Any) -> Any:
        def loss(params: Any, x_BTD: Any) -> Any:
            return jnp.mean(jnp.square(core.apply(params, memory, x_BTD, first_BT)[1]))

        return jax.grad(loss, argnums=(0, 1))(params, x_BTD)

    return functools.partial(gradient, params, x_BTD)


def steps(core: Any, params: Any, batch: int) -> Any:
    """Return a call of one step of acting."""
    x_BD = jax.random.normal(jax.random.key(1), (batch, core.width))
    first_B = jnp.zeros(batch, bool)
    start = jax.jit(functools.partial(core.apply, method="start"))
    step = jax.jit(functools.partial(core.apply, method="step"), donate_argnums=1)
    held = [start(params, core.initial_memory(batch))]

    def call() -> Any:
        held[0], y_BD = step(params, held[0], x_BD, first_B)
        return y_BD

    return call


def main(settings: Settings) -> None:
    """Time all cores, interleaved."""
    rows, calls = [], {}
    batch = settings.steps // min(settings.unrolls)
    for name in settings.cores or tuple(CORES):
        core = core_of(name, settings)
        inputs = jnp.zeros((1, 1, core.width)), jnp.zeros((1, 1), bool)
        params = jax.jit(core.init)(jax.random.key(0), core.initial_memory(1), *inputs)
        rows += [
            Row(f"{name}: parameters", size(params) / 1e3, "thousand"),
            Row(f"{name}: memory of a row", size(core.initial_memory(1)) / 1e3, "thousand numbers"),
        ]
        for unroll in settings.unrolls:
            kind = f"{name}: segment of {unroll}"
            calls[kind] = segments(core, params, settings.steps // unroll, unroll)
        calls[f"{name}: step of {batch} rows"] = steps(core, params, batch)
    seconds = interleaved(calls, settings.rounds)
    rows += [Row(call, 1e3 * taken, "ms") for call, taken in seconds.items()]
    show(
        "cores",
        f"Cores of {settings.layers} layers, width {settings.width}, {settings.steps} steps in a "
        "segment's batch",
        rows,
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
