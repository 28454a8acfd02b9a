"""RATE on Two-Colors: which items does a model take after the pillar has disappeared?

    python experiments/rate_two_colors.py --workers 2
    python experiments/rate_two_colors.py --only RATE DT --seeds 1

At reduced size, for CPUs: a room of 5 x 5 cells with one item of each color, images of 36 x 36
pixels, and a pillar that disappears after 30 steps. Models are trained on 15,000 episodes of 60
steps by the oracle (in RATE's data, the pillar is there for half of an episode too):

    RATE       5 memory tokens, valve CA-2; K = 4, T = 15
    DT         without memory; all 60 steps at once, a sliding window in longer episodes
    BC-LSTM    behavior cloning with an LSTM over 60 steps

They then play episodes of up to 600 steps with the most likely actions. A model that does not know
the color takes as many wrong items as right ones, so the share of right items is told by the time
since the start. The return-to-go is reset to the target in each segment, as RATE does in MuJoCo,
since episodes are longer than those of the training.

Items tell the color too, by what they did to who took them. Therefore the models also play in a
room that is empty for some time after the pillar, so that only a memory can tell which items to
take when they are back; RATE also with noise in place of its memory tokens.

Writes rate_two_colors.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gtrxl_jax.acting.policy import Policy
from gtrxl_jax.acting.rollout import begin, first_episode, rollout
from gtrxl_jax.acting.scripted import OraclePolicy, RandomPolicy
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import (
    DataConfig,
    OfflineConfig,
    OfflineEnvConfig,
    OfflineEvaluationConfig,
)
from gtrxl_jax.plots.curves import plot_success_against_horizon
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import Paragraph, mean_entry, median, table

ENV = "TwoColors-v0"
PILLAR, CONTEXT, SEGMENTS = 30, 15, 4
ARGUMENTS: dict[str, bool | int | float | str] = {
    "size": 5,
    "items": 1,
    "height": 36,
    "width": 36,
    "pillar_steps": PILLAR,
}
MODELS = {"RATE": "rate", "DT": "dt", "BC-LSTM": "bc-lstm"}
UPDATES, BATCH = 6000, 32
STEPS, EPISODES = 600, 64
ENDS = (15, 30, 45, 60, 120, 300, 600)
"""The ends of the intervals in which items are counted."""
EMPTY, AFTER = (0, 30, 60, 120), 60
"""The steps for which the room is empty, and those after them in which items are counted."""
NOISE = "noise when acting"
FEWEST = 10
"""Of fewer items, no share is reported."""
NAMES = [f"{begin + 1}-{end}" for begin, end in zip((0, *ENDS), ENDS, strict=False)]


def job(model: str, updates: int | None) -> OfflineConfig:
    """Return the config of a cell."""
    return OfflineConfig(
        env=OfflineEnvConfig(ENV, ARGUMENTS | {"max_steps_in_episode": CONTEXT * SEGMENTS}),
        data=DataConfig(episodes=15_000, start="episode", weight="uniform"),
        model=model_config(MODELS[model]),
        evaluation=OfflineEvaluationConfig(episodes=EPISODES, restart_return=True),
        unroll=CONTEXT,
        segments=SEGMENTS,
        batch_size=BATCH,
        total_updates=updates or UPDATES,
        remat=False,
    )


@dataclasses.dataclass(frozen=True)
class Played:
    """First episodes of E environments: what was taken at each step, and how they ended."""

    color_E: np.ndarray
    taken_ET: dict[str, np.ndarray]
    return_E: np.ndarray
    length_E: np.ndarray

    def counts(self, begin: int, end: int) -> dict[str, float]:
        """Return the number of right and wrong items that were taken in an interval of steps."""
        return {kind: float(x_ET[:, begin:end].sum()) for kind, x_ET in self.taken_ET.items()}


def episodes(policy: Policy, params: Any, seed: int, steps: int, empty: int = 0) -> Played:
    """Play with a policy, in a room that is empty for `empty` steps after the pillar."""
    limits = {"max_steps_in_episode": steps, "empty_steps": empty}
    env, env_params = make_env(ENV, **ARGUMENTS, **limits)
    stream = Stream(env, env_params, EPISODES)

    @jax.jit
    def run(params: Any, key: jax.Array) -> Any:
        key_stream, key_act = jax.random.split(key)
        start = begin(policy, params, stream, key_stream)
        _, played = rollout(
            policy,
            params,
            stream,
            start,
            key_act,
            steps,
            keep=lambda state: {"right": state.env.right, "wrong": state.env.wrong},
        )
        return start.stream.env.color, played.kept, played.episodes

    color_E, counts_ET, played = jax.device_get(run(params, jax.random.key(seed)))
    end_E, each = first_episode(played), np.arange(EPISODES)
    is_first_ET = np.arange(steps)[None] <= end_E[:, None]
    return Played(
        color_E=color_E,
        taken_ET={
            kind: np.diff(count_ET, axis=1, prepend=0) * is_first_ET
            for kind, count_ET in counts_ET.items()
        },
        return_E=played.episode_return[each, end_E],
        length_E=played.length[each, end_E],
    )


def totals(played: Played) -> dict[str, float]:
    """Return the scores of episodes: returns by color, length, and items by interval."""
    result = {"return": float(played.return_E.mean()), "length": float(played.length_E.mean())}
    for value, name in enumerate(("red", "green")):
        result[f"return/{name}"] = float(played.return_E[played.color_E == value].mean())
    for name, begin_, end in zip(NAMES, (0, *ENDS), ENDS, strict=False):
        for kind, count in played.counts(begin_, end).items():
            result[f"{kind}/{name}"] = count
    return result


def play(episodes: Callable[..., Played]) -> dict[str, float]:
    """Return the scores of episodes, and of others after an empty room.

    Args:
      episodes: plays episodes of some steps, in a room that is empty for some.
    """
    return totals(episodes(STEPS)) | after_empty(episodes)


def after_empty(episodes: Callable[..., Played], how: str = "") -> dict[str, float]:
    """Return the items that are taken after an empty room; names end with `how` it is played."""
    result = {}
    for empty in EMPTY:
        back = PILLAR + empty
        for kind, count in episodes(back + AFTER, empty).counts(back, back + AFTER).items():
            result[f"{kind}/{after(empty, how)}"] = count
    return result


def after(empty: int, how: str = "") -> str:
    """Return the name of the scores after a room that was empty for some steps."""
    return f"after {empty} empty" + (f", {how}" if how else "")


def play_unlearned(kind: str, seed: int) -> Record:
    """Return the scores of a policy that does not learn."""
    env, params = make_env(ENV, **ARGUMENTS)
    oracle, random = OraclePolicy(env, params), RandomPolicy(env.action_space(params))
    policy = oracle if kind == "oracle" else random
    return {"scores": play(functools.partial(episodes, policy, (), seed))}


def measure(trained: Any, episodes: Callable[..., Played] = episodes) -> dict[str, float]:
    """Return the scores of a trained model in `episodes` of a policy, its parameters and a seed."""
    trainer, params = trained.trainer, trained.params_per_seed[0]
    policy, seed = trainer.policy, trainer.config.seed
    result = play(functools.partial(episodes, policy, params, seed))
    if trainer.config.model.name == "rate":
        noisy = dataclasses.replace(policy, memory_noise=True)
        result |= after_empty(functools.partial(episodes, noisy, params, seed), NOISE)
    return result


def grid(options: Options) -> list[Cell]:
    """Return all cells."""
    learners = [
        Cell({"model": label}, job(label, options.steps), options.seeds or 3, measure=measure)
        for label in MODELS
    ]
    others = [
        Cell({"model": kind}, functools.partial(play_unlearned, kind))
        for kind in ("oracle", "random")
    ]
    return [*learners, *others]


def share_of_right(records: Sequence[Record], name: str) -> np.ndarray:
    """Return the share of right items among those taken in an interval, for each seed.

    It is NaN where there are fewer than `FEWEST`.
    """
    right_S, wrong_S = scores(records, f"right/{name}"), scores(records, f"wrong/{name}")
    taken_S = right_S + wrong_S
    return np.where(taken_S >= FEWEST, right_S / np.maximum(taken_S, 1), np.nan)


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure of the available records."""
    rows, curves = [], {}
    for label, of_cell in by_cell(records, "model").items():
        share_SN = np.stack([share_of_right(of_cell, name) for name in NAMES], axis=1)
        if label in MODELS:
            curves[label] = share_SN
        shares = map(median, share_SN.T)
        numbers = (mean_entry(scores(of_cell, key), 1) for key in ("return", "length"))
        rows.append([label, *shares, *numbers])
    plot_success_against_horizon(
        curves,
        np.array(ENDS),
        options.results / "rate_two_colors.png",
        x_label=f"steps since the start; the pillar is there for {PILLAR}, "
        f"training episodes have {CONTEXT * SEGMENTS}",
        y_label="share of right items",
        chance=0.5,
    )
    return "RATE on Two-Colors", [
        f"Share of items of the right color among those taken in each interval of steps, the "
        f"median over seeds; and return and steps survived of at most {STEPS}, mean with the "
        f"95 % interval over seeds. {EPISODES} episodes for each seed, played with the most "
        f"likely actions. The pillar is there for {PILLAR} steps; training episodes have "
        f"{CONTEXT * SEGMENTS}. Who does not know the color has 0.5. Shares of fewer than "
        f"{FEWEST} items are omitted.",
        table(["model", *NAMES, "return", "steps"], rows),
        *report_after_empty(records),
        "Published, in Doom, in the room of 10 x 10 with 8 items of each color, over 2,100 "
        "steps, with a red and with a green pillar: RATE 42.2 and 36.3, DT 6.7 and 36.4.",
    ]


def report_after_empty(records: Sequence[Record]) -> list[Paragraph]:
    """Return the table of the items that are taken after an empty room."""
    rows = []
    for label, of_cell in by_cell(records, "model").items():
        for how in ("", NOISE):
            # Records of earlier versions have no counts after an empty room, or with noise.
            waited = [r for r in of_cell if f"right/{after(EMPTY[-1], how)}" in r["scores"]]
            each = [share_of_right(waited, after(empty, how)) for empty in EMPTY]
            known = [np.sort(share_S[~np.isnan(share_S)]) for share_S in each]
            if any(share_S.size for share_S in known):
                name = ", ".join(filter(None, (label, how)))
                rows.append([name, *(", ".join(f"{x:.2f}" for x in one_S) for one_S in known)])
    return [
        f"Share of right items, for each seed, in the {AFTER} steps after the room has been "
        "empty for some steps, which begin when the pillar disappears:",
        table(["model", *map(str, EMPTY)], rows),
    ]


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
