"""Scale on paper: the same job on 4 to 256 chips, planned by the compiler and not run.

    python experiments/bench/scaling.py
    python experiments/bench/scaling.py --layers 12 --chips 4 16 --shards 1

The job is the paper's preset in bfloat16 with the same number of environments on each chip of a
TPU v5e, with 12 layers and with 52, and with the parameters whole on each chip or split over groups
of chips. Each is planned as by `gtrxl plan`: bytes are those of the compiled program; times are
estimates, of the instructions by XLA, and of the exchange by its bytes and the bandwidth of the
links. Estimates leave out that instructions wait for each other, that the exchange can run beside
other work, and the latency of its rounds. What they can show is how the parts compare.

A plan takes a minute or more, so all are kept in results/bench/scaling.json as they are made;
`--resume` makes only those that are not there.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import tyro
from timing import RESULTS, Row, show

from gtrxl_jax.files import atomic
from gtrxl_jax.online.config import OnlineConfig, preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.plots.style import (
    FONT_SIZE,
    assign_styles,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.runs.plan import Plan, plan
from gtrxl_jax.runs.results import provenance

TOPOLOGIES = {4: "v5e:2x2", 16: "v5e:4x4", 64: "v5e:8x8", 256: "v5e:16x16"}
"""By the number of chips."""

TENTH = 0.1
"""The share of an update from which on the exchange counts."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to plan."""

    preset: str = "paper"
    dtype: str = "bfloat16"
    layers: tuple[int, ...] = (12, 52)
    chips: tuple[int, ...] = tuple(TOPOLOGIES)
    shards: tuple[int, ...] = (1, 4, 16)
    """Numbers of chips that share one copy of the parameters."""
    envs: int = 8
    """Environments of each chip."""
    resume: bool = False
    """Make only the plans that are not in results/bench/scaling.json."""
    keep: bool = True
    """Write plans, table and figure to results/bench."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A job, and what its plan says; see `Plan`. Times of an update are estimates, in seconds."""

    layers: int
    chips: int
    shards: int
    memory: int
    exchanged: float
    acting: float
    learning: float
    exchange: float
    compilation: float

    @property
    def update(self) -> float:
        """The estimate of an update, without overlap of its parts."""
        return self.acting + self.learning + self.exchange

    @property
    def share(self) -> float:
        """The share of the exchange in it."""
        return self.exchange / self.update

    @classmethod
    def of(cls, layers: int, shards: int, made: Plan) -> "Planned":
        """Return the figures of a plan."""
        acting = made.seconds["act"] + made.seconds["env"]
        return cls(
            layers=layers,
            chips=made.devices,
            shards=shards,
            memory=made.needed,
            exchanged=sum(one.num_bytes for one in made.exchanges),
            acting=acting,
            learning=sum(made.seconds.values()) - acting,
            exchange=made.exchange_seconds or 0.0,
            compilation=made.compile_seconds,
        )


def jobs(settings: Settings) -> Iterator[tuple[int, int, int]]:
    """Yield the layers, chips and shards of each job."""
    for layers in settings.layers:
        for chips in settings.chips:
            for shards in settings.shards:
                if chips % shards == 0:
                    yield layers, chips, shards


def job(settings: Settings, layers: int, chips: int, shards: int) -> OnlineConfig:
    """Return the config of a job."""
    base = preset(settings.preset)
    core: Any = base.core
    return dataclasses.replace(
        base,
        core=dataclasses.replace(core, layers=layers, dtype=settings.dtype),
        env=dataclasses.replace(base.env, num_envs=chips * settings.envs),
        parameter_shards=shards,
    )


def made_before(path: Path) -> list[Planned]:
    """Return the plans in a file."""
    if not path.exists():
        return []
    return [Planned(**fields) for fields in json.loads(path.read_text("utf-8"))["plans"]]


def write(path: Path, settings: Settings, plans: Sequence[Planned]) -> None:
    """Write plans, with their provenance."""
    record = provenance() | {
        "title": f"Estimates for TPU v5e: {settings.preset}, {settings.dtype}, "
        f"{settings.envs} environments a chip",
        "plans": [dataclasses.asdict(one) for one in plans],
    }
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


def name(layers: int, shards: int) -> str:
    """Return the label of the jobs that differ in their number of chips."""
    return f"{layers} layers, " + (f"parameters in {shards}" if shards > 1 else "whole parameters")


def table(plans: Sequence[Planned]) -> list[Row]:
    """Return the rows of the table."""
    rows = []
    for one in plans:
        where = f"{name(one.layers, one.shards)}, {one.chips} chips"
        rows += [
            Row(f"{where}: memory of a chip", one.memory / 2**30, "GiB"),
            Row(f"{where}: exchanged in an update", one.exchanged / 2**20, "MiB"),
            Row(f"{where}: acting (estimate)", 1e3 * one.acting, "ms"),
            Row(f"{where}: learning (estimate)", 1e3 * one.learning, "ms"),
            Row(f"{where}: exchange (estimate)", 1e3 * one.exchange, "ms"),
            Row(f"{where}: share of the exchange (estimate)", one.share, ""),
            Row(f"{where}: compilation", one.compilation, "s"),
        ]
    return rows


def chips_at_a_tenth(plans: Sequence[Planned], layers: int, shards: int) -> int | None:
    """Return from how many chips on the exchange takes a tenth, by the estimates; None if never.

    The plans are in the order of their chips.
    """
    for one in plans:
        if (one.layers, one.shards) == (layers, shards) and one.share >= TENTH:
            return one.chips
    return None


def draw(plans: Sequence[Planned], path: Path) -> None:
    """Plot the update and the share of the exchange against the number of chips."""
    figure = new_figure(9.2, 4.0)
    left, right = figure.subplots(1, 2)
    entries: dict[str, Any] = {}
    lines: dict[str, list[Planned]] = {}
    for one in plans:
        lines.setdefault(name(one.layers, one.shards), []).append(one)
    for label, look in assign_styles(lines):
        chips = [one.chips for one in lines[label]]
        style = look | {"markersize": 4, "linewidth": 1.0}
        entries[label] = left.loglog(chips, [1e3 * one.update for one in lines[label]], **style)[0]
        right.semilogx(chips, [one.share for one in lines[label]], **style)
    left.set_ylabel("an update, ms (estimate)")
    right.set_ylabel("share of the exchange (estimate)")
    right.axhline(TENTH, color="#808080", linewidth=0.8)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        chips = sorted({one.chips for one in plans})
        axes.set_xticks(chips, labels=[str(number) for number in chips])
        axes.xaxis.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(which="minor", labelsize=FONT_SIZE - 1)
        axes.set_xlabel("chips of a TPU v5e")
        style_axes(axes)
    legend_outside(figure, "", entries)
    save_figure(figure, path)


def main(settings: Settings) -> None:
    """Plan all jobs."""
    path = RESULTS / "scaling.json"
    wanted = list(jobs(settings))
    plans = made_before(path) if settings.resume else []
    done = {(one.layers, one.chips, one.shards) for one in plans}
    for layers, chips, shards in wanted:
        if (layers, chips, shards) in done:
            continue
        trainer = OnlineTrainer(job(settings, layers, chips, shards))
        plans.append(Planned.of(layers, shards, plan(trainer, TOPOLOGIES[chips])))
        plans.sort(key=lambda one: (one.layers, one.shards, one.chips))
        jax.clear_caches()
        if settings.keep:
            write(path, settings, plans)
    show("", "Estimates by XLA for TPU v5e, not measurements", table(plans), keep=False)
    for layers in settings.layers:
        for shards in settings.shards:
            chips_then = chips_at_a_tenth(plans, layers, shards)
            text = f"from {chips_then} chips on" if chips_then else "nowhere"
            print(f"{name(layers, shards)}: the exchange takes a tenth {text} (estimate)")
    if settings.keep:
        draw(plans, RESULTS / "scaling.png")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # nothing is run
    main(tyro.cli(Settings))
