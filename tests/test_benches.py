"""The benchmarks run, at sizes too small for meaningful results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[1] / "experiments" / "bench"
SMALL = {
    "acting": "--preset debug --batch 2 --cached-steps 2 --rounds 1",
    "communication": "--online debug --offline debug --devices 2",
    "encoders": "--preset debug --batch 2 --loop 2 --updates 2 --sides 10 36 --rounds 1",
    "learning": "--preset debug --unroll 4 --matmul-size 64 --rounds 1",
    "rate": "--preset debug --batch 2 --context 3 --segments 2 --rounds 1",
    "saving": "--total-steps 20000 --rounds 1",
    "training": "--width 16 --memory-size 8 --num-envs 4 --unroll 8 --rounds 1",
}
MUST_SHOW = {
    "acting": "ratio",
    "communication": "efficiency",
    "encoders": "in a loop",
    "learning": "fraction",
    "rate": "peak memory",
    "saving": "held",
    "training": "rollout",
}


@pytest.mark.parametrize("name", SMALL)
def test_benchmark_prints_table(name):
    program = BENCHES / f"{name}.py"
    ran = subprocess.run(
        [sys.executable, program, *SMALL[name].split(), "--no-keep"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(BENCHES.parents[1])},
        check=True,
        timeout=300,
    )
    assert MUST_SHOW[name] in ran.stdout


def test_every_benchmark_is_tested():
    programs = {path.stem for path in BENCHES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(SMALL)
