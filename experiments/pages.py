"""Write all reports, and the tables of the pages, from the records: `make results`.

The table of commands is from the command line's parsers.

A page marks the place of a table, one of `TABLES`, by two comments:

    <!-- table: cores_on_default_job -->
    <!-- end -->
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import algorithms
import claims
import cores_on_default_job
import craftax_symbolic
import default_job
import default_settings
import depth_and_gates
import host_learning
import memory_horizon
import memory_maze_online
import memory_worlds
import numpy as np
import offline_control
import popgym_baselines
import popgym_easy
import rate_associative
import rate_memory_maze
import rate_minigrid
import rate_tmaze
import rate_two_colors
import rate_two_colors_doom
import rewriting
import rocksample
import sensitivity
import tmaze_million
import trials

from gtrxl_jax.cli import catalog
from gtrxl_jax.files import atomic
from gtrxl_jax.statistics import SOLVED
from gtrxl_jax.studies import Record, by_cell, read, scores, to_goal
from gtrxl_jax.studies.report import fill_tables, mean_entry, median, table

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "docs/claims.md",
        "docs/cli.md",
        "docs/cores.md",
        "docs/reproducing.md",
        "docs/results.md",
        "docs/results-offline.md",
        "docs/results-online.md",
        "docs/environments/minigrid_memory.md",
    )
]
STUDIES = (
    algorithms,
    cores_on_default_job,
    craftax_symbolic,
    default_job,
    default_settings,
    depth_and_gates,
    host_learning,
    memory_horizon,
    memory_maze_online,
    memory_worlds,
    offline_control,
    popgym_baselines,
    popgym_easy,
    rate_associative,
    rate_memory_maze,
    rate_minigrid,
    rate_two_colors,
    rate_two_colors_doom,
    rewriting,
    rocksample,
    sensitivity,
    tmaze_million,
    trials,
)
T_MAZES = ("corridors", "curriculum", "memory", "valves")
"""The studies of `rate_tmaze`."""


def cells(study: str, *labels: str) -> Callable[..., list[Record]]:
    """Return the function from values of some labels to the records of a study that have them."""
    found = by_cell(read(RESULTS / f"{study}.jsonl"), *labels)
    return lambda *values: found.get(values if len(labels) > 1 else values[0], [])


def each(
    runs: Sequence[Record], score: str = "success", digits: int = 2, in_order: bool = False
) -> str:
    """Return the score of each run, from the lowest on, or in the order of the seeds."""
    score_S = scores(runs, score)
    score_S = score_S if in_order else np.sort(score_S)
    return ", ".join(success(x) if score == "success" else f"{x:.{digits}f}" for x in score_S)


def success(value: float) -> str:
    """Format a success, such that one below the goal is shown as such."""
    return f"{value:.3f}" if value < SOLVED <= round(value, 2) else f"{value:.2f}"


def solvers(runs: Sequence[Record]) -> list[Record]:
    """Return the runs whose last evaluation reaches their goal."""
    return [
        run for run in runs if scores([run], run["goal"]["score"]) >= float(run["goal"]["value"])
    ]


def count(runs: Sequence[Record]) -> str:
    """Return the runs that have solved a task, of all: `4/5`; empty without runs."""
    return f"{len(solvers(runs))}/{len(runs)}" if runs else ""


def reached(runs: Sequence[Record], *, seconds: bool = False) -> str:
    """Return `4/5 (0.93), 604,000`: the runs that have solved a task, the scores of the others if
    some have, and the median steps to the goal over the runs that reached it at any time.
    """
    others = [run for run in runs if run not in solvers(runs)]
    text = count(runs)
    if 0 < len(others) < len(runs):
        text += f" ({each(others, runs[0]['goal']['score'], digits=0)})"
    return ", ".join(filter(None, [text, thousands(runs), *([time(runs)] * seconds)]))


def thousands(runs: Sequence[Record]) -> str:
    """Return the median steps to the goal, of the runs that reached it, in whole thousands."""
    steps_S = to_goal(runs)
    known = np.isfinite(steps_S).any()
    return f"{1000 * round(float(np.nanmedian(steps_S)) / 1000):,}" if known else ""


def time(runs: Sequence[Record]) -> str:
    """Return the median time to the goal."""
    return f"{median(to_goal(runs, 'seconds'), digits=0)} s"


def rows(entry: Callable[..., str], lines: dict[str, Any], columns: Iterable[Any]) -> list[Any]:
    """Return the rows of a table whose entries depend on a value of a line and of a column."""
    columns = list(columns)
    return [
        [label, *(entry(value, column) for column in columns)] for label, value in lines.items()
    ]


def memory_horizon_table() -> list[str]:
    """Solved T-Mazes, and steps to it."""
    of = cells("memory_horizon", "study", "core", "corridor")
    cores = {
        "GTrXL (GRU)": "gtrxl",
        "TrXL-I": "trxl-i",
        "TrXL": "trxl",
        "GRU": "gru",
        "LSTM": "lstm",
        "GTrXL without memory": memory_horizon.CUT_OFF,
        "GRU, one layer": "gru, one layer",
        "LSTM, one layer": "lstm, one layer",
        "GRU, one layer, unroll of 256": "gru, one layer, unroll 256",
        "LSTM, one layer, unroll of 256": "lstm, one layer, unroll 256",
    }

    def entry(core: str, corridor: int) -> str:
        runs = of("whole", core, corridor)
        return ", ".join(filter(None, [count(runs), thousands(solvers(runs))]))

    corridors = list(memory_horizon.CORRIDORS)
    head = ["core", *(f"L = {n}" for n in corridors)]
    return table(head, rows(entry, cores, corridors))


def default_settings_table() -> list[str]:
    """Tasks with the default settings: solved and steps to it, or the return of each seed."""
    of = cells("default_settings", "task", "core")
    names = {
        "CartPole-v1": "CartPole",
        "Pendulum-v1": "Pendulum",
        "Acrobot-v1": "Acrobot",
        "MountainCarContinuous-v0": "MountainCarContinuous",
        "Catch-bsuite": "Catch",
        "MemoryChain-v0 of 50": "MemoryChain of 50, 3 bits",
        "MemoryChain-v0 of 100": "MemoryChain of 100, 3 bits",
        "AssociativeRetrieval-v0": "Action Associative Retrieval, online, 7 waits",
        "MiniGrid-MemoryS9-v0": "MiniGrid-MemoryS9, view of 3, three seeds",
        "MiniGrid-MemoryS13-v0": "MiniGrid-MemoryS13, view of 3",
        "Breakout-MinAtar": "Breakout of MinAtar",
        "SpaceInvaders-MinAtar": "SpaceInvaders of MinAtar",
    }
    lines = []
    for task, name in names.items():
        score, goal = default_settings.TASKS[task].goal
        is_game = task in default_settings.GAMES
        lines.append(
            [
                name,
                "none" if is_game else f"{score} {goal:g}",
                *(
                    each(of(task, core), "return", 0, in_order=True)
                    if is_game
                    else reached(of(task, core))
                    for core in default_settings.AGENTS
                ),
            ]
        )
    head = ["task", "goal", "GTrXL", "GTrXL, RND", "LSTM", "GTrXL, V-MPO", "LSTM, V-MPO"]
    return table(head, lines)


def algorithms_table() -> list[str]:
    """Tasks of V-MPO, PPO and R2D2: solved, steps and seconds to it."""
    of = cells("algorithms", "task", "algorithm")
    names = {
        f"{name}, {task.goal[0]} {task.goal[1]:g}": name for name, task in algorithms.TASKS.items()
    }

    def entry(task: str, algorithm: str) -> str:
        runs = of(task, algorithm)
        return reached(runs, seconds=True) if runs else "continuous"

    return table(["task", "V-MPO", "PPO", "R2D2"], rows(entry, names, ("vmpo", "ppo", "r2d2")))


def popgym_table() -> list[str]:
    """Returns in POPGym, beside those published."""
    of = cells("popgym_baselines", "task", "core")
    lines = [
        [
            name.removesuffix("-v0"),
            f"{task.total_steps:,}",
            *(each(of(name, core), "return") for core in ("gtrxl", "gru", "mingru", "agalite")),
            f"{task.gru:.2f}",
            f"{task.best:.2f}",
        ]
        for name, task in popgym_baselines.TASKS.items()
    ]
    cores = ("GTrXL", "GRU", "minGRU", "AGaLiTe")
    return table(["task", "steps", *cores, "published GRU", "best published"], lines)


def popgym_easy_table() -> list[str]:
    """Best mean returns during training in all of POPGym's tasks at Easy."""
    of = cells("popgym_easy", "task", "core")

    def entry(task: str, core: str) -> str:
        return ", ".join(f"{value:.2f}" for value in sorted(popgym_easy.best(of(task, core))))

    published = popgym_easy.PUBLISHED
    higher = f", {popgym_easy.HIGHER}"
    names = {
        "GTrXL": "gtrxl",
        "GRU": "gru",
        f"GTrXL{higher}": f"gtrxl{higher}",
        f"GRU{higher}": f"gru{higher}",
    }
    return table(
        ["task", *names, "published GRU", "best published"],
        [
            [
                task.removesuffix("Easy-v0"),
                *(entry(task, core) for core in names.values()),
                *([f"{score:.2f}" for score in published[task]] if task in published else ["", ""]),
            ]
            for task in popgym_easy.TASKS
        ],
    )


def rocksample_table() -> list[str]:
    """Discounted returns in RockSample, of each seed in its order."""
    of = cells("rocksample", "agent")
    lines = {"GTrXL": "GTrXL", "GTrXL, swapped second gate": rocksample.SWAPPED, "GRU": "GRU"}
    columns = {
        "V-MPO, default settings": ", V-MPO",
        "V-MPO, `algorithm.value-cost 2`": ", V-MPO, value cost 2",
        "PPO, 64 environments": ", PPO, 64 environments",
        "PPO, POBAX's settings": "",
    }

    def entry(agent: str, suffix: str) -> str:
        runs = of(agent + suffix)
        text = each(runs, rocksample.SCORE, 1, in_order=True)
        steps = rocksample.BATCH_STEPS if "environments" in suffix else rocksample.TOTAL_STEPS
        shorter = runs and runs[0]["steps"] < 0.9 * steps
        return f"{text} ({runs[0]['steps'] / 1e6:.1f} million steps)" if shorter else text

    body = rows(entry, lines, columns.values())
    published = (rocksample.PUBLISHED.get(agent, "") for agent in lines.values())
    return table(
        ["", *columns, "published"], [[*row, p] for row, p in zip(body, published, strict=True)]
    )


def rewriting_table() -> list[str]:
    """Success in the Endless T-Maze of each seed, and in corridors three times as long."""
    of = cells("rewriting", "study", "task", "core")
    mazes = [maze for maze in rewriting.MAZES if of("corridors", maze, "gtrxl")]
    longer = f"success/5 of {3 * rewriting.LENGTH}"
    cores = {
        "GTrXL": "gtrxl",
        "GTrXL, swapped second gate": "gtrxl, swapped",
        "TrXL": "trxl",
        "LSTM": "lstm",
        "GRU": "gru",
        "minGRU": "mingru",
        "FFM": "ffm",
        "Mamba-2": "mamba2",
        "without memory": "memoryless",
    }
    columns = [(maze, "success") for maze in mazes] + [("5 fixed", longer)]
    names = [maze.replace(" ", ", ") for maze in mazes] + ["5, of 30 moves instead of 10"]

    def entry(core: str, column: tuple[str, str]) -> str:
        maze, score = column
        return each(of("corridors", maze, core), score)

    return table(["corridors", *names], rows(entry, cores, columns))


def rewriting_causes_table() -> list[str]:
    """Success in the Endless T-Maze of each seed, with what may make a GTrXL fail.

    And of agents trained on five corridors in the largest number of them.
    """
    of = cells("rewriting", "study", "task", "core")
    most = max(rewriting.CORRIDORS)

    def entry(core: str, column: tuple[str, str]) -> str:
        maze, score = column
        runs = of("corridors" if core in rewriting.CORES else "causes", maze, core)
        return each(runs, score)

    mazes = [(maze, "success") for maze in ("1 fixed", "5 fixed", "5 uniform")]
    columns = [*mazes, ("5 fixed", f"success/{most} of {rewriting.LENGTH}")]
    names = [*(maze.replace(" ", ", ") for maze, _ in mazes), f"{most}, after 5, fixed"]
    cores = {core: core for core in ("gtrxl", "lstm", *rewriting.CAUSES)}
    tried = {core: core for core in cores if any(entry(core, column) for column in columns)}
    return table(["corridors", *names], rows(entry, tried, columns))


def depth_and_gates_table() -> list[str]:
    """Seeds solved at the two higher learning rates, by depth."""
    of = cells("depth_and_gates", "core", "depth", "rate")
    cores = {
        "TrXL": "trxl",
        "TrXL-I": "trxl-i",
        "GTrXL, input gate (without a bias)": "input",
        "GTrXL, output gate": "output",
        "GTrXL, highway gate": "highway",
        "GTrXL, sigtanh gate": "sigtanh",
        "GTrXL, GRU gate, b = 2": "gru",
        "GTrXL, GRU gate, b = 0": "gru, bias 0",
    }

    def entry(core: str, depth: int) -> str:
        return ", ".join(count(of(core, depth, rate)) for rate in (0.001, 0.01))

    depths = depth_and_gates.DEPTHS
    return table(["core", *(f"{n} layers" for n in depths)], rows(entry, cores, depths))


def memory_worlds_table() -> list[str]:
    """Successes in MiniGrid-Memory and returns in Numpad, of each seed."""
    of = cells("memory_worlds", "world", "core")
    agents = {
        "perfect memory": memory_worlds.PERFECT,
        "GTrXL (GRU), 2 layers, memory of 64": "gtrxl",
        "GRU, 1 layer": "gru",
        "LSTM, 1 layer": "lstm",
        "random": memory_worlds.RANDOM,
    }
    mazes = [f"MiniGrid-Memory 9 x 9{suffix}" for suffix in ("", ", 0.001", ", images")]

    def entry(agent: str, world: str) -> str:
        if world in mazes:
            return each(of(world, agent))
        return each(of(world, agent), "return", 1 if agent == memory_worlds.RANDOM else 0)

    return table(
        [
            "agent",
            "MiniGrid-Memory 9 x 9, view of 3: success of each seed",
            "at a learning rate of 0.001",
            "the same, from images",
            "Numpad 2 x 2: return of each seed",
        ],
        rows(entry, agents, (*mazes, "Numpad 2 x 2")),
    )


def rate_corridors_table() -> list[str]:
    """Mean success of RATE and DT in corridors, with the paper's."""
    of = cells("rate_tmaze_corridors", "model")
    models = {
        "RATE with a cache of 90 tokens, trained on 150": "RATE-5, cache of 90",
        "RATE, tokens only, trained on 150": "RATE-5",
        "RATE, tokens only, trained on 90": "RATE-3",
        "DT, trained on 150": "DT-5",
        "DT, trained on 90": "DT-3",
    }
    lengths = {"30 to 90": (30, 60, 90), **{str(n): (n,) for n in (150, 360, 900, 9600)}}

    def entry(model: str, lengths: Sequence[int]) -> str:
        """Return the mean, once if it is that of all lengths."""
        names = [f"success/{n}" for n in lengths if f"success/{n}" in of(model)[0]["scores"]]
        return "; ".join(dict.fromkeys(mean_entry(scores(of(model), name)) for name in names))

    body = rows(entry, models, lengths.values())
    study = rate_tmaze.study("corridors", rate_tmaze.preset("default"))
    published = zip(map(str, rate_tmaze.PAPER), study["RATE-5"].published, strict=True)
    paper = {length: f"{value:.2f}" for length, value in published}
    body.insert(2, ["RATE paper, trained on 150", *(paper.get(name, "") for name in lengths)])
    return table(["model", *lengths], body)


def tmaze_million_table() -> list[str]:
    """Success of each seed in corridors of up to a million steps."""
    of = cells("tmaze_million", "model")
    lengths = {f"{n:,}": f"success/{n}" for n in (*tmaze_million.SHORT, *tmaze_million.LONG)}

    def entry(model: str, score: str) -> str:
        return each([run for run in of(model) if score in run["scores"]], score)

    models = {model: model for model in tmaze_million.MODELS if of(model)}
    return table(["model", *lengths], rows(entry, models, lengths.values()))


def rate_valves_table() -> list[str]:
    """Mean success of RATE's valves at 900 steps, with the paper's."""
    of = cells("rate_tmaze_valves", "model")
    study = rate_tmaze.study("valves", rate_tmaze.preset("default"))
    names = {
        "ca-2": "valve CA-2",
        "ca-1": "valve CA-1",
        "g": "valve G",
        "gru": "valve GRU",
        "lstm": "valve LSTM",
        "none": "no valve",
    }
    lines = [
        [
            name,
            *(
                mean_entry(scores(of(f"{valve}, {gradient}"), "success/900"))
                for gradient in rate_tmaze.GRADIENTS
            ),
            f"{study[f'{valve}, detached'].published[-1]:.2f}",
        ]
        for valve, name in names.items()
    ]
    return table(["success at 900 steps", *rate_tmaze.GRADIENTS, "paper, detached"], lines)


def rate_mazes_table() -> list[str]:
    """Success in mazes of each seed."""
    of = cells("rate_minigrid", "model")
    models = {
        "RATE, 5 segments of 18": "RATE, 5 segments",
        "RATE, 3 segments of 30": "RATE, 3 segments",
        "DT, the last 90 steps": "DT",
        "BC-LSTM": "BC-LSTM",
        "BC-LSTM, 6,000 updates": "BC-LSTM, 6000 updates",
        "oracle": "oracle",
    }
    small, others = (11, 21, 31, 41), (61, 81, 121, 241, rate_minigrid.CAPPED)

    def entry(model: str, sizes: Sequence[Any]) -> str:
        success_NS = [scores(of(model), f"success/{size}") for size in sizes]
        return ", ".join(f"{x:.2f}" for x in np.sort(np.min(success_NS, axis=0)))

    head = ["model", "11 to 41, the lowest of each seed", *others]
    return table(head, rows(entry, models, [small, *([size] for size in others)]))


def memory_maze_online_table() -> list[str]:
    """Targets found in Memory Maze, of each seed, also by agents that forget."""
    of = cells("memory_maze_online", "images", "core")
    lines = {
        f"{core.replace('gtrxl', 'GTrXL').replace('lstm', 'LSTM')}, {images}": runs
        for images, size in memory_maze_online.SIZES.items()
        for core in size.cores
        if (runs := of(images, core))
    }
    columns = {"targets found": "return"} | {
        f"memory {name}" if steps > 1 else name: f"forgetting/{steps}"
        for steps, name in memory_maze_online.FORGET.items()
    }
    return table(["", *columns], rows(memory_maze_online.each, lines, columns.values()))


def rate_memory_maze_table() -> list[str]:
    """Targets found in Memory Maze after learning from data, of each seed."""
    of = cells("rate_memory_maze", "data", "who")
    lines: dict[str, tuple[str, str]] = {
        f"{model}, from the {data}'s data": (data, model)
        for data in rate_memory_maze.DATA
        for model in rate_memory_maze.MODELS
        if of(data, model)
    }
    lines |= {player: ("", player) for player in rate_memory_maze.PLAYERS if of("", player)}
    first, last = rate_memory_maze.ENDS[0], rate_memory_maze.ENDS[-1]
    columns = {
        "targets found": ("return", 1),
        f"in the first {first} steps": (f"found/{first}", 2),
        f"in the last {first}": (f"found/{last}", 2),
    }

    def entry(cell: tuple[str, str], column: tuple[str, int]) -> str:
        return each(of(*cell), *column, in_order=True)

    published = rate_memory_maze.PUBLISHED
    body = [
        [*row, f"{published[model]:.2f}" if data == "walker" and model in published else ""]
        for row, (data, model) in zip(
            rows(entry, lines, columns.values()), lines.values(), strict=True
        )
    ]
    return table(["", *columns, "published"], body)


def two_colors_empty_table() -> list[str]:
    """Shares of right items after an empty room, of each seed."""
    of = cells("rate_two_colors", "model")
    lines: dict[str, tuple[list[Record], str]] = {}
    for model in ("oracle", *rate_two_colors.MODELS):
        for how in ("", rate_two_colors.NOISE):
            first = f"right/{rate_two_colors.after(0, how)}"
            measured = [run for run in of(model) if first in run["scores"]]
            seeds = ", ".join(str(run["seed"]) for run in measured)
            are_all = len(measured) == len(of(model))
            name = ", ".join(filter(None, (model, how)))
            if measured:
                lines[name if are_all else f"{name}, seed {seeds} only"] = (measured, how)

    def entry(line: tuple[list[Record], str], empty: int) -> str:
        runs, how = line
        share_S = rate_two_colors.share_of_right(runs, rate_two_colors.after(empty, how))
        return ", ".join(f"{x:.2f}" for x in np.sort(share_S))

    head = ["model", "not empty", "empty for 30 steps", "60 steps", "120 steps"]
    return table(head, rows(entry, lines, rate_two_colors.EMPTY))


def two_colors_table(study: str = "rate_two_colors") -> list[str]:
    """Median shares of right items by time, and return and length of each seed."""
    of = cells(study, "model")
    parts = {
        "steps 1 to 30: the pillar is there": ("1-15", "16-30"),
        "31 to 60": ("31-45", "46-60"),
        "61 to 300": ("61-120", "121-300"),
        "301 to 600": ("301-600",),
    }
    lines = []
    for model in ("oracle", *filter(of, rate_two_colors.MODELS)):
        runs = of(model)
        shares = [
            ", ".join(median(rate_two_colors.share_of_right(runs, name)) for name in names)
            for names in parts.values()
        ]
        lines.append([model, *shares, each(runs, "return", 1), each(runs, "length", 0)])
    return table(["model", *parts, "return", "steps"], lines)


def two_colors_by_color_table(study: str = "rate_two_colors") -> list[str]:
    """Returns with a pillar of each color, beside the published ones."""
    of = cells(study, "model")
    lines = []
    for model in ("oracle", *filter(of, rate_two_colors.MODELS), "random"):
        measured = [each(of(model), f"return/{color}", 1, True) for color in ("red", "green")]
        published = [f"{x:.1f}" for x in rate_two_colors_doom.PUBLISHED.get(model, ())]
        lines.append([model, *measured, *(published or ["", ""])])
    return table(["model", "red pillar", "green pillar", "published, red", "green"], lines)


def offline_control_table() -> list[str]:
    """Mean normalized returns on data of mixed quality."""
    return offline_control.normalized_table(read(RESULTS / "offline_control.jsonl"))


def cores_table() -> list[str]:
    """Who learns the default job, the soonest first."""
    of = cells("cores_on_default_job", "core")
    lines = []
    for core in cores_on_default_job.CORES:
        runs, done = of(core), solvers(of(core))
        entry = count(runs) if done else f"{count(runs)} ({each(runs)})"
        place = -len(done), np.median(to_goal(done)) if done else 0.0
        lines.append((place, [f"`{core}`", entry, thousands(done)]))
    return table(["core", "solved", "steps to 0.95"], [line for _, line in sorted(lines)])


def minigrid_table() -> list[str]:
    """Successes in MiniGrid-Memory, of each seed."""
    worlds, s9 = cells("memory_worlds", "world", "core"), cells("default_settings", "task", "core")
    maze, rate, large = (
        "MiniGrid-Memory 9 x 9",
        "MiniGrid-Memory 9 x 9, 0.001",
        "MiniGrid-Memory 13 x 13",
    )
    larger = "MiniGrid-MemoryS13-v0"
    lines = [
        ("GTrXL, PPO, 1.5 million steps, five seeds", worlds(maze, "gtrxl")),
        ("GRU, the same", worlds(maze, "gru")),
        ("LSTM, the same", worlds(maze, "lstm")),
        ("GTrXL, the same with a learning rate of 0.001", worlds(rate, "gtrxl")),
        ("GRU, the same", worlds(rate, "gru")),
        ("LSTM, the same", worlds(rate, "lstm")),
        ("GTrXL, PPO, 4 million steps, three seeds", s9("MiniGrid-MemoryS9-v0", "gtrxl")),
        ("LSTM, the same", s9("MiniGrid-MemoryS9-v0", "lstm")),
        ("GTrXL, V-MPO, the same", s9("MiniGrid-MemoryS9-v0", "gtrxl, V-MPO")),
        ("LSTM, V-MPO, the same", s9("MiniGrid-MemoryS9-v0", "lstm, V-MPO")),
        ("GTrXL, mazes of 13 x 13, PPO, 3 million steps, five seeds", s9(larger, "gtrxl")),
        ("GTrXL, mazes of 13 x 13, PPO, two million steps, five seeds", worlds(large, "gtrxl")),
        ("LSTM, the same", worlds(large, "lstm")),
    ]
    body = [[label, each(runs)] for label, runs in lines]
    return table(["settings", "success of the last evaluation"], body)


def minigrid_images_table() -> list[str]:
    """Successes in MiniGrid-Memory from images, of each seed."""
    of = cells("memory_worlds", "world", "core")
    cores = {"GTrXL": "gtrxl", "GRU": "gru", "LSTM": "lstm"}
    body = [[name, each(of("MiniGrid-Memory 9 x 9, images", core))] for name, core in cores.items()]
    head = "PPO, learning rate 0.001, 1.5 million steps, five seeds"
    return table([head, "success of the last evaluation"], body)


def summary_table() -> list[str]:
    """GTrXL, GRU and LSTM in several studies."""
    worlds = cells("memory_worlds", "world", "core")
    tasks = cells("default_settings", "task", "core")
    mazes = cells("memory_horizon", "study", "core", "corridor")
    popgym = cells("popgym_baselines", "task", "core")
    reactive = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Catch-bsuite")
    maze, clock = "MiniGrid-Memory 9 x 9", popgym_baselines.TASKS["AutoencodeEasy-v0"].best
    chain = "MemoryChain-v0 of 100"
    perfect = scores(worlds("Numpad 2 x 2", memory_worlds.PERFECT), "return")[0]

    def of(*groups: list[Record]) -> str:
        runs = [run for group in groups for run in group]
        return f"{len(solvers(runs))} of {len(runs)}" if runs else ""

    def both(core: str) -> str:
        return ", ".join(filter(None, [of(tasks(chain, core)), of(tasks(chain, f"{core}, V-MPO"))]))

    lines: dict[str, Callable[[str], str]] = {
        "MiniGrid-Memory 9 x 9, solved, at two learning rates": lambda core: of(
            worlds(maze, core), worlds(f"{maze}, 0.001", core)
        ),
        "the same from images, solved": lambda core: of(worlds(f"{maze}, images", core)),
        "MiniGrid-Memory 9 x 9 with all seven actions, solved": lambda core: of(
            tasks("MiniGrid-MemoryS9-v0", core)
        ),
        "MemoryChain of 100 steps, solved, with PPO and with V-MPO": both,
        "T-Maze of 200 steps, solved, with V-MPO": lambda core: of(mazes("whole", core, 200)),
        "POPGym's RepeatPreviousHard, return": lambda core: each(
            popgym("RepeatPreviousHard-v0", core), "return"
        ),
        "CartPole, Pendulum, Acrobot and Catch, solved": lambda core: of(
            *(tasks(task, core) for task in reactive)
        ),
        f"POPGym's AutoencodeEasy, return, all with a clock (best published {clock:.2f}, without a "
        "clock)": lambda core: each(popgym("AutoencodeEasy-v0", core), "return"),
        f"Numpad 2 x 2, return, with V-MPO ({perfect:.0f} with a perfect memory)": lambda core: (
            each(worlds("Numpad 2 x 2", core), "return", 0)
        ),
    }
    body = [[name, *map(entry, ("gtrxl", "gru", "lstm"))] for name, entry in lines.items()]
    return table(["", "GTrXL", "GRU", "LSTM"], body)


def readme_table() -> list[str]:
    """The README's table: the first seven rows of the summary."""
    return summary_table()[: 2 + 7]


def commands_table() -> list[str]:
    """The commands, with what each is for, from their parsers."""
    return table(["command", "what it does", "arguments and options"], list(catalog.rows()))


TABLES: dict[str, Callable[[], list[str]]] = {
    "algorithms": algorithms_table,
    "claims": claims.summary,
    "claims_hours": claims.hours,
    **{claim.name: claim.lines for claim in claims.CLAIMS},
    "commands": commands_table,
    "cores_on_default_job": cores_table,
    "default_settings": default_settings_table,
    "depth_and_gates": depth_and_gates_table,
    "memory_horizon": memory_horizon_table,
    "memory_worlds": memory_worlds_table,
    "minigrid_images": minigrid_images_table,
    "minigrid_memory": minigrid_table,
    "offline_control": offline_control_table,
    "popgym_baselines": popgym_table,
    "popgym_easy": popgym_easy_table,
    "memory_maze_online": memory_maze_online_table,
    "rate_memory_maze": rate_memory_maze_table,
    "rate_minigrid": rate_mazes_table,
    "rate_tmaze_corridors": rate_corridors_table,
    "rate_tmaze_valves": rate_valves_table,
    "rate_two_colors": two_colors_table,
    "rate_two_colors_empty": two_colors_empty_table,
    "rate_two_colors_colors": two_colors_by_color_table,
    "rate_two_colors_doom": lambda: two_colors_table("rate_two_colors_doom"),
    "rate_two_colors_doom_colors": lambda: two_colors_by_color_table("rate_two_colors_doom"),
    "readme": readme_table,
    "rewriting": rewriting_table,
    "rewriting_causes": rewriting_causes_table,
    "rocksample": rocksample_table,
    "summary": summary_table,
    "tmaze_million": tmaze_million_table,
}


def main() -> None:
    """Write all reports and tables."""
    for module in STUDIES:
        study = module.STUDY
        study.run(study.options(report_only=True, results=RESULTS))
    for name in T_MAZES:
        options = rate_tmaze.Settings(study=name, report_only=True, results=RESULTS)
        rate_tmaze.STUDY.run(options)
    tables = {name: make() for name, make in TABLES.items()}
    for page in PAGES:
        filled = fill_tables(page.read_text("utf-8"), tables)
        with atomic(page) as temporary:
            temporary.write_text(filled, "utf-8")


if __name__ == "__main__":
    main()
