"""The communication of an update between devices, and the expected efficiency on many chips.

    python experiments/bench/communication.py

The first part compiles an online and an offline update for virtual CPU devices at several sizes and
lists the collectives in the programs. With data parallelism, these are the all-reduce of the
gradient, the advantages (one number per step, since V-MPO selects the best half of the whole
batch), and scalars. Observations and memory are never communicated. (Offline, each segment's
gradient is reduced separately, and for attention matrices the gradient of each run of queries;
compilers for accelerators can combine these.) Split parameters are also gathered, for acting and
for learning.

The second part estimates an online update at the paper's size: 12 layers, 8 heads of 64, memory
512, unroll 95. With P parameters in float32, n chips and a batch of B, a ring all-reduce sends
2 (n - 1) / n of its bytes through every chip, so an update takes

    compute   operations(B) / (n * fraction * peak)
    exchange  2 (n - 1) / n * 4 P / bandwidth + collectives * latency
    efficiency = compute / (compute + exchange)

without overlap of communication and computation. Operations are the matrix products counted in
`learning.py`, plus a third for acting, which is one more forward pass. The defaults describe TPU
v4: 275 TFLOP/s in bfloat16 and 6 links of 50 GB/s per chip (Jouppi et al. 2023, table 4), of which
a ring uses two. The fraction is an assumption that has to be measured; it is lower with few rows
per chip, since acting is sequential. A batch must have at least one row per chip. By this estimate,
the efficiency depends on the rows per chip: 0.25 for 2, 0.72 to 0.75 for 16, and 0.96 for 128, on
8, 64 or 512 chips alike. The paper's batch of 128 suits 8 chips.
"""

import dataclasses
import os
from typing import Any

DEVICES = (2, 8)
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={max(DEVICES)}",
        "--xla_backend_optimization_level=0",
    ]
)

import jax  # noqa: E402
import tyro  # noqa: E402
from learning import useful_operations  # noqa: E402
from timing import Row, show  # noqa: E402

from gtrxl_jax.nn.cores.registry import core_config, make_core  # noqa: E402
from gtrxl_jax.nn.sequence.registry import model_config  # noqa: E402
from gtrxl_jax.offline import config as offline_config  # noqa: E402
from gtrxl_jax.offline.trainer import OfflineTrainer  # noqa: E402
from gtrxl_jax.online import config  # noqa: E402
from gtrxl_jax.online.trainer import OnlineTrainer  # noqa: E402
from gtrxl_jax.parallel.hlo import KINDS, Collective, collectives  # noqa: E402
from gtrxl_jax.runs.programs import Programs  # noqa: E402
from gtrxl_jax.runs.trainer import Trainer  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to compile, and the chips of the estimate."""

    online: tuple[str, ...] = ("debug", "small")
    """Sizes of the core."""
    offline: tuple[str, ...] = ("debug", "small")
    """Sizes of RATE."""
    devices: tuple[int, ...] = DEVICES
    """Numbers of virtual devices, at most 8."""
    parameter_shards: int = 2
    """Parameter shards in the last program of each kind."""
    chips: tuple[int, ...] = (8, 64, 512)
    batches: tuple[int, ...] = (128, 1024, 8192)
    peak: float = 275e12
    """Peak operations per second of a chip."""
    fraction: float = 0.3
    """Fraction of the peak that is achieved."""
    bandwidth: float = 100e9
    """Bytes per second into a chip and, simultaneously, out of it."""
    latency: float = 20e-6
    """Minimum seconds of a collective."""
    keep: bool = True
    """Write the table to results/bench."""


def online(size: str, devices: int, shards: int) -> Trainer:
    """Create an online trainer with one update per iteration."""
    preset = dataclasses.replace(
        config.preset("debug"),
        core=core_config("gtrxl", size),
        env=config.EnvConfig(params={"corridor_length": 3}, num_envs=16),
        updates_per_iteration=1,
        devices=devices,
        parameter_shards=shards,
    )
    return OnlineTrainer(preset)


def offline(size: str, devices: int, shards: int) -> Trainer:
    """Create an offline trainer with one update per iteration."""
    preset = dataclasses.replace(
        offline_config.preset("debug"),
        model=model_config("rate", size),
        batch_size=16,
        updates_per_iteration=1,
        devices=devices,
        parameter_shards=shards,
    )
    return OfflineTrainer(preset)


def sent(trainer: Trainer) -> list[Collective]:
    """Return the collectives of an update."""
    programs = Programs(trainer)
    program: Any = programs.iteration(*next(programs.feed(1)))
    return collectives(program.as_text())


def num_parameters(trainer: Trainer) -> int:
    """Return the number of parameters of the network."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(trainer.init, 0).params))


def compiled(settings: Settings) -> list[Row]:
    """Count the bytes of each kind of collective, for every size and number of devices."""
    rows = []
    for kind, make, sizes in (
        ("online", online, settings.online),
        ("offline", offline, settings.offline),
    ):
        bytes_of = {size: 4 * num_parameters(make(size, 1, 1)) for size in sizes}
        rows += [Row(f"{kind} {size}: parameters", bytes_of[size] / 1e3, "kB") for size in sizes]
        places = [(size, n, 1) for size in sizes for n in settings.devices]
        places += [(sizes[0], settings.devices[-1], settings.parameter_shards)]
        for size, devices, shards in places:
            where = f"{kind} {size}, {devices} devices"
            where += f", parameters in {shards}" if shards > 1 else ""
            found = sent(make(size, devices, shards))
            for name in KINDS:
                mine = [one for one in found if one.kind == name]
                if mine:
                    total = sum(one.num_bytes * one.times for one in mine)
                    count = sum(one.times for one in mine)
                    rows += [Row(f"{where}: {name} x {count}", total / 1e3, "kB")]
    return rows


def expected(settings: Settings) -> list[Row]:
    """Estimate the efficiency of the paper's size on many chips."""
    paper = config.preset("paper")
    core = make_core(paper.core)
    parameters = num_parameters(OnlineTrainer(paper))
    count = sum(one.times for one in sent(online("debug", max(settings.devices), 1)))
    rows = [Row("paper: parameters", parameters / 1e6, "million")]
    for batch in settings.batches:
        operations = 4 / 3 * useful_operations(core, batch, paper.unroll)
        for chips in settings.chips:
            if batch % chips:
                continue
            compute = operations / (chips * settings.fraction * settings.peak)
            exchange = 2 * (chips - 1) / chips * 4 * parameters / settings.bandwidth
            exchange += count * settings.latency
            where = f"batch {batch:,} on {chips} chips"
            rows += [
                Row(f"{where}: compute", 1e3 * compute, "ms"),
                Row(f"{where}: exchange", 1e3 * exchange, "ms"),
                Row(f"{where}: efficiency", compute / (compute + exchange), ""),
                Row(f"{where}: speed", batch * paper.unroll / (compute + exchange), "steps/s"),
            ]
    return rows


def main(settings: Settings) -> None:
    """Compile the updates, count their communication, and estimate the efficiency."""
    show(
        "communication",
        f"Communication of an update; estimates for {settings.peak / 1e12:.0f} TFLOP/s, "
        f"{settings.fraction:.0%} of it achieved, {settings.bandwidth / 1e9:.0f} GB/s",
        compiled(settings) + expected(settings),
        keep=settings.keep,
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
