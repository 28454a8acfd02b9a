"""RATE in Memory Maze: how many targets does a model find that has learned from data?

    python experiments/rate_memory_maze.py --workers 2
    python experiments/rate_memory_maze.py --only walker data RATE --seeds 1

The 9 x 9 maze at reduced size, for CPUs: images of 36 x 36 pixels instead of 64 x 64. Models are
trained on windows of 90 steps from anywhere in episodes of 1,000 steps, of one of two players:

    walker      goes to a target at random and then to another, whatever the border of the image
                asks for, as in the data of RATE's paper
    explorer    the built-in player, which remembers what it has seen and goes to what is asked for

    RATE        5 memory tokens, valve CA-2; K = 3, T = 30
    DT          without memory; all 90 steps at once, a sliding window in episodes
    BC-LSTM     behavior cloning with an LSTM over 90 steps

They then play whole episodes, conditioned on the mean return of the best tenth of the data.

The data, of the cells named "data", are kept in `--data`, from which models learn; with several
workers, run `--only data` before the rest.

Writes rate_memory_maze.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from gtrxl_jax.acting.collecting import collect_rounds
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import begin, rollout
from gtrxl_jax.acting.scripted import ExplorerPolicy, OraclePolicy, RandomPolicy
from gtrxl_jax.data import minari
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import (
    DataConfig,
    OfflineConfig,
    OfflineEnvConfig,
    OfflineEvaluationConfig,
)
from gtrxl_jax.plots.style import (
    assign_styles,
    legend_outside,
    new_figure,
    save_figure,
    style_axes,
)
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, table
from gtrxl_jax.timestep import TimeStep
from gtrxl_jax.worlds.memory_maze import MemoryMaze, MemoryMazeParams

ENV = "MemoryMaze-9x9-v0"
SIZE: dict[str, bool | int | float | str] = {"height": 36, "width": 36}
STEPS, CONTEXT, SEGMENTS = 1000, 30, 3
COLLECTED, PLAYED = 400, 64
"""Episodes of a data set, and of each measurement."""
INTERVAL = 100
ENDS = range(INTERVAL, STEPS + 1, INTERVAL)
"""The ends of the intervals in which targets are counted."""
MODELS = {"RATE": "rate", "DT": "dt", "BC-LSTM": "bc-lstm"}
BATCH, UPDATES = 32, 3000
DATA = ("walker", "explorer")
PLAYERS = ("oracle", "explorer", "walker", "random")
PUBLISHED = {"RATE": 1.91, "DT": 1.45}
"""Section 4.2 of RATE's paper: other images, data and episodes."""


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """Options, and where the data are."""

    data: Path = Path("build/rate_memory_maze")
    """Folder of the data sets."""


@dataclasses.dataclass(frozen=True)
class WalkerPolicy(Policy):
    """Goes to a target at random, and when it is there to another.

    Attributes:
      env: the maze.
      params: its parameters.
    """

    env: MemoryMaze
    params: MemoryMazeParams

    @property
    def is_privileged(self) -> bool:
        """True: it knows where the targets are."""
        return True

    def init(self, params: Any, batch_size: int) -> Int[Array, " B"]:
        """Return the targets to go to, which are drawn at the first step."""
        return jnp.zeros(batch_size, jnp.int32)

    def act(
        self, params: Any, state: Int[Array, " B"], timestep: TimeStep, key: Key[Array, ""]
    ) -> tuple[Int[Array, " B"], Any, tuple[()]]:
        """Return the targets to go to, and the oracle's actions if they were asked for."""
        mazes, goal_B, number = timestep.observation, state, self.env.num_targets
        key_first, key_next = jax.random.split(key)
        first_B = jax.random.randint(key_first, goal_B.shape, 0, number)
        goal_B = jnp.where(timestep.first, first_B, goal_B)
        target_B2 = mazes.target_N2[jnp.arange(len(goal_B)), goal_B]
        apart_B = jnp.linalg.norm(target_B2 - mazes.position_2, axis=-1)
        other_B = jax.random.randint(key_next, goal_B.shape, 1, number)
        is_there_B = apart_B <= self.params.touch_distance
        goal_B = jnp.where(is_there_B, (goal_B + other_B) % number, goal_B)
        asked = mazes.replace(target=goal_B)
        action_B = jax.vmap(lambda maze: self.env.oracle_action(maze, self.params))(asked)
        return goal_B, action_B, ()


def player(name: str) -> tuple[Any, Any, Policy]:
    """Return the environment, its parameters, and a policy that does not learn."""
    env, params = make_env(ENV, **SIZE)
    if name == "random":
        return env, params, RandomPolicy(env.action_space(params))
    kinds: dict[str, Callable[..., Policy]] = {
        "oracle": OraclePolicy,
        "explorer": ExplorerPolicy,
        "walker": WalkerPolicy,
    }
    return env, params, kinds[name](env, params)


def job(data: str, model: str, folder: Path, updates: int | None) -> OfflineConfig:
    """Return the config of a cell."""
    return OfflineConfig(
        env=OfflineEnvConfig(ENV, SIZE),
        data=DataConfig(path=str(folder / data), start="uniform", weight="uniform"),
        model=model_config(MODELS[model]),
        # Whole episodes are played by `measure`.
        evaluation=OfflineEvaluationConfig(episodes=1),
        unroll=CONTEXT,
        segments=SEGMENTS,
        batch_size=BATCH,
        total_updates=updates or UPDATES,
        remat=False,
    )


def collect(name: str, folder: Path, seed: int) -> Record:
    """Collect a data set, and return the returns of its episodes."""
    return_E: list[float] = []
    rounds = collect_rounds(
        *player(name),
        COLLECTED,
        jax.random.key(seed),
        progress=lambda episodes: return_E.extend(episodes.episode_return),
    )
    minari.save(rounds, folder / name, minari.Metadata(ENV, SIZE, name, seed))
    return {"scores": {"return": float(np.mean(return_E)), "best": float(np.max(return_E))}}


def play(policy: Policy, params: Any, seed: int) -> dict[str, float]:
    """Return the mean number of targets that a policy finds, in all and in each interval."""
    env, env_params = make_env(ENV, **SIZE)
    stream = Stream(env, env_params, PLAYED)

    @jax.jit
    def found(params: Any, key: jax.Array) -> jax.Array:
        key_stream, key_act = jax.random.split(key)
        start = begin(policy, params, stream, key_stream)
        played = rollout(policy, params, stream, start, key_act, STEPS)[1]
        return played.timesteps.reward[:, 1:]

    found_ET = np.asarray(found(params, jax.random.key(seed)), np.float64)
    counts = {f"found/{end}": found_ET[:, end - INTERVAL : end].sum(1).mean() for end in ENDS}
    return {"return": found_ET.sum(1).mean(), **counts}


def play_unlearned(name: str, seed: int) -> Record:
    """Return the scores of a policy that does not learn."""
    return {"scores": play(player(name)[2], (), seed)}


def measure(trained: Any) -> dict[str, float]:
    """Return the scores of a trained model."""
    trainer = trained.trainer
    return play(trainer.policy, trained.params_per_seed[0], trainer.config.seed)


def grid(options: Settings) -> list[Cell]:
    """Return all cells: data sets, models, and players that do not learn."""

    def cell(data: str, who: str, job: Any, seeds: int = 1, **settings: Any) -> Cell:
        return Cell({"data": data, "who": who}, job, seeds, **settings)

    sets = [
        cell(
            data,
            "data",
            functools.partial(collect, data, options.data),
            output=options.data / data,
        )
        for data in DATA
    ]
    learners = [
        cell(
            data,
            model,
            job(data, model, options.data, options.steps),
            options.seeds or 3,
            measure=measure,
        )
        for data in DATA
        for model in MODELS
    ]
    players = [cell("", name, functools.partial(play_unlearned, name)) for name in PLAYERS]
    return [*sets, *learners, *players]


def draw(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw the targets found in each interval, the mean over seeds."""
    figure = new_figure(6.5, 3.2)
    axes = figure.add_subplot()
    lines = {
        label: axes.plot(ENDS, curves[label], **look)[0] for label, look in assign_styles(curves)
    }
    axes.set_ylim(bottom=0)
    axes.set_xlabel("steps since the start")
    axes.set_ylabel(f"targets found in {INTERVAL} steps")
    style_axes(axes)
    legend_outside(figure, "player or model, and data", lines)
    save_figure(figure, path)


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    rows: list[list[str]] = []
    curves: dict[str, list[float]] = {}
    for (data, who), runs in by_cell(records, "data", "who").items():
        if who == "data":
            continue
        label = f"{who}, {data}" if data else who
        curves[label] = [float(np.mean(scores(runs, f"found/{end}"))) for end in ENDS]
        published = f"{PUBLISHED[who]:.2f}" if data == "walker" and who in PUBLISHED else ""
        first, last = (mean_entry(scores(runs, f"found/{end}"), 2) for end in (ENDS[0], ENDS[-1]))
        rows.append(
            [data, who, f"{len(runs)}", mean_entry(scores(runs, "return"), 2), first, last]
            + [published]
        )
    draw(curves, options.results / "rate_memory_maze.png")
    return "RATE in Memory Maze", [
        f"Targets found in an episode of {STEPS:,} steps, and in its first and its last {INTERVAL},"
        f" mean of {PLAYED} episodes with the 95 % interval over seeds, after {UPDATES:,} updates. "
        "Players that do not learn have no data.",
        table(
            [
                "data",
                "who",
                "seeds",
                "return",
                f"first {INTERVAL}",
                f"last {INTERVAL}",
                "published",
            ],
            rows,
        ),
    ]


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
