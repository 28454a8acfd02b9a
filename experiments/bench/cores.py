"""Cores: the time of a segment, forward and backward, and of an acting step, for each core.

    python experiments/bench/cores.py

All cores have the same width and number of layers, so their parameters and states differ in size;
both are in the table. The batch is such that all segments have the same number of steps in total,
so that only the length of the sequence differs between them. Temporary memory is that of the
compiled gradient: activations, without parameters and inputs. Acting takes a step of the largest
batch, with all cores' steps timed in turn. The figure, cores.png, shows time and memory against
the length.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from timing import RESULTS, Row, interleaved, show

from gtrxl_jax.nn.core import CORES, CoreConfig
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.plots.style import (
    FONT_SIZE,
    assign_styles,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)


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
    unrolls: tuple[int, ...] = (128, 256, 512, 1024)
    """Lengths of the segments."""
    rounds: int = 3
    keep: bool = True
    """Write the table and the figure to results/bench."""


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


def segments(core: Any, params: Any, batch: int, unroll: int) -> tuple[Any, int]:
    """Return a call of the gradient of a loss of random segments, and its temporary bytes."""
    x_BTD = jax.random.normal(jax.random.key(1), (batch, unroll, core.width))
    first_BT = jax.random.uniform(jax.random.key(2), (batch, unroll)) < 0.01
    memory = core.initial_memory(batch)

    def gradient(params: Any, x_BTD: Any) -> Any:
        def loss(params: Any, x_BTD: Any) -> Any:
            return jnp.mean(jnp.square(core.apply(params, memory, x_BTD, first_BT)[1]))

        return jax.grad(loss, argnums=(0, 1))(params, x_BTD)

    compiled = jax.jit(gradient).lower(params, x_BTD).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None, "the backend has no memory analysis"
    return functools.partial(compiled, params, x_BTD), analysis.temp_size_in_bytes


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


def draw(panels: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Plot each quantity against the length of the segments, with a line for each core."""
    figure = new_figure(4.0 * len(panels) + 1.2, 4.0)
    entries: dict[str, Any] = {}
    columns = figure.subplots(1, len(panels), squeeze=False)[0]
    for (quantity, cores), axes in zip(panels.items(), columns, strict=True):
        for core, look in assign_styles(cores):
            unrolls, values = zip(*cores[core].items(), strict=True)
            entries[core] = axes.loglog(unrolls, values, **look, markersize=4, linewidth=1.0)[0]
        axes.set_xticks(unrolls, labels=[str(unroll) for unroll in unrolls])
        axes.xaxis.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(which="minor", labelsize=FONT_SIZE - 1)
        axes.set_xlabel("steps of a segment")
        axes.set_ylabel(quantity)
        style_axes(axes)
    legend_outside(figure, "", entries)
    save_figure(figure, path)


def main(settings: Settings) -> None:
    """Time all cores, interleaved."""
    rows, calls = [], {}
    batch = settings.steps // min(settings.unrolls)
    names = settings.cores or tuple(CORES)
    megabytes: dict[str, dict[int, float]] = {name: {} for name in names}
    for name in names:
        core = core_of(name, settings)
        inputs = jnp.zeros((1, 1, core.width)), jnp.zeros((1, 1), bool)
        params = jax.jit(core.init)(jax.random.key(0), core.initial_memory(1), *inputs)
        rows += [
            Row(f"{name}: parameters", size(params) / 1e3, "thousand"),
            Row(f"{name}: memory of a row", size(core.initial_memory(1)) / 1e3, "thousand numbers"),
        ]
        for unroll in settings.unrolls:
            kind = segment(name, unroll)
            calls[kind], held = segments(core, params, settings.steps // unroll, unroll)
            megabytes[name][unroll] = held / 1e6
            rows.append(Row(f"{kind}, temporary memory", megabytes[name][unroll], "MB"))
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
    if settings.keep:
        milliseconds = {
            name: {unroll: 1e3 * seconds[segment(name, unroll)] for unroll in settings.unrolls}
            for name in names
        }
        panels = {"forward and backward, ms": milliseconds, "temporary memory, MB": megabytes}
        draw(panels, RESULTS / "cores.png")


def segment(core: str, unroll: int) -> str:
    """Return the name of a call."""
    return f"{core}: segment of {unroll}"


if __name__ == "__main__":
    main(tyro.cli(Settings))
