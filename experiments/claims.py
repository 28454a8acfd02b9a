"""What holds here of the claims of the two papers, from the records of the studies.

A claim has comparisons of two groups of runs. Those that decide are the nearest to the paper's;
others are beside them. docs/claims.md states the rule, and `make results` writes its tables.
"""

import dataclasses
import functools
import itertools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rate_two_colors
from sensitivity import success_at

from gtrxl_jax.formatting import format_numbers
from gtrxl_jax.statistics import SOLVED, difference_and_interval
from gtrxl_jax.studies import Record, read, scores
from gtrxl_jax.studies.report import mean_entry, table

RESULTS = Path(__file__).parent / "results"
FEWEST = 3
"""With fewer seeds on a side, nothing is decided."""
HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "undecided", "not run"


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one or more cells, or a constant such as chance."""

    name: str
    cells: tuple[str, ...] = ()
    """Each STUDY/CELL; the score of a seed is the mean over them."""
    over: tuple[str, ...] = ()
    """Cells by whose score it is divided."""
    constant: float = np.nan
    score: str = ""
    """By default, that of the comparison."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A claim that the first group is above the second, or level with it."""

    what: str
    first: Group
    second: Group
    score: str = "success"
    level: bool = False
    margin: float = 0.1
    """A smaller difference does not matter: a tenth of a success, or of a goal."""
    fewer: bool = False
    """Whether a lower score is better."""
    decides: bool = True

    def values(self, group: Group) -> np.ndarray:
        """Return the score of each seed that has run in all cells of a group, `[S]`."""
        if not group.cells:
            return np.array([group.constant])
        score = group.score or self.score
        of, below = ([by_seed(c, score) for c in cells] for cells in (group.cells, group.over))
        seeds = sorted(set.intersection(*map(set, [*of, *below])))
        values_S = np.array([np.mean([cell[seed] for cell in of]) for seed in seeds])
        return values_S / [np.mean([c[s] for c in below]) for s in seeds] if below else values_S

    @property
    def seeds(self) -> int:
        """The number of seeds of the group that has fewer."""
        return min(len(self.values(group)) for group in (self.first, self.second) if group.cells)

    @property
    def difference(self) -> tuple[float, float]:
        """The difference of the means, positive where the first group is better, and the half-width
        of its 95 % interval; NaN without runs.
        """
        first_S, second_S = (self.values(group) for group in (self.first, self.second))
        if not (len(first_S) and len(second_S)):
            return np.nan, np.nan
        mean, half = difference_and_interval(first_S, second_S)
        if self.seeds < 2:  # of one seed, unlike of a constant, the spread is unknown
            half = np.float64(np.nan)
        return (-1 if self.fewer else 1) * float(mean), float(half)

    @property
    def verdict(self) -> str:
        """What the rule says."""
        if self.seeds < FEWEST:
            return f"{OPEN} ({self.seeds} seed{'s' * (self.seeds != 1)})"
        mean, half = self.difference
        if mean - half > (-self.margin if self.level else 0):
            return HOLDS
        if mean + half < (-self.margin if self.level else self.margin):
            # A task that both solve cannot tell them apart.
            return f"{OPEN} (both solve it)" if self.both_solve else FAILS
        return OPEN

    @property
    def digits(self) -> int:
        """The number of decimals of scores of this size."""
        return 2 if self.margin < 1 else 1

    @property
    def both_solve(self) -> bool:
        """Whether both groups have a mean success that counts as solved."""
        means = [np.mean(self.values(group)) for group in (self.first, self.second)]
        return self.score.startswith("success") and min(means) >= SOLVED

    @property
    def is_behind(self) -> bool:
        """Whether the first group is behind by more than the margin, be it by chance."""
        return self.difference[0] < -self.margin

    def entry(self, group: Group) -> str:
        """Format a group: its name, and the mean, 95 % interval and number of its seeds."""
        values_S = self.values(group)
        seeds = f" ({len(values_S)})" if group.cells else ""
        return f"{group.name} {mean_entry(values_S, self.digits)}{seeds}"

    def row(self) -> list[str]:
        """Return its row in the table of a claim."""
        known = [x for x in self.difference if not np.isnan(x)]
        return [
            self.what + (", level" if self.level else ""),
            self.entry(self.first),
            self.entry(self.second),
            " ± ".join(format_numbers(known, self.digits)),
            self.verdict if self.decides else f"beside: {self.verdict}",
        ]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a paper, its published figures, and the comparisons that test it."""

    name: str
    text: str
    published: str
    comparisons: tuple[Comparison, ...] = ()

    @property
    def deciding(self) -> list[Comparison]:
        """The comparisons that decide."""
        return [comparison for comparison in self.comparisons if comparison.decides]

    @property
    def verdict(self) -> str:
        """Whether all comparisons that decide hold, or how many do."""
        verdicts = [comparison.verdict for comparison in self.deciding]
        if not verdicts:
            return NOT_RUN
        if {*verdicts} == {HOLDS}:
            return HOLDS
        if len(verdicts) == 1:
            return verdicts[0]
        worst = FAILS if any(verdict.startswith(FAILS) for verdict in verdicts) else OPEN
        return f"{worst} ({verdicts.count(HOLDS)} of {len(verdicts)} hold)"

    @property
    def behind(self) -> list[str]:
        """The comparisons in which the first group is behind the second."""
        return [f"{one.what} ({one.second.name})" for one in self.comparisons if one.is_behind]

    @property
    def cells(self) -> dict[str, list[str]]:
        """The cells of each study that decide."""
        groups = [group for one in self.deciding for group in (one.first, one.second)]
        by_study: dict[str, list[str]] = {}
        for cell in dict.fromkeys(cell for group in groups for cell in (*group.cells, *group.over)):
            study, _, name = cell.partition("/")
            by_study.setdefault(study, []).append(name)
        return by_study

    @property
    def runs(self) -> list[Record]:
        """The runs that decide."""
        return [
            run
            for study, cells in self.cells.items()
            for cell in cells
            for run in records_of(study).get(cell, [])
        ]

    def row(self) -> list[str]:
        """Return its row in the table of all claims."""
        lead = self.deciding[:1]
        return [
            f"[{self.name}](#{self.name.lower()})",
            self.text,
            self.published,
            "; ".join(f"{one.entry(one.first)}, {one.entry(one.second)}" for one in lead),
            self.verdict,
            "; ".join(self.behind),
        ]

    def lines(self) -> list[str]:
        """Return the lines of its section: the claim, its comparisons, and the commands."""
        head = ["comparison", "first", "second", "difference", "verdict"]
        rows = table(head, [one.row() for one in self.comparisons])
        commands = "; ".join(f"`{command(*cells)}`" for cells in self.cells.items())
        blocks = [rows] * bool(self.comparisons) + [[commands]] * bool(commands)
        lines = [f"**{self.text}** Published: {self.published}."]
        return [*lines, *(line for block in blocks for line in ("", *block))]


@functools.cache
def records_of(study: str) -> dict[str, list[Record]]:
    """Return the records of each cell of a study, by the name of the cell."""
    by_name: dict[str, list[Record]] = {}
    for record in read(RESULTS / f"{study}.jsonl"):
        by_name.setdefault(", ".join(map(str, record["labels"].values())), []).append(record)
    return by_name


def share_of_right(run: Record, how: str = "") -> float:
    """Return the share of right items of Two-Colors after the longest time in an empty room."""
    after = rate_two_colors.after(rate_two_colors.EMPTY[-1], how)
    return float(rate_two_colors.share_of_right([run], after)[0])


DERIVED: dict[str, Callable[[Record], float]] = {
    "thousand steps": lambda run: (run["goal"]["steps"] or run["steps"]) / 1000,
    "correlation": lambda run: float(run["correlation"]["twice"]),
    "worse color": lambda run: min(scores([run], f"return/{c}")[0] for c in ("red", "green")),
    "share of right": share_of_right,
    "share of right, noise": lambda run: share_of_right(run, rate_two_colors.NOISE),
    "success at a quarter": lambda run: success_at(run, 0.25),
}
"""Scores that a record does not have as such. A run that has not reached its goal has all of its
steps, which is too few."""


def by_seed(cell: str, score: str) -> dict[int, float]:
    """Return a score of the runs of a cell that have it, by seed.

    Runs that have diverged have a success of 0.
    """
    study, _, name = cell.partition("/")
    diverged = 0.0 if score.startswith("success") else np.nan

    def measured(run: Record) -> float:
        value = float(run["scores"].get(score, np.nan))
        return diverged if np.isnan(value) and score in run["scores"] else value

    score_of = DERIVED.get(score, measured)
    values = {run["seed"]: score_of(run) for run in records_of(study).get(name, [])}
    return {seed: value for seed, value in values.items() if not np.isnan(value)}


def command(study: str, cells: list[str]) -> str:
    """Return the command that executes cells of a study."""
    cells = [*_sources(study, cells), *cells]
    runs = [records_of(study).get(cell, []) for cell in cells]
    before, _, part = study.partition("rate_tmaze_")
    program = f"{study}.py" if before else f"rate_tmaze.py {part}"
    seeds = max(map(len, runs))
    # Values of the labels, where these name no other cells.
    labels = [tuple(map(str, of_cell[0]["labels"].values())) for of_cell in runs if of_cell]
    values = [list(dict.fromkeys(column)) for column in zip(*labels, strict=True)]
    named = [
        cell
        for cell, (run, *_) in records_of(study).items()
        if all(str(x) in column for x, column in zip(run["labels"].values(), values, strict=True))
    ]
    words = list(itertools.chain(*values)) if {*named} == {*cells} else cells
    return f"python experiments/{program} --seeds {seeds} --only {shlex.join(words)}"


def _sources(study: str, cells: list[str]) -> list[str]:
    """Return the cells of a study that make the data of others: agents, and the sets they play."""
    labels = [runs[0]["labels"] for cell in cells if (runs := records_of(study).get(cell))]

    def makes_data(own: dict[str, str]) -> bool:
        where = {name: value for name, value in own.items() if name != "who" and value}
        return own.get("who") in ("agent", "data") and any(
            where.items() <= of_cell.items() for of_cell in labels
        )

    return [name for name, runs in records_of(study).items() if makes_data(runs[0]["labels"])]


Kind = str | tuple[str, str]
"""What stands for {} in the names of cells, and its name if another."""


def compare(
    what: str,
    cells: str | Sequence[str],
    first: Kind,
    second: Kind | Group,
    over: tuple[str, ...] = (),
    **options: Any,
) -> Comparison:
    """Return the comparison of two kinds of runs, or of one with a constant.

    Args:
      what: what is compared.
      cells: STUDY/CELL, or several, with {} in place of the kind.
      first: the kind that is claimed to be above, or level.
      second: the other, or a constant.
      over: cells by whose score it is divided.
      options: those of `Comparison`.
    """
    templates = (cells,) if isinstance(cells, str) else cells

    def group(kind: Kind) -> Group:
        value, name = (kind, kind) if isinstance(kind, str) else kind
        of, below = (tuple(cell.format(value) for cell in some) for some in (templates, over))
        return Group(name, of, below)

    other = second if isinstance(second, Group) else group(second)
    return Comparison(what, group(first), other, **options)


GTRXL, LSTM, GRU = ("gtrxl", "GTrXL"), ("lstm", "LSTM"), ("gru", "GRU")
RECENT = ("gtrxl, recency 2", "GTrXL, recency 2")
TRXL, TRXL_I = ("trxl", "TrXL"), ("trxl-i", "TrXL-I")
GATED = ("gru", "GTrXL")
GRU_GATE = ("gru", "GRU gate")
OTHER_GATES = [(name, f"{name} gate") for name in ("output", "highway", "sigtanh", "input")]
BIASED, UNBIASED = ("gru", "b = 2"), ("gru, bias 0", "b = 0")
"""As the study of depths and gates names them."""
RATES = ("0.001", "0.01")
DRAWS = "draws of hyperparameters, T-Maze of 50"
OUTPUT_GATE = OTHER_GATES[0]


def layers(*depths: int, rates: Sequence[str] = RATES) -> list[str]:
    """Return cells of the study of depths and gates."""
    return [f"depth_and_gates/{depth}, {rate}, {{}}" for depth in depths for rate in rates]


MEMORY = [
    *(
        f"memory_worlds/MiniGrid-Memory {maze}, {{}}"
        for maze in ("9 x 9", "9 x 9, 0.001", "9 x 9, images", "13 x 13")
    ),
    *(f"memory_horizon/whole, {{}}, {corridor}" for corridor in (25, 50, 100, 200)),
    *(
        f"default_settings/{task}, {{}}{algorithm}"
        for task in ("MemoryChain-v0 of 50", "MemoryChain-v0 of 100")
        for algorithm in ("", ", V-MPO")
    ),
]
"""All tasks with a success that need memory and have five seeds of GTrXL and of LSTM."""
WITHIN = [cell for cell in MEMORY if "Chain" not in cell and "200" not in cell]
"""Those whose cue lies within the unroll."""
REACTIVE = {"CartPole-v1": 50.0, "Pendulum-v1": 20.0, "Acrobot-v1": 10.0, "Catch-bsuite": 0.1}
"""With a tenth of the goal."""
GAMES = {"Breakout": 2.0, "SpaceInvaders": 9.0}
"""With a tenth of a feed-forward PPO's return."""
NUMPADS = {"Numpad 2 x 2": 9.5, "Numpad 3 x 3": 7.6, "Numpad 2 x 2, sphere": 8.2}
"""With a tenth of a perfect memory's return."""
ROCKS = {
    "V-MPO": "V-MPO",
    "V-MPO, value cost 2": "V-MPO, value cost 2",
    "PPO": "PPO, 64 environments",
}
WITHOUT_MEMORY = {
    "Pong": (2.1, "replay"),
    "Breakout": (0.2, "replay"),
    "HalfCheetah-v5": (168, "medium-expert", "medium", "medium-replay"),
    "Hopper-v5": (274, "medium-expert", "medium", "medium-replay"),
    "Walker2d-v5": (181, "medium-expert", "medium", "medium-replay"),
}
"""With a tenth of a perfect score, or of what the best agent gains over random actions, and the
data sets."""
CHANCE = Group("chance", constant=0.5)
BESIDE: dict[str, Any] = {"decides": False}
RETURN: dict[str, Any] = {"score": "return"}
# With a tenth of what an oracle reaches.
ROCKSAMPLE: dict[str, Any] = {"score": "discounted_return", "margin": 5.5, "decides": False}
SPEED: dict[str, Any] = {"score": "thousand steps", "fewer": True, "margin": 10.0, "decides": False}

GTRXL_CLAIMS = (
    Claim(
        "G1",
        "The canonical transformer (TrXL) fails to learn; normalization first (TrXL-I) helps, and "
        "gates (GTrXL) help most.",
        "TrXL 5.0 ± 0.2, TrXL-I 107.0 ± 1.2, GTrXL 117.6 ± 0.3 (Table 1, DMLab-30, human "
        "normalized)",
        (
            *(
                compare(f"8 layers, learning rate {rate}", layers(8, rates=[rate]), *pair)
                for rate in RATES
                for pair in ((GATED, TRXL), (TRXL_I, TRXL), (GATED, TRXL_I))
            ),
            *(
                compare(f"2 layers, {rate}", layers(2, rates=[rate]), GATED, TRXL, **BESIDE)
                for rate in RATES
            ),
            compare(
                "2 layers, T-Maze of 200", "memory_horizon/whole, {}, 200", GTRXL, TRXL, **BESIDE
            ),
            compare(
                "2 layers, default job, thousand steps to 0.95",
                "cores_on_default_job/{}",
                GTRXL,
                TRXL,
                **SPEED,
            ),
        ),
    ),
    Claim(
        "G2",
        "Above an LSTM where memory counts, level where it does not.",
        "GTrXL 117.6 ± 0.3, LSTM 99.3 ± 1.0 (Table 1); the gap is in the levels that need memory "
        "(Figure 2)",
        (
            compare(f"{len(MEMORY)} tasks with memory", MEMORY, GTRXL, LSTM),
            compare(f"{len(WITHIN)} of them, cue within the unroll", WITHIN, GTRXL, LSTM),
            *(
                compare(
                    f"{task.partition('-')[0]}, return",
                    f"default_settings/{task}, {{}}",
                    GTRXL,
                    LSTM,
                    level=True,
                    margin=margin,
                    **RETURN,
                )
                for task, margin in REACTIVE.items()
            ),
            *(
                compare(cell.partition("/")[2].replace(", {}", ""), cell, GTRXL, LSTM, **BESIDE)
                for cell in MEMORY
                if "T-Maze" not in cell and "horizon" not in cell
            ),
            compare(
                "MiniGrid-MemoryS9",
                "default_settings/MiniGrid-MemoryS9-v0, {}",
                GTRXL,
                LSTM,
                **BESIDE,
            ),
            *(
                compare(
                    f"{game} of MinAtar, return",
                    f"default_settings/{game}-MinAtar, {{}}",
                    GTRXL,
                    LSTM,
                    level=True,
                    margin=margin,
                    **RETURN | BESIDE,
                )
                for game, margin in GAMES.items()
            ),
            compare(
                "Endless T-Maze, 5 corridors",
                "rewriting/corridors, 5 fixed, {}",
                GTRXL,
                LSTM,
                **BESIDE,
            ),
            *(
                compare(
                    "T-Maze of 200, unroll of 128 and of 256",
                    "memory_horizon/whole, {}, 200",
                    GTRXL,
                    (f"{core}, one layer, unroll 256", name),
                    **BESIDE,
                )
                for core, name in (GRU, LSTM)
            ),
            *(
                compare(
                    f"RockSample, {what}, discounted return",
                    f"rocksample/{{}}, {agent}",
                    "GTrXL",
                    "GRU",
                    **ROCKSAMPLE,
                )
                for what, agent in ROCKS.items()
            ),
            compare(
                "Craftax-Symbolic, return",
                "craftax_symbolic/{}",
                "GTrXL",
                Group("published GRU", constant=5.2),
                margin=0.5,
                **RETURN | BESIDE,
            ),
            *(
                compare(
                    f"Memory Maze, images of {images}{rate}, targets found",
                    f"memory_maze_online/MemoryMaze-9x9-v0, {images}, {{}}{rate}",
                    gtrxl,
                    LSTM,
                    margin=2.5,
                    **RETURN | BESIDE,
                )
                for images, gtrxl, rate in (
                    ("64 x 64", GTRXL, ""),
                    ("36 x 36", RECENT, ""),
                    ("36 x 36", RECENT, ", 0.0002"),
                )
            ),
        ),
    ),
    Claim(
        "G3",
        "Scales better than an LSTM with the memory that a task needs.",
        "curves only (Figure 3): on Numpad of 2 x 2, 3 x 3 and 4 x 4 pads, LSTM is low on all, "
        "GTrXL high, and lower on 4 x 4",
        (
            *(
                compare(world, f"memory_worlds/{world}, {{}}", GTRXL, LSTM, margin=margin, **RETURN)
                for world, margin in NUMPADS.items()
            ),
            compare(
                "kept from 2 x 2 to 3 x 3",
                "memory_worlds/Numpad 3 x 3, {}",
                GTRXL,
                LSTM,
                over=("memory_worlds/Numpad 2 x 2, {}",),
                **RETURN,
            ),
            compare(
                "Numpad 2 x 2",
                "memory_worlds/Numpad 2 x 2, {}",
                GTRXL,
                GRU,
                margin=9.5,
                **RETURN | BESIDE,
            ),
            *(
                compare(f"T-Maze of {n}", f"memory_horizon/whole, {{}}, {n}", GTRXL, LSTM, **BESIDE)
                for n in (25, 50, 100, 200, 400)
            ),
        ),
    ),
    Claim(
        "G4",
        "Of the gates, the GRU's is the best.",
        "GRU 117.6 ± 0.3, output 112.8 ± 0.8, sigtanh 101.0 ± 1.3, highway 90.9 ± 12.9, input "
        "51.2 ± 13.2 (Table 1)",
        (
            *(compare("8 layers", layers(8), GRU_GATE, gate) for gate in OTHER_GATES),
            compare(DRAWS, "sensitivity/{}", GRU_GATE, OUTPUT_GATE, **BESIDE),
            *(
                compare(
                    "8 layers, 0.001, thousand steps to 0.95",
                    layers(8, rates=RATES[:1]),
                    GRU_GATE,
                    gate,
                    **SPEED,
                )
                for gate in OTHER_GATES
            ),
        ),
    ),
    Claim(
        "G5",
        "As robust to hyperparameters as an LSTM, and more than other transformers.",
        "of 25 draws, GTrXL reaches a human's score of 8 in 10, no other model in any; diverged: "
        "LSTM, TrXL and GTrXL 0 %, TrXL-I 16 %, output gate 12 % (Figure 5, Table 3, apple maze, "
        "two billion steps)",
        (
            compare(DRAWS, "sensitivity/{}", GATED, LSTM, level=True),
            *(compare(DRAWS, "sensitivity/{}", GATED, kind) for kind in (TRXL, TRXL_I)),
            compare(DRAWS, "sensitivity/{}", GATED, OUTPUT_GATE, **BESIDE),
            *(
                compare(
                    "nine settings",
                    layers(2, 4, 8, rates=("0.0001", *RATES)),
                    GATED,
                    other,
                    **BESIDE,
                )
                for other in (TRXL, TRXL_I)
            ),
        ),
    ),
    Claim(
        "G6",
        "The gain is not one of parameters: with as many or fewer, GTrXL is as good as the best "
        "other.",
        "Thin GTrXL 111.5 ± 0.6 with 22.4 million, output gate 112.8 ± 0.8 with 34.9, TrXL-I "
        "107.0 ± 1.2 with 28.6 (Table 2)",
        tuple(
            compare(
                "T-Mazes of 25 to 200",
                [f"memory_horizon/whole, {{}}, {n}" for n in (25, 50, 100, 200)],
                GTRXL,
                other,
                level=True,
            )
            for other in (TRXL_I, TRXL)
        ),
    ),
    Claim(
        "G7",
        "A gate bias that starts near the identity makes learning faster and more stable.",
        "curves only (Figure 7, apple maze, 4 layers, 10 runs each): a large gap in favor of b = 2",
        (
            *(
                compare(f"8 layers, {rate}", layers(8, rates=[rate]), BIASED, UNBIASED)
                for rate in RATES
            ),
            compare(DRAWS, "sensitivity/{}", BIASED, UNBIASED),
            compare(
                f"{DRAWS}, success at a quarter of training",
                "sensitivity/{}",
                BIASED,
                UNBIASED,
                score="success at a quarter",
                **BESIDE,
            ),
            compare("4 layers", layers(4), BIASED, UNBIASED, **BESIDE),
            compare(
                "8 layers, 0.001, thousand steps to 0.95",
                layers(8, rates=RATES[:1]),
                BIASED,
                UNBIASED,
                **SPEED,
            ),
            compare(
                "RockSample, POBAX's settings, discounted return",
                "rocksample/GTrXL, {}early",
                ("", "b = 2"),
                ("gate bias 0, ", "b = 0"),
                **ROCKSAMPLE,
            ),
        ),
    ),
    Claim(
        "G8",
        "Above MERLIN, an external memory, on DMLab-30.",
        "GTrXL 117.6 ± 0.3 after 10 billion steps, MERLIN 115.2 after 100 billion (Table 1)",
        (
            compare(
                "default job, thousand steps to 0.95",
                "cores_on_default_job/{}",
                GTRXL,
                ("dnc", "DNC"),
                **SPEED,
            ),
        ),
    ),
)


def t_maze(study: str, first: Kind, second: Kind | Group, steps: int, **options: Any) -> Comparison:
    """Return a comparison of RATE's T-Mazes of some steps."""
    cell, score = f"rate_tmaze_{study}/{{}}", f"success/{steps}"
    return compare(f"{steps} steps", cell, first, second, score=score, **options)


TOKENS, NOISE = "tokens", ("tokens, noise when acting", "noise")
AT_ONCE = "all segments at once"
RATE, DT = ("RATE, 3 segments", "RATE"), "DT"
VALVES = ("none", "g", "gru", "ca-1", "lstm")

RATE_CLAIMS = (
    Claim(
        "R1",
        "RATE solves T-Mazes much longer than in training, where a Decision Transformer (DT) "
        "guesses.",
        "trained on 150 steps: RATE 0.95 at 360 and 0.90 at 900 steps, DT 0.5 beyond its context "
        "(Figure 5 a, Table 3)",
        (
            t_maze("corridors", "RATE-5", "DT-5", 360),
            t_maze("corridors", "RATE-5", CHANCE, 900),
            t_maze("corridors", "RATE-3", "DT-3", 360, **BESIDE),
            t_maze("corridors", "RATE-5, cache of 90", CHANCE, 9600, **BESIDE),
            *(
                compare(
                    f"{steps} steps, trained on 30",
                    "tmaze_million/{}",
                    ("RATE", "RATE, cache of 30"),
                    CHANCE,
                    score=f"success/{steps}",
                    **BESIDE,
                )
                for steps in (90, 1000)
            ),
            *(
                compare(
                    "1,000,000 steps, trained on 100",
                    "tmaze_million/{}, ten segments, dropout",
                    kind,
                    CHANCE,
                    score="success/1000000",
                    **BESIDE,
                )
                for kind in (("RATE", "RATE, cache of 30"), "RATE, tokens only")
            ),
        ),
    ),
    Claim(
        "R2",
        "The cue is in the memory tokens: with noise in their place RATE guesses.",
        "success falls to 0.5 (Figure 5 b)",
        (
            t_maze("memory", TOKENS, NOISE, 150),
            t_maze("memory", TOKENS, NOISE, 900, **BESIDE),
            compare(
                "Two-Colors, share of right items, empty room",
                "rate_two_colors/{}",
                ("RATE", "tokens"),
                Group("noise", ("rate_two_colors/RATE",), score="share of right, noise"),
                score="share of right",
            ),
        ),
    ),
    Claim(
        "R3",
        "A curriculum from short to long episodes helps; RATE learns without, but not as well.",
        "curves only (Figure 5 c)",
        (
            t_maze("curriculum", "curriculum", AT_ONCE, 150),
            t_maze("curriculum", AT_ONCE, CHANCE, 150),
        ),
    ),
    Claim(
        "R4",
        "Memory tokens and the cache of hidden states each help a little, together most.",
        "curves only (Figure 5 d, Minigrid.Memory)",
        (
            t_maze("memory", "both", TOKENS, 900),
            t_maze("memory", "both", "cache", 900),
            t_maze("memory", TOKENS, CHANCE, 900),
            t_maze("memory", "cache", CHANCE, 900),
        ),
    ),
    Claim(
        "R5",
        "The valve keeps the memory: CA-2 is the best, and above no valve.",
        "at 900 steps: CA-2 0.90, G 0.65, none 0.61, GRU 0.55, CA-1 0.49, LSTM 0.47 (Table 3)",
        tuple(
            t_maze("valves", f"ca-2, {gradient}", f"{valve}, {gradient}", 900, decides=decides)
            for gradient, decides in (("detached", True), ("whole gradient", False))
            for valve in VALVES
        ),
    ),
    Claim(
        "R6",
        "In episodes longer than its context, RATE recalls its first action, and DT chooses one "
        "always.",
        "correlation of the two probabilities: RATE +0.80, DT -0.97 (Figure 7)",
        tuple(
            compare(what, "rate_associative/{}", "RATE", DT, score=score)
            for what, score in (("success", "twice"), ("correlation", "correlation"))
        ),
    ),
    Claim(
        "R7",
        "Level with DT or better without a need for memory, on Atari and MuJoCo.",
        "above DT in 3 of 4 games and in 9 of 9 MuJoCo data sets (Tables 1 and 2)",
        tuple(
            compare(
                f"{task}, {data}, return",
                f"offline_control/{task}, {data}, {{}}",
                "RATE",
                DT,
                level=True,
                margin=margin,
                **RETURN,
            )
            for task, (margin, *sets) in WITHOUT_MEMORY.items()
            for data in sets
        ),
    ),
    Claim(
        "R8",
        "Above DT in mazes of MiniGrid-Memory of any size.",
        "31 and 61 cells: RATE 0.73 and 0.63, DT 0.35 and 0.17 (Figure 5 d)",
        (
            *(
                compare(f"mazes of {size}", "rate_minigrid/{}", RATE, DT, score=f"success/{size}")
                for size in ("31", "61, 95 steps", "121", "241")
            ),
            *(
                compare(
                    f"mazes of {size}",
                    "rate_minigrid/{}",
                    "RATE, 5 segments",
                    other,
                    score=f"success/{size}",
                    **BESIDE,
                )
                for size in (121, 241)
                for other in (DT, ("BC-LSTM, 6000 updates", "BC-LSTM"))
            ),
        ),
    ),
    Claim(
        "R9",
        "RATE remembers the color of the pillar; DT forgets it, and takes items of one color.",
        "red and green: RATE 42.2 and 36.3, DT 6.7 and 36.4 (Figure 3, ViZDoom)",
        tuple(
            compare(
                what,
                "rate_two_colors/{}",
                "RATE",
                other,
                score=score,
                margin=margin,
                decides=other == DT,
            )
            for what, score, margin, other in (
                ("return, worse color", "worse color", 4.0, DT),
                ("share of right items, empty room", "share of right", 0.1, DT),
                ("return, worse color", "worse color", 4.0, "BC-LSTM"),
            )
        ),
    ),
    Claim(
        "R10",
        "Above DT in Memory Maze.",
        "RATE 1.91, DT 1.45 (section 4.2)",
        tuple(
            compare(
                f"data of {player}",
                f"rate_memory_maze/{player.split()[1]}, {{}}",
                "RATE",
                other,
                margin=2.5,  # a tenth of what the oracle finds
                decides=(player, other) == ("a walker", DT),
                **RETURN,
            )
            for player in ("a walker", "an explorer")
            for other in (DT, "BC-LSTM")
        ),
    ),
)

CLAIMS = (*GTRXL_CLAIMS, *RATE_CLAIMS)


def summary() -> list[str]:
    """Return the table of all claims."""
    head = ["", "claim", "published", "measured here", "verdict", "behind by more than a margin"]
    return table(head, [claim.row() for claim in CLAIMS])


def hours() -> list[str]:
    """Return the table of the runs that decide each claim, with their hours."""
    rows = []
    for claim in CLAIMS:
        seconds = [float(run["seconds"]) for run in claim.runs if "seconds" in run]
        known = f"{sum(seconds) / 3600:.1f}" if seconds else "not recorded"
        if claim.runs:
            rows.append([f"[{claim.name}](claims.md#{claim.name.lower()})", len(claim.runs), known])
    return table(["claim", "runs", "hours"], rows)
