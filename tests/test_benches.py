"""The benchmarks run, at sizes where their figures mean nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[1] / "experiments" / "bench"
SMALL = {
    "acting": "--preset debug --batch 2 --cached-steps 2",
    "learning": "--preset debug --unroll 4 --matmul-size 64",
    "training": "--width 16 --memory-size 8 --num-envs 4 --unroll 8",
}


@pytest.mark.parametrize("name", SMALL)
def test_a_table_is_printed_and_nothing_kept(name):
    program = BENCHES / f"{name}.py"
    ran = subprocess.run(
        [sys.executable, program, *SMALL[name].split(), "--rounds", "1", "--no-keep"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(BENCHES.parents[1])},
        check=True,
        timeout=300,
    )
    assert {"acting": "ratio", "learning": "fraction", "training": "rollout"}[name] in ran.stdout


def test_every_bench_is_run_here():
    programs = {path.stem for path in BENCHES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(SMALL)
