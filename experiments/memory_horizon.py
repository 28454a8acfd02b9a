"""Success against memory horizon: how long does each core remember?

    python experiments/memory_horizon.py
    python experiments/memory_horizon.py --workers 2 --only gtrxl lstm

In the passive T-Maze, the cue is shown at the first step and the turn is taken L steps later. There
are two studies, with V-MPO, and with 2 layers, unrolls of 128 and the same settings and steps for
every core, where not stated:

    whole     corridors of 25 to 400, with a memory that holds the whole episode, L + 4 steps. The
              control is a memoryless GTrXL. In corridors of 100 and 200, LSTM and GRU also have
              one wider layer, and in 200 an unroll that holds the whole episode as well.
    layers    corridors of 10, 24 and 40, with a memory of 16 steps for each layer: within the span
              of one layer, within the span of the stack only, and beyond both, where a transformer
              has no access to the cue. LSTM and GRU have no such limit.

Widths are chosen such that all cores have as many parameters as a GTrXL of width 64, within 10 %.

Writes memory_horizon.jsonl, .md and two figures, of the cores with two layers, to
experiments/results/.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.nn.core import CoreConfig
from gtrxl_jax.nn.cores.registry import core_config, make_core
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.plots.curves import plot_success_against_horizon
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import ENTRIES, Paragraph, solved_entry, table

CUT_OFF = "gtrxl, memory cut off"
CORES = {
    "gtrxl": ("gtrxl", 2, 64, 128),
    "trxl": ("trxl", 2, 104, 128),
    "trxl-i": ("trxl-i", 2, 104, 128),
    "lstm": ("lstm", 2, 98, 128),
    "gru": ("gru", 2, 114, 128),
    CUT_OFF: ("gtrxl", 2, 64, 128),
    "lstm, one layer": ("lstm", 1, 139, 128),
    "gru, one layer": ("gru", 1, 161, 128),
    "lstm, one layer, unroll 256": ("lstm", 1, 139, 256),
    "gru, one layer, unroll 256": ("gru", 1, 161, 256),
}
"""The name, layers, width and unroll of each core. By default, unrolls have 32 steps: an LSTM
learns what to remember only through the gradient within a segment."""
TWO_LAYERS = tuple(core for core, (_, layers, _, _) in CORES.items() if layers == 2)
ONE_LAYER = ("lstm, one layer", "gru, one layer")
CORRIDORS = {
    **dict.fromkeys((25, 50), TWO_LAYERS),
    100: TWO_LAYERS + ONE_LAYER,
    200: tuple(CORES),
    400: ("gtrxl", "lstm"),
}
SPAN, SHORT = 16, (10, 24, 40)
SEEDS = dict.fromkeys((*SHORT, 400), 3)
"""Number of seeds for some corridors; 5 for the others."""
TOTAL_STEPS = 1_000_000
STEPS_PER_UPDATE = 1024
"""As by default."""


def job(core: str, corridor: int, memory_size: int, total_steps: int) -> OnlineConfig:
    """Return the config of a cell: the defaults with these settings changed."""
    name, layers, width, unroll = CORES[core]
    memory = {"memory_size": memory_size} if "trxl" in name else {}
    return OnlineConfig(
        env=EnvConfig(params={"corridor_length": corridor}, num_envs=STEPS_PER_UPDATE // unroll),
        core=core_config(name, "small", layers=layers, width=width, **memory),
        agent=AgentConfig(memoryless=core == CUT_OFF),
        algorithm=VMPOConfig(),
        total_steps=total_steps,
        unroll=unroll,
    )


def num_parameters(cells: Sequence[Cell]) -> dict[str, int]:
    """Return the number of parameters of each core, which does not depend on the corridor."""
    jobs = {str(cell.labels["core"]): cell.job for cell in cells}
    return {core: count(job.core) for core, job in jobs.items() if isinstance(job, OnlineConfig)}


@functools.cache
def count(config: CoreConfig) -> int:
    """Return the number of parameters of a core."""
    core = make_core(config)

    def init() -> Any:
        memory = core.initial_memory(1)
        first_BT = jnp.zeros((1, 1), bool)
        return core.init(jax.random.key(0), memory, jnp.zeros((1, 1, config.width)), first_BT)

    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init)))


def grid(options: Options) -> list[Cell]:
    """Return all runs of both studies."""
    steps = options.steps or TOTAL_STEPS
    planned = [("whole", n, core, n + 4) for n, cores in CORRIDORS.items() for core in cores]
    planned += [("layers", n, core, SPAN) for n in SHORT for core in TWO_LAYERS]
    cells = [
        Cell(
            {"study": study, "core": core, "corridor": n},
            job(core, n, memory, steps),
            options.seeds or SEEDS.get(n, 5),
        )
        for study, n, core, memory in planned
    ]
    counts = num_parameters(cells)
    reference = counts["gtrxl"]
    if any(abs(size / reference - 1) > 0.1 for size in counts.values()):
        raise ValueError(f"the cores' numbers of parameters differ by more than 10 %: {counts}")
    return cells


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables and the figures of the available records."""
    paragraphs: list[Any] = [
        "Passive T-Maze, V-MPO, 2 layers and unrolls of 128 where not stated, the same settings "
        f"and {max(record['steps'] for record in records):,} steps for every core. Chance is 0.5 "
        "for an agent that reaches the junction. Parameters of the cores: "
        + "; ".join(f"{core} {size:,}" for core, size in num_parameters(grid(options)).items())
        + ".",
        "Runs before 2026-11-26 have an entropy bonus of 0.02, the default of that time; later "
        "ones have today's.",
        ENTRIES,
    ]
    for study, title, span in (
        ("whole", "A memory that holds the episode", None),
        ("layers", f"A memory of {SPAN} steps for each layer", SPAN),
    ):
        cells = by_cell([r for r in records if r["labels"]["study"] == study], "core", "corridor")
        if not cells:
            continue
        corridors = sorted({n for _, n in cells})
        cores = [core for core in CORES if any((core, n) in cells for n in corridors)]
        rows = [[core, *(entry(cells.get((core, n), [])) for n in corridors)] for core in cores]
        paragraphs += [f"## {title}", table(["core", *(f"L = {n}" for n in corridors)], rows)]
        plot_success_against_horizon(
            {core: by_seed(cells, core, corridors) for core in cores if core in TWO_LAYERS},
            corridors,
            options.results / f"memory_horizon_{study}.png",
            span=span,
            chance=0.5,
        )
    return "Success against memory horizon", [*paragraphs]


def entry(records: Sequence[Record]) -> str:
    """Return the table entry of a cell, empty without records."""
    return solved_entry(scores(records)) if records else ""


def by_seed(cells: Any, core: str, corridors: Sequence[int]) -> np.ndarray:
    """Return success `[S, H]`, NaN for missing runs."""
    seeds = sorted({r["seed"] for n in corridors for r in cells.get((core, n), [])})
    found = {(r["seed"], n): scores([r])[0] for n in corridors for r in cells.get((core, n), [])}
    return np.array([[found.get((seed, n), np.nan) for n in corridors] for seed in seeds])


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
