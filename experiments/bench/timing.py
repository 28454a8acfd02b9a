"""Interleaved timing in one process, and the limits of the machine for comparison."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from gtrxl_jax.files import atomic
from gtrxl_jax.runs.results import provenance

RESULTS = Path(__file__).parents[1] / "results" / "bench"


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call; calls alternate, so all see the same machine load.

    Each is timed directly after an untimed call of itself, as in a loop, since other calls leave
    their own data in the caches, and memory that the system has to allocate again.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            jax.block_until_ready(call())
            began = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def matmul(size: int) -> tuple[Callable[[], Any], float]:
    """Return a product of two square float32 matrices, and its floating-point operations."""
    a, b = (jax.random.normal(jax.random.key(k), (size, size)) for k in range(2))
    product = jax.jit(jnp.matmul)
    return lambda: product(a, b), 2.0 * size**3


def read(megabytes: int) -> tuple[Callable[[], Any], float]:
    """Return a sum over an array, which reads each number once, and the bytes that it reads."""
    held = jnp.ones((megabytes, 2**18))
    total = jax.jit(jnp.sum)
    return lambda: total(held), float(held.nbytes)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table: quantity, value and unit."""

    what: str
    value: float
    unit: str


def show(name: str, title: str, rows: list[Row], *, keep: bool, before: Sequence[Row] = ()) -> None:
    """Print the table; with `keep`, write it to results/bench, behind the rows `before`."""
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for row in rows:
        table.add_row(
            row.what, f"{row.value:,.3g}" if row.value < 1000 else f"{row.value:,.0f}", row.unit
        )
    Console().print(table)
    if not keep:
        return
    kept = [dataclasses.asdict(row) for row in (*before, *rows)]
    record = provenance() | {"title": title, "rows": kept}
    with atomic(RESULTS / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")
