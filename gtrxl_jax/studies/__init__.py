"""Studies: grids of runs with several seeds, their records, and comparisons of runs.

    from gtrxl_jax import studies

    cells = studies.grid(
        {"total_steps": 100_000, "core.memory_size": 34}, {"core.name": ["gtrxl", "lstm"]}, seeds=5
    )
    records = studies.run(cells, "cores.jsonl", workers=2)
    for (core,), of_core in studies.by_cell(records, "core.name").items():
        print(core, studies.scores(of_core))

`grid` makes cells from settings by their dotted names, `read_sweep` from a TOML file; any config
or function is a cell's job as well, see `Cell`. `run` returns records, one for each seed; `train`
gives each cell a run folder instead, and `compare` compares such folders.
"""

from gtrxl_jax.studies.cells import Cell, run, train
from gtrxl_jax.studies.comparison import compare, find_runs, read_runs
from gtrxl_jax.studies.records import Record, by_cell, read, scores, to_goal
from gtrxl_jax.studies.script import Options, Study
from gtrxl_jax.studies.sweep import grid, read_sweep

__all__ = [
    "Cell",
    "Options",
    "Record",
    "Study",
    "by_cell",
    "compare",
    "find_runs",
    "grid",
    "read",
    "read_runs",
    "read_sweep",
    "run",
    "scores",
    "to_goal",
    "train",
]
