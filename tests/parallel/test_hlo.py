"""Communication between devices: gradients, split parameters, and one number per step."""

import math

import jax
import pytest

from gtrxl_jax.offline.config import preset
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online.r2d2 import R2D2Config
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.parallel.hlo import Collective, collectives, instructions
from gtrxl_jax.runs.programs import Programs
from tests.jobs import changed, small_job
from tests.tiers import slow_except

pytestmark = pytest.mark.integration

# For eight devices. No parameter has as many rows, so that shapes identify the batch.
BATCH, STEPS, SEGMENTS = 176, 9, 2


def online(epochs, minibatches):
    """The job whose learner takes these numbers of passes and of steps in each."""
    return small_job(
        env__num_envs=BATCH,
        unroll=STEPS,
        updates_per_iteration=1,
        algorithm__epochs=epochs,
        algorithm__minibatches=minibatches,
    )


JOBS = {
    "online": (OnlineTrainer, online(1, 1)),
    "online, minibatches": (OnlineTrainer, online(3, 2)),
    "offline": (
        OfflineTrainer,
        changed(preset("debug"), batch_size=BATCH, segments=SEGMENTS, updates_per_iteration=1),
    ),
}


# Offline attention multiplies its weight matrices with each other in each segment, and the products
# are sent: of one head (1, 16, 16), of all heads for queries (twice with biases) and for outputs.
FOLDED = {(1, 16, 16), (16, 32), (2, 16), (32,), (32, 16)}
PRODUCTS = 2 * (16 * 32 + 2 * 16) + 32 * 16
RUNS = 2
"""Groups of queries in the only layer: o tokens and write tokens. Gradients of the products are
sent for each group and each segment.
"""


def crossing(trainer):
    """Return the collectives of an update, and the shapes of the parameters."""
    programs = Programs(trainer)
    text = programs.iteration(*next(programs.feed(1))).as_text()
    return collectives(text), [leaf.shape for leaf in jax.tree.leaves(programs.like.params)]


@pytest.mark.parametrize("kind", slow_except(JOBS, ["online"]))
def test_data_parallel_sends_gradients_and_scalars(kind):
    make, config = JOBS[kind]
    sent, parameters = crossing(make(config))
    sums = [one for one in sent if one.kind == "all-reduce"]
    gathered = [shape for one in sent if one.kind != "all-reduce" for shape in one.shapes]
    # V-MPO sorts the advantages of the whole minibatch to select the best half.
    sorted_steps = {"online": BATCH * STEPS, "online, minibatches": BATCH // 2 * STEPS}
    assert gathered == ([(sorted_steps[kind],)] if kind in sorted_steps else [])
    # The gradient (offline, in each iteration of the loop over segments) and scalars.
    times = {"online": 1, "online, minibatches": 3 * 2, "offline": SEGMENTS}[kind]
    gradient = 4 * sum(map(math.prod, parameters))
    most = times * (gradient + (RUNS * 4 * PRODUCTS if kind == "offline" else 0) + 800)
    assert gradient <= sum(one.num_bytes * one.times for one in sums) <= most
    assert max(one.times for one in sent) == times


@pytest.mark.slow
def test_replay_sends_gradients_and_scalars():
    """Every environment draws from its own segments, on its own device."""
    steps = 2
    config = R2D2Config(replay_size=4 * BATCH, replay_start=2 * BATCH, optimizer_steps=steps)
    sent, parameters = crossing(OnlineTrainer(changed(online(1, 1), algorithm=config)))
    assert {one.kind for one in sent} == {"all-reduce"}
    gradient = 4 * sum(map(math.prod, parameters))
    number = sum(one.num_bytes * one.times for one in sent)
    # The statistics of normalizers are parameters without a gradient.
    assert 0.9 * steps * gradient <= number <= steps * (gradient + 800)


@pytest.mark.parametrize("kind", ["online", "offline"])
@pytest.mark.slow
def test_split_gathers_parameters_but_no_batch(kind):
    make, config = JOBS[kind]
    sent, parameters = crossing(make(changed(config, parameter_shards=2)))
    rows = {BATCH, BATCH // 4, BATCH // 8}
    # One number per step: the advantages, and values computed from them in groups of two.
    numbers = {(BATCH * STEPS,), *((n, t) for n in rows for t in (STEPS, STEPS + 1))}
    gathers = [one for one in sent if one.kind == "all-gather"]
    gathered = {shape for one in gathers for shape in one.shapes}
    assert gathered & {*parameters}
    assert gathered <= {*parameters} | numbers | (FOLDED if kind == "offline" else set())
    assert {one.times for one in gathers} <= ({1} if kind == "online" else {1, SEGMENTS})
    if kind == "online":
        assert {one.kind for one in sent} == {"all-reduce", "all-gather"}
    assert {shape for one in sent for shape in one.shapes if rows & {*shape}} <= numbers


def test_parsing_of_program_with_loop():
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
  %h = ((f32[4]{0}, s32[2]{0}), (f32[8]{0}, s32[4]{0})) all-gather-start(%x, %y), dimensions={0}
  %p = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x)
  ROOT %done = pred[8]{0} all-gather-done(%g)
}
"""  # noqa: E501
    assert collectives(text) == [
        Collective("all-reduce", ((4,), (2, 3)), 16 + 12, 5, "jit(f)/sum"),
        Collective("all-gather", ((8,),), 8, 1, ""),
        Collective("all-gather", ((8,), (4,)), 32 + 16, 1, ""),
        Collective("collective-permute", ((8,),), 32, 1, ""),
    ]


def test_collective_in_parts_counts_once():
    """A TPU can run one beside other work, of which the instructions that are fused tell."""
    part = 'f32[8]{0} all-gather(%x), channel_id=7, frontend_attributes={chain_id="0"}'
    other = part.replace("channel_id=7", "channel_id=8")
    text = f"""HloModule jit_f, is_scheduled=true

%fused (x: f32[4]) -> f32[8] {{
  ROOT %g = {part}
}}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %r = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%fused
}}

ENTRY %main (x: f32[4]) -> f32[8] {{
  %start = f32[8]{{0}} fusion(%x), kind=kCustom, calls=%fused
  %loop = (s32[], f32[4]) while(%t), condition=%fused, body=%body, backend_config={{"known_trip_count":{{"n":"5"}}}}
  %end = f32[8]{{0}} fusion(%x), kind=kCustom, calls=%fused
  ROOT %h = {other}
}}
"""  # noqa: E501
    assert collectives(text) == 2 * [Collective("all-gather", ((8,),), 32, 1, "")]


@pytest.mark.parametrize(
    ("groups", "number"),
    [("{{0,2,4},{1,3,5}}", 3), ("[2,4]<=[4,2]T(1,0)", 4), ("{}", 8)],
)
def test_what_a_device_sends(groups, number):
    """A reduce-scatter sends what it reduces, not only the part that the device gets."""
    text = f"""HloModule jit_f, is_scheduled=true, num_partitions=8

ENTRY %main (x: f32[64]) -> f32[8] {{
  %r = f32[16]{{0}} reduce-scatter(%x), replica_groups={groups}, dimensions={{0}}, to_apply=%add
  %g = f32[64]{{0}} all-gather(%r), replica_groups={groups}, dimensions={{0}}
  ROOT %s = f32[16]{{0}} all-reduce(%r), replica_groups={groups}, to_apply=%add
}}
"""
    sent = [one.sent_bytes for one in collectives(text)]
    assert sent == [4 * 16 * number, 4 * 64, 2 * 4 * 16]


def test_estimates_of_program_for_tpu():
    """A loop that ends at a constant, one that ends by another condition, and a costed call."""
    text = """HloModule jit_f, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} convert(%p), backend_config={"window_config":{"estimated_cycles":"7"}}
}

%ends_at_three (p: (s32[])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(9)
  %constant.2 = s32[]{:T(128)} constant(3)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %constant.2), direction=LT
}

%ends_somehow (p: (s32[])) -> pred[] {
  ROOT %r = pred[] reduce(%p), dimensions={0}
}

%body (p: (s32[])) -> (s32[]) {
  %a = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="f/act/add"}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %b = f32[4]{0} copy(%a), backend_config={"window_config":{"estimated_cycles":"10"}}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %w = (s32[]) while(%t), condition=%ends_at_three, body=%body, metadata={op_name="f/while"}
  ROOT %v = (s32[]) while(%t), condition=%ends_somehow, body=%body
}
"""  # noqa: E501
    found = [(one.origin, one.times, one.cycles) for one in instructions(text)]
    assert found == [
        ("f/act/add", 3, 100),
        ("f/while", 3, 10),
        ("f/act/add", 1, 100),
        ("", 1, 10),
    ]
