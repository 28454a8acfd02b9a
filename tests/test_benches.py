"""The benchmarks run, at sizes too small for meaningful results."""

import importlib
import math
import os

import pytest
import tyro

from tests.processes import EXPERIMENTS, run
from tests.topologies import needs_libtpu

pytestmark = pytest.mark.integration

BENCHES = EXPERIMENTS / "bench"
SMALL = {
    "accelerator": "--preset debug --acting-batches 2 --cached-steps 2 --learning-batch 2 "
    "--unroll 5 --attention-batch 2 --num-envs 8 16 --width 16 --image-envs 8 --image-layers 1 "
    "--image-width 16 --seeds 2 --options-envs 8 --rate-preset debug --updates 1 "
    "--matmul-size 64 --megabytes 1 --rounds 1",
    "acting": "--preset debug --batch 2 --cached-steps 2 --rounds 1",
    "communication": "--online debug --offline debug --devices 2",
    "cores": "--cores gtrxl mingru --width 8 --memory-size 2 --steps 8 --unrolls 2 4 --rounds 1",
    "encoders": "--preset debug --batch 2 --loop 2 --updates 2 --sides 10 36 --rounds 1",
    "learning": "--preset debug --unroll 4 --matmul-size 64 --rounds 1",
    "minigrid_memory": "--num-envs 4 --steps 8 --python-steps 8 --rounds 1",
    "raycast": "--batch 2 --steps 2 --sizes 9 --rounds 1",
    "rate": "--preset debug --batch 2 --unroll 3 --segments 2 --rounds 1",
    "rate_sizes": "--only tmaze --batch 1 --rounds 1 --acting-rounds 1",
    "scaling": "--preset debug --layers 1 --chips 4 --shards 2 --envs 2",
    "saving": "--preset debug --total-steps 1 --rounds 1",
    "simulators": "--num-envs 2 --unroll 4 --segments 1 --minibatches 2 --width 8 --head 8 "
    "--updates 5",
    "training": "--width 16 --memory-size 8 --num-envs 4 --unroll 8 --rounds 1",
}
MUST_SHOW = {
    "accelerator": "training",
    "acting": "ratio",
    "communication": "efficiency",
    "cores": "step",
    "encoders": "in a loop",
    "learning": "fraction",
    "minigrid_memory": "ratio",
    "raycast": "images",
    "rate": "peak memory",
    "rate_sizes": "peak memory",
    "scaling": "memory of a chip",
    "saving": "held",
    "simulators": "against",
    "training": "rollout",
}


QUICK = {"acting"}
"""Benchmarks that run with the other tests, since one covers what they share."""


def marks(name):
    """Return the marks of a benchmark's test."""
    return [pytest.mark.slow] * (name not in QUICK) + [needs_libtpu] * (name == "scaling")


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in SMALL])
def test_benchmark_prints_positive_values(name):
    shown = run(BENCHES / f"{name}.py", *SMALL[name].split(), "--no-keep")
    rows = [line.split("│") for line in shown.splitlines() if "│" in line]
    values = [float(row[2].replace(",", "")) for row in rows if MUST_SHOW[name] in row[1]]
    assert values
    assert all(0 < value < math.inf for value in values)


@pytest.mark.slow
def test_benchmark_trains_to_a_goal():
    options = [*SMALL["simulators"].split(), "--seeds", "1", "--most-steps", "600"]
    maze = ["--env", "TMaze-v0", "--keys", "", "--params", "corridor_length", "2"]
    for goal, states in (("0.01", {"s", "steps"}), ("1.01", {"s, goal not reached"})):
        shown = run(BENCHES / "simulators.py", *options, *maze, "--goal", goal, "--no-keep")
        rows = [line.split("│") for line in shown.splitlines() if "│" in line]
        assert states <= {row[3].strip() for row in rows}


@pytest.mark.parametrize("name", SMALL)
def test_benchmark_takes_its_settings(name, monkeypatch):
    """It can be imported and reads the options of the other test, without being run."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # which one of them extends
    monkeypatch.syspath_prepend(str(BENCHES))
    program = importlib.import_module(name)
    settings = tyro.cli(program.Settings, args=[*SMALL[name].split(), "--no-keep"])
    assert not settings.keep
    assert callable(program.main)


def test_every_benchmark_is_tested():
    programs = {path.stem for path in BENCHES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(SMALL)
