"""What crosses devices: gradients, parameters where they are split, and a number a step."""

import math

import jax
import pytest

from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.collectives import Collective, collectives
from gtrxl_jax.runs.programs import Programs
from tests.jobs import changed, small_job

# On eight devices: rows that no parameter has, to be recognised in a shape.
BATCH, STEPS, SEGMENTS = 88, 9, 2
JOBS = {
    "online": (
        OnlineTrainer,
        small_job(env__num_envs=BATCH, unroll=STEPS, updates_per_iteration=1),
    ),
    "offline": (
        OfflineTrainer,
        changed(preset("debug"), batch_size=BATCH, segments=SEGMENTS, updates_per_iteration=1),
    ),
}


# Offline attention multiplies its matrices before it uses them, in each segment, and it is products
# that are sent: of one head (1, 16, 16), and of all for queries, twice with biases, and outputs.
FOLDED = {(1, 16, 16), (16, 32), (2, 16), (32,), (32, 16)}
PRODUCTS = 2 * (16 * 32 + 2 * 16) + 32 * 16
RUNS = 2
"""Runs of queries in the one layer: o tokens and write tokens. The products' gradients are sent for
each, as they are for each segment."""


def crossing(trainer):
    """What an update sends, and the shapes of the parameters."""
    programs = Programs(trainer)
    text = programs.iteration(*next(programs.feed(1))).as_text()
    return collectives(text), [leaf.shape for leaf in jax.tree.leaves(programs.like.params)]


@pytest.mark.parametrize("kind", JOBS)
def test_data_parallel_sends_gradients_and_scalars(kind):
    make, config = JOBS[kind]
    sent, parameters = crossing(make(config))
    sums = [one for one in sent if one.kind == "all-reduce"]
    gathered = [shape for one in sent if one.kind != "all-reduce" for shape in one.shapes]
    # V-MPO's best half is of the whole batch: its advantages are sorted together.
    assert gathered == ([(BATCH * STEPS,)] if kind == "online" else [])
    # The gradient, offline that of each segment where the loop over them makes it; and scalars.
    times = 1 if kind == "online" else SEGMENTS
    gradient = 4 * sum(map(math.prod, parameters))
    most = times * (gradient + (0 if kind == "online" else RUNS * 4 * PRODUCTS) + 800)
    assert gradient <= sum(one.num_bytes * one.times for one in sums) <= most
    assert max(one.times for one in sent) == times


@pytest.mark.parametrize("kind", JOBS)
def test_split_parameters_are_gathered_and_nothing_of_the_batch(kind):
    make, config = JOBS[kind]
    sent, parameters = crossing(make(changed(config, parameter_shards=2)))
    rows = {BATCH, BATCH // 4, BATCH // 8}
    # A number for each step: the advantages, and what is computed of them in groups of two.
    numbers = {(BATCH * STEPS,), *((n, t) for n in rows for t in (STEPS, STEPS + 1))}
    gathers = [one for one in sent if one.kind == "all-gather"]
    gathered = {shape for one in gathers for shape in one.shapes}
    assert gathered & {*parameters}
    assert gathered <= {*parameters} | numbers | (FOLDED if kind == "offline" else set())
    assert {one.times for one in gathers} <= ({1} if kind == "online" else {1, SEGMENTS})
    if kind == "online":
        assert {one.kind for one in sent} == {"all-reduce", "all-gather"}
    assert {shape for one in sent for shape in one.shapes if rows & {*shape}} <= numbers


def test_a_program_is_read_with_its_loops():
    text = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %r = (f32[4]{0}, bf16[2,3]{1,0}) all-reduce(%x, %y), to_apply=%add, metadata={op_name="jit(f)/sum"}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %loop = (s32[], f32[4]) while(%t), condition=%add, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %g = pred[8]{0} all-gather-start(%x), dimensions={0}
  ROOT %done = pred[8]{0} all-gather-done(%g)
}
"""  # noqa: E501
    assert collectives(text) == [
        Collective("all-reduce", ((4,), (2, 3)), 16 + 12, 5, "jit(f)/sum"),
        Collective("all-gather", ((8,),), 8, 1, ""),
    ]
