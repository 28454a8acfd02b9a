"""POPGym at Easy: all tasks with the same settings, by the paper's measure.

    python experiments/popgym_easy.py --workers 2
    python experiments/popgym_easy.py --only gtrxl CountRecallEasy-v0

Morad et al. (2023, arXiv 2303.01859) published the best mean return during training of 13 models
with memory, three trials each, for 15 million steps of PPO. Here, runs take two million steps.

Cores have 2 layers, agents equal numbers of parameters, within 10 %, and the same settings for all
tasks, those of `gtrxl train --preset popgym`: PPO with a `gae_lambda` of 0.8, a small entropy
bonus, eight minibatches and a clock; 128 environments out of lockstep, an unroll of 64, and a
memory of 128 steps for each layer of GTrXL. As in the paper, the previous action is an input;
unlike there, the previous reward too. The settings were chosen by single runs of GTrXL in six of
the tasks, without records, with a memory of 64 and 400,000 or 800,000 steps. There, policies
drifted with a quarter of the environments, as by the noise of rewards; a lower `gae_lambda` suited
tasks that reward each answer at once (0.94 in CountRecall with 0.5, and 0.38 with 0.8), and a
higher one control. GTrXL and GRU also have a learning rate of 0.001, twice PPO's own.

Writes popgym_easy.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
from collections.abc import Sequence

from popgym_baselines import WIDTHS

from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import OnlineConfig, preset
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, draw_returns, mean_entry, median, table
from gtrxl_jax.worlds.popgym import POPGYM

OTHERS = {
    "gru": WIDTHS["gru"],
    "lstm": 90,
    "mingru": WIDTHS["mingru"],
    "lru": 66,
    "ffm": 61,
    "mamba2": 62,
    "agalite": WIDTHS["agalite"],
    "dnc": 44,
}
"""The width of each core but GTrXL."""
HIGHER = 0.001
"""A second learning rate, twice PPO's own."""
CORES = ("gtrxl", *OTHERS, "memoryless", f"gtrxl, {HIGHER}", f"gru, {HIGHER}")
"""All cores, of which some have another learning rate as well. "memoryless" is a GTrXL that sees
every step as the first, with the previous action and reward."""
PUBLISHED = {
    "AutoencodeEasy-v0": (-0.283, -0.283),
    "CountRecallEasy-v0": (0.177, 0.509),
    "HigherLowerEasy-v0": (0.529, 0.529),
    "MultiarmedBanditEasy-v0": (0.619, 0.631),
    "NoisyPositionOnlyCartPoleEasy-v0": (0.995, 0.995),
    "PositionOnlyCartPoleEasy-v0": (1.0, 1.0),
    "RepeatFirstEasy-v0": (1.0, 1.0),
    "RepeatPreviousEasy-v0": (1.0, 1.0),
}
"""The published scores of a GRU, and of the best of 13 models, as far as others cite them."""
TASKS = [name for name in POPGYM if name.endswith("Easy-v0")]


def job(name: str, core: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell."""
    config = preset("popgym")
    core, _, rate = core.partition(", ")
    if core in OTHERS:
        of_core = core_config(core, "small", layers=2, width=OTHERS[core])
        config = dataclasses.replace(config, core=of_core)
    if rate:
        optimizer = dataclasses.replace(config.optimizer, learning_rate=float(rate))
        config = dataclasses.replace(config, optimizer=optimizer)
    return dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, name=name),
        agent=dataclasses.replace(config.agent, memoryless=core == "memoryless"),
        total_steps=total_steps or config.total_steps,
    )


def grid(options: Options) -> list[Cell]:
    """Return all runs."""
    return [
        Cell({"task": name, "core": core}, job(name, core, options.steps), options.seeds or 3)
        for name in TASKS
        for core in CORES
    ]


def best(records: Sequence[Record]) -> list[float]:
    """Return the best mean return of each run during training.

    The first point is left out: there, episodes out of lockstep are cut short, and with them the
    costs of their steps.
    """
    curves = [run["curve"]["episode/return"]["value"] for run in records]
    return [max(x for x in curve[1:] or curve if x != "NaN") for curve in curves]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    cells = by_cell(records, "task", "core")
    panels = {
        name: [("published GRU", PUBLISHED[name][0], ":")] if name in PUBLISHED else []
        for name in dict.fromkeys(name for name, _ in cells)
    }
    draw_returns(cells, CORES, panels, options.results / "popgym_easy.png", "episode/return")
    return "POPGym at Easy", [
        "The best mean return during training, which is the measure of the published scores (mean "
        "over seeds with its 95 % interval, and each seed), the return of the last evaluation, "
        "with the most probable actions, the steps of each run and its median seconds, including "
        "compilation. Published: a GRU after 15 million steps, without the previous reward and "
        "without a clock, as cited by others; empty where not known here.",
        table(
            ["task", "core", "best", "seeds", "last", "steps", "seconds", "published"],
            [
                [
                    name,
                    core,
                    mean_entry(best(runs)),
                    ", ".join(f"{value:.2f}" for value in best(runs)),
                    mean_entry(scores(runs, "return")),
                    f"{runs[0]['steps']:,}",
                    median([run["seconds"] for run in runs], digits=0),
                    f"{PUBLISHED[name][0]:.2f}" if name in PUBLISHED else "",
                ]
                for (name, core), runs in cells.items()
            ],
        ),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
