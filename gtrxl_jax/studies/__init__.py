"""Studies: grids of runs with several seeds, their records, and comparisons of runs.

    from gtrxl_jax import studies

    cells = studies.grid(
        {"total_steps": 100_000, "core.memory_size": 34}, {"core.name": ["gtrxl", "lstm"]}, seeds=5
    )
    records = studies.run(cells, "cores.jsonl", workers=2)
    for core, of_core in studies.by_cell(records, "core.name").items():
        print(core, studies.scores(of_core))

`grid` makes cells from settings by their dotted names, `read_sweep` from a TOML file; any config
or function is a cell's job as well, see `Cell`. `run` returns records, one for each seed; `train`
gives each cell a run folder instead, and `compare` compares such folders.
"""

from gtrxl_jax.studies.cells import Cell as Cell
from gtrxl_jax.studies.cells import require_trainable as require_trainable
from gtrxl_jax.studies.cells import run as run
from gtrxl_jax.studies.cells import train as train
from gtrxl_jax.studies.comparison import compare as compare
from gtrxl_jax.studies.comparison import find_runs as find_runs
from gtrxl_jax.studies.comparison import read_runs as read_runs
from gtrxl_jax.studies.records import Record as Record
from gtrxl_jax.studies.records import by_cell as by_cell
from gtrxl_jax.studies.records import read as read
from gtrxl_jax.studies.records import scores as scores
from gtrxl_jax.studies.records import to_goal as to_goal
from gtrxl_jax.studies.script import Options as Options
from gtrxl_jax.studies.script import Study as Study
from gtrxl_jax.studies.sweep import grid as grid
from gtrxl_jax.studies.sweep import read_sweep as read_sweep
