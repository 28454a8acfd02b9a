"""RATE on Two-Colors in Doom itself: which items does a model take after the pillar is gone?

    python experiments/rate_two_colors_doom.py --only data
    python experiments/rate_two_colors_doom.py --only RATE DT --seeds 1

As `rate_two_colors.py`, with the same room, sizes and models, and twice as many updates, in
`vizdoom:two-colors`, which needs the extra vizdoom: 15,000 episodes of 60 steps by its oracle. The
data, of the cell "data", are kept in `--data`, from which models learn; run it before the rest.

They then play 64 episodes of up to 600 steps, with the most likely actions, of which returns are
told by the color of the pillar, as in RATE's paper; and in a room that is empty for some time.

Writes rate_two_colors_doom.jsonl and .md to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rate_two_colors
from rate_two_colors import ARGUMENTS, CONTEXT, EPISODES, MODELS, PILLAR, SEGMENTS, STEPS, Played

from gtrxl_jax.acting.host import HostOraclePolicy, play_episodes
from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.scripted import RandomPolicy
from gtrxl_jax.collection import CollectionConfig, CollectionEnvConfig, collect_dataset
from gtrxl_jax.envs.host.stream import HostEnv, HostStream
from gtrxl_jax.offline.config import DataConfig, OfflineConfig, OfflineEnvConfig
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, median, table

ENV = "vizdoom:two-colors"
UPDATES = 2 * rate_two_colors.UPDATES
ENVS = 16
COLLECTED = 15_000
PUBLISHED = {"RATE": (42.2, 36.3), "DT": (6.7, 36.4)}
"""RATE's paper, with a red and a green pillar: another map, 10 x 10, from an agent's data."""


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """Options, and where the data are."""

    data: Path = Path("build/rate_two_colors_doom")
    """Folder of the data set."""


def arguments(steps: int, empty: int = 0) -> dict[str, Any]:
    """Return the parameters of the environment, with a time limit and the steps without items."""
    return {**ARGUMENTS, "max_steps_in_episode": steps, "empty_steps": empty}


def job(model: str, folder: Path, updates: int | None) -> OfflineConfig:
    """Return the config of a cell: that of the jitted room, on the data of this one."""
    config = rate_two_colors.job(model, updates or UPDATES)
    return dataclasses.replace(
        config,
        env=OfflineEnvConfig(ENV, arguments(CONTEXT * SEGMENTS)),
        data=DataConfig(path=str(folder / "data"), start="episode", weight="uniform"),
        # Longer episodes are played by `measure`.
        evaluation=dataclasses.replace(config.evaluation, episodes=ENVS),
    )


def collect(folder: Path, seed: int) -> Record:
    """Collect the oracle's episodes."""
    env = CollectionEnvConfig(ENV, arguments(CONTEXT * SEGMENTS), num_envs=ENVS)
    config = CollectionConfig(env, policy="oracle", episodes=COLLECTED, seed=seed)
    collected = collect_dataset(config, folder / "data")
    return {"data_steps": collected.steps, "scores": {"return": collected.mean_return}}


def episodes(policy: Policy, params: Any, seed: int, steps: int, empty: int = 0) -> Played:
    """Play with a policy, in a room that is empty for `empty` steps after the pillar."""
    stream = HostStream((HostEnv(ENV, arguments(steps, empty)),), ENVS)
    color_E, return_E, length_E = (np.zeros(EPISODES) for _ in range(3))
    counts_ET = {kind: np.zeros((EPISODES, steps + 1)) for kind in ("right", "wrong")}
    key = jax.random.key(seed)
    for n, row, step, arrival in play_episodes(policy, params, stream, key, EPISODES, ENVS):
        length = int(arrival.episode.length[row])
        if length == 1:
            color_E[n] = color_of_pillar(step.timestep.observation[row])
        for kind, count_ET in counts_ET.items():
            count_ET[n, length:] = arrival.episode.info[kind][row]
        return_E[n], length_E[n] = arrival.episode.episode_return[row], length
    taken_ET = {kind: np.diff(count_ET, axis=1) for kind, count_ET in counts_ET.items()}
    return Played(color_E, taken_ET, return_E, length_E)


def color_of_pillar(image: np.ndarray) -> int:
    """Return the color of the pillar, 0 for red or 1 for green, from the first image of an episode.

    It stands in the middle, and above all items.
    """
    rows, columns, _ = image.shape
    pillar = image[: rows // 2, columns * 4 // 9 : columns * 5 // 9].astype(int)
    red, green = (pillar[..., channel].sum() for channel in (0, 1))
    return int(green > red)


def play_unlearned(kind: str, seed: int) -> Record:
    """Return the scores of a policy that does not learn."""
    env = HostEnv(ENV, arguments(STEPS))
    is_oracle = kind == "oracle"
    policy = HostOraclePolicy(env) if is_oracle else RandomPolicy(env.facts.action_space)
    return {"scores": rate_two_colors.play(functools.partial(episodes, policy, (), seed))}


def grid(options: Settings) -> list[Cell]:
    """Return all cells: the data, models, and policies that do not learn."""
    data = Cell(
        {"model": "data"},
        functools.partial(collect, options.data),
        output=options.data / "data",
    )
    learners = [
        Cell(
            {"model": label},
            job(label, options.data, options.steps),
            options.seeds or 3,
            measure=functools.partial(rate_two_colors.measure, episodes=episodes),
        )
        for label in MODELS
    ]
    others = [
        Cell({"model": kind}, functools.partial(play_unlearned, kind))
        for kind in ("oracle", "random")
    ]
    return [data, *learners, *others]


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables of the available records."""
    rows, colors = [], []
    for label, of_cell in by_cell(records, "model").items():
        if label == "data":
            continue
        shares = [
            median(rate_two_colors.share_of_right(of_cell, name)) for name in rate_two_colors.NAMES
        ]
        numbers = (mean_entry(scores(of_cell, key), 1) for key in ("return", "length"))
        rows.append([label, str(len(of_cell)), *shares, *numbers])
        each = [
            ", ".join(f"{x:.1f}" for x in scores(of_cell, f"return/{color}"))
            for color in ("red", "green")
        ]
        published = [f"{x:.1f}" for x in PUBLISHED.get(label, ())] or ["", ""]
        colors.append([label, *each, *published])
    return "RATE on Two-Colors in Doom", [
        f"Share of items of the right color among those taken in each interval of steps, the "
        f"median over seeds; and return and steps survived of at most {STEPS}, mean with the "
        f"95 % interval over seeds. {EPISODES} episodes for each seed, played with the most "
        f"likely actions. The pillar is there for {PILLAR} steps; training episodes have "
        f"{CONTEXT * SEGMENTS}. Who does not know the color has 0.5.",
        table(["model", "seeds", *rate_two_colors.NAMES, "return", "steps"], rows),
        *rate_two_colors.report_after_empty(records),
        "Returns with a red and with a green pillar, of each seed, and those of RATE's paper, in "
        "the room of 10 x 10 with 8 items of each color, over 2,100 steps:",
        table(["model", "red", "green", "published, red", "green"], colors),
    ]


STUDY = Study(__file__, grid, report, Settings)

if __name__ == "__main__":
    STUDY.main()
