"""POPGym: memory cores trained with PPO, beside the published numbers.

    python experiments/popgym_baselines.py --workers 2
    python experiments/popgym_baselines.py --only gtrxl RepeatPreviousMedium-v0 --seeds 1
    python experiments/popgym_baselines.py --protocol published

Morad et al. (2023, arXiv 2303.01859) trained 13 models with memory with PPO, three trials each, for
15 million steps, and published the best mean return during training. The highest return is 1.
Here, runs take fewer steps, and their score is the mean return of the last evaluation.

Cores have 2 layers, and agents equal numbers of parameters, within 10 %. All settings are the
defaults of `gtrxl train --algorithm.name ppo`, except for the memory of GTrXL and the unroll, which
span the delay of the task; the number of environments, with which each rollout has some 2,048
steps; a learning rate of 0.001, and an entropy bonus that does not decay; and a `gae_lambda` of
0.5: these tasks reward each answer at once, so that with the default of 0.95 the rewards of later
answers hide what an answer earned. In Autoencode, where how far back the answer lies depends on the
time, all cores have a clock (`agent.clock`), except for a control, and learn from four minibatches.
In RepeatFirst, the environments, whose episodes are all equally long, do not run in lockstep
(`env.stagger`).

With `--protocol published`, all cores and tasks are trained by the paper's protocol: 15 million
steps, 64 environments of 1,024 steps, 30 epochs of 8 minibatches, and RLlib's learning rate, lambda
and clipping, without its penalty of the KL. This is a study for accelerators.

Writes popgym_baselines.jsonl, .md and .png to experiments/results/; for the published protocol,
popgym_baselines_published in their place.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from gtrxl_jax.envs.extensions import time_limit
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.cores.registry import core_config
from gtrxl_jax.online.config import AgentConfig, EnvConfig, OnlineConfig, OptimizerConfig
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores, to_goal
from gtrxl_jax.studies.report import Paragraph, draw_returns, mean_entry, median, table
from gtrxl_jax.worlds.popgym import POPGYM

WIDTHS = {"gtrxl": 64, "gru": 104, "mingru": 68, "agalite": 60}
TRANSFORMERS = ("trxl", "trxl-i", "gtrxl")
NO_CLOCK = "gtrxl, no clock"
GOAL = 0.95
STEPS_PER_UPDATE = 2048
GAE_LAMBDA = 0.5
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Task:
    """The settings of a task, and the published scores: of a GRU, and of the best of 13 models."""

    span: int
    """Steps that the memory of GTrXL and the unroll have to span."""
    total_steps: int
    gru: float
    best: float
    timed: bool = False
    """Whether how far back the answer lies depends on the time: with a clock, in minibatches."""
    stagger: bool = False


TASKS = {
    "RepeatPreviousEasy-v0": Task(16, 200_000, 1.00, 1.00),
    "RepeatPreviousMedium-v0": Task(32, 500_000, -0.315, 0.789),
    "RepeatPreviousHard-v0": Task(64, 700_000, -0.428, 0.191),
    "AutoencodeEasy-v0": Task(104, 1_000_000, -0.283, -0.283, timed=True),
    "RepeatFirstHard-v0": Task(64, 600_000, 0.940, 0.969, stagger=True),
}


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What to run."""

    protocol: Literal["short", "published"] = "short"
    """The package's settings and fewer steps, or the protocol of the paper."""


def short(name: str, label: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell: the defaults of PPO with the settings of the task."""
    task = TASKS[name]
    core = label.split(",")[0]
    settings = {"gtrxl": {"memory_size": task.span}, "agalite": {"terms": 2}}.get(core, {})
    return OnlineConfig(
        # A multiple of the minibatches.
        env=EnvConfig(
            name, num_envs=4 * round(STEPS_PER_UPDATE / (4 * task.span)), stagger=task.stagger
        ),
        core=core_config(core, "small", layers=2, width=WIDTHS[core], **settings),
        agent=AgentConfig(clock=task.timed and label != NO_CLOCK),
        algorithm=PPOConfig(
            gae_lambda=GAE_LAMBDA, entropy_final=1.0, minibatches=4 if task.timed else 1
        ),
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
        total_steps=total_steps or task.total_steps,
        unroll=task.span,
    )


def published(name: str, core: str, total_steps: int | None) -> OnlineConfig:
    """Return the config of a cell: the protocol of the paper."""
    memory = {"memory_size": time_limit(*make_env(name))} if core in TRANSFORMERS else {}
    return OnlineConfig(
        env=EnvConfig(name, num_envs=64),
        core=core_config(core, "small", layers=2, width=256, **memory),
        algorithm=PPOConfig(
            gae_lambda=1.0,
            value_cost=1.0,
            entropy_cost=0.0,
            popart=False,
            epochs=30,
            minibatches=8,
            clip_epsilon=0.3,
        ),
        optimizer=OptimizerConfig(learning_rate=5e-5, final=1.0, clip_norm=None),
        total_steps=total_steps or 15_000_000,
        unroll=1024,
    )


def grid(options: Settings) -> list[Cell]:
    """Return all runs."""
    job, tasks, cores = (
        (short, tuple(TASKS), (*WIDTHS, NO_CLOCK))
        if options.protocol == "short"
        else (published, tuple(POPGYM), tuple(CORES))
    )
    return [
        Cell(
            {"task": name, "core": core},
            job(name, core, options.steps),
            options.seeds or 3,
            ("return", GOAL),
        )
        for name in tasks
        for core in cores
        if core != NO_CLOCK or TASKS[name].timed
    ]


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    rows = []
    cells = by_cell(records, "task", "core")
    for (name, core), runs in cells.items():
        return_S = scores(runs, "return")
        known = TASKS.get(name)
        rows.append(
            [
                name,
                core,
                mean_entry(return_S),
                ", ".join(f"{value:.2f}" for value in return_S),
                median(to_goal(runs, "steps"), digits=0),
                f"{runs[0]['steps']:,}",
                median([run["seconds"] for run in runs], digits=0),
                f"{known.gru:.2f}, {known.best:.2f}" if known else "",
            ]
        )
    stem = name_of(options)
    lines = {
        name: [("published GRU", TASKS[name].gru, ":"), ("best published", TASKS[name].best, "--")]
        for name in dict.fromkeys(name for name, _ in cells if name in TASKS)
    }
    cores = tuple(dict.fromkeys(core for _, core in cells))
    draw_returns(cells, cores, lines, options.results / f"{stem}.png", "episode/return")
    return "POPGym", [
        "Mean return of the last evaluation: the mean over seeds with its 95 % interval "
        f"(Student's t), and each seed. Then the median steps to a return of {GOAL}, over the "
        "seeds that reached it, the steps of each run, and its median seconds, including "
        "compilation. The published scores are those of a GRU and of the best of 13 models: "
        "the best mean return during 15 million steps, over three trials, as cited by others.",
        table(
            ["task", "core", "return", "seeds", "to 0.95", "steps", "seconds", "published"],
            rows,
        ),
    ]


def name_of(options: Settings) -> str:
    """Return the name of the study."""
    return "popgym_baselines" + ("_published" if options.protocol == "published" else "")


STUDY = Study(__file__, grid, report, Settings, name_of)

if __name__ == "__main__":
    STUDY.main()
