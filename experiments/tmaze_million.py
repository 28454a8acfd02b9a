"""T-Mazes of up to a million steps, for models that were trained on at most 30, 50 or 100.

    python experiments/tmaze_million.py
    python experiments/tmaze_million.py --only ELMUR --seeds 1

RATE, ELMUR and the Decision Transformer are trained on the same episodes of the oracle, of one, two
and three segments of 10 steps, with RATE's curriculum:

    RATE                  5 memory tokens, valve CA-2, and a cache of the previous segment
    ELMUR                 two slots, of which a rewritten one is 0.79 new, as its authors have it
    RATE, tokens only     RATE without the cache, on ten segments
    DT                    without memory; all 30 steps at once, a sliding window in longer episodes
    ..., five segments    on episodes of one to five segments, the other number of RATE's paper
    ..., ten segments     on episodes of one to ten segments
    ..., dropout          with the dropout of RATE's paper for this task, 0.05
    ..., dropout of 0.2   with that of its tasks with images

Scores are those of the final parameters and the most likely actions, without selection of
checkpoints. A run that has lost the cue in some of the longer corridors is not played in longer
ones, where it counts as not solved. DT is played for up to 1,000 steps only: it processes its whole
window at every step, and cannot know the cue once it is outside.

What a memory does over the segments is followed in corridors without an end. After each of them,
the model is asked what it would do at the junction (`follow`):

    margin    by how much the logit of the right turn exceeds that of the wrong one, the smallest
              over episodes
    change    root mean square of the change of the memory over the segment

Writes tmaze_million.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.acting.evaluation import make_evaluate, summarize
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import OfflineConfig, OfflineEvaluationConfig
from gtrxl_jax.offline.environments import make_stream
from gtrxl_jax.plots.curves import plot_success_against_horizon
from gtrxl_jax.segments import Segments
from gtrxl_jax.statistics import SOLVED
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import ENTRIES, Paragraph, median, solved_share, table
from gtrxl_jax.worlds.tmaze import DOWN, RIGHT, UP

CONTEXT = 10
SHORT, EPISODES = (9, 30, 90, 1000, 1005), 32
"""Steps of episodes, and how many of each. All but 9 and 1005 have the junction at the same step of
a segment as in training."""
LONG, LONG_EPISODES = (10_000, 100_000, 1_000_000), 4
RATE = {"name": "rate", "cache_size": 3 * CONTEXT}
ELMUR = {"name": "elmur", "memory_slots": 2, "blend": 0.79}
MODELS: dict[str, dict[str, Any]] = {
    "RATE": RATE,
    "ELMUR": ELMUR,
    "DT": {"name": "dt"},
    "RATE, five segments": RATE,
    "RATE, five segments, dropout": RATE | {"dropout": 0.05},
    "RATE, five segments, dropout of 0.2": RATE | {"dropout": 0.2},
    "RATE, ten segments, dropout": RATE | {"dropout": 0.05},
    "RATE, tokens only, ten segments, dropout": {"name": "rate", "dropout": 0.05},
    "ELMUR, ten segments, dropout": ELMUR | {"dropout": 0.05},
}
SEGMENTS = {label: 5 if "five" in label else 10 if "ten" in label else 3 for label in MODELS}
BATCH, UPDATES = 32, 150
"""The batch, and the updates for each number of segments."""
MARKS = (1, 2, 3, 10, 100, 1000)
"""The numbers of segments after which a memory is looked at."""
PUBLISHED = {"ELMUR, published": {1_000_000: 1.0}}
"""Success as in ELMUR's abstract, "100% ... with corridors up to one million steps"."""


def job(model: str, updates: int | None) -> OfflineConfig:
    """Return the config of a cell."""
    config = model_config(**MODELS[model])
    lengths = SHORT if config.is_recurrent else SHORT[:3]
    return OfflineConfig(
        model=config,
        evaluation=OfflineEvaluationConfig(episodes=EPISODES, lengths=lengths),
        unroll=CONTEXT,
        segments=SEGMENTS[model],
        curriculum=True,
        batch_size=BATCH,
        total_updates=updates or UPDATES * SEGMENTS[model],
        remat=False,
    )


def measure(trained: Any) -> dict[str, float]:
    """Return the success of a model in long corridors and, of one with memory, see `follow`."""
    trainer, params = trained.trainer, trained.params_per_seed[0]
    has_memory = trainer.config.model.is_recurrent
    lengths = LONG if has_memory else (1000,)
    streams = {n: make_stream(trainer.config, n) for n in lengths}
    space = streams[lengths[0]].observation_space

    @jax.jit
    def play(env_params: Any, params: Any, key: jax.Array) -> jax.Array:
        """Return the mean success; all lengths share one program."""
        stream = dataclasses.replace(streams[lengths[0]], params=env_params)
        evaluate = make_evaluate(trainer.policy, stream, LONG_EPISODES, space)
        return jnp.mean(summarize(evaluate(params, key))["success"])

    success = {}
    for length, stream in streams.items():
        env_params = jax.tree.map(jnp.asarray, stream.params)
        score = float(play(env_params, params, jax.random.key(trainer.config.seed)))
        success[f"success/{length}"] = score
        if score < SOLVED:
            break
    return success | (follow(trainer, params) if has_memory else {})


def follow(trainer: Any, params: Any) -> dict[str, float]:
    """Return the margin of a model and the change of its memory after some numbers of segments."""
    model, config = trainer.model, trainer.config
    cue_B = jnp.where(jnp.arange(EPISODES) % 2 == 0, 1.0, -1.0)
    right_B = jnp.where(cue_B > 0, UP, DOWN)
    junction = CONTEXT - 2  # as in episodes of whole segments

    def apply(*arguments: Any, **options: Any) -> Any:
        return model.apply({"params": params}, *arguments, **options)

    def corridor(number: jax.Array) -> Segments:
        """Return a segment of the oracle's way along a corridor."""
        key = jax.random.fold_in(jax.random.key(config.seed), number)
        shape = EPISODES, CONTEXT
        hint_BT = jnp.zeros(shape).at[:, 0].set(jnp.where(number == 0, cue_B, 0))
        noise_BT = jax.random.randint(key, shape, -1, 2, jnp.int32).astype(jnp.float32)
        zeros_BT, step_T = jnp.zeros(shape), jnp.arange(CONTEXT, dtype=jnp.int32)
        return Segments(
            observations=jnp.stack([zeros_BT, hint_BT, zeros_BT, noise_BT], axis=-1),
            actions=jnp.full(shape, RIGHT, jnp.int32),
            returns_to_go=jnp.full(shape, trainer.target_return, jnp.float32),
            timesteps=jnp.broadcast_to(number * CONTEXT + step_T[None], shape),
            mask=jnp.ones(shape, bool),
        )

    def step(memory: Any, number: jax.Array) -> Any:
        following, _ = apply(memory, corridor(number))
        change = model.memory_metrics(memory, following)["memory/change"]
        last = corridor(number + 1)
        seen = last.observations.at[:, junction, 2].set(1.0)
        _, policy = apply(following, dataclasses.replace(last, observations=seen))
        logits_BA = policy.logits[:, junction]
        of_right_B, of_wrong_B = (
            jnp.take_along_axis(logits_BA, turn_B[:, None], axis=1)
            for turn_B in (right_B, UP + DOWN - right_B)
        )
        return following, (jnp.min(of_right_B - of_wrong_B), change)

    @jax.jit
    def walk() -> Any:
        memory = apply(EPISODES, method="initial_memory")
        return jax.lax.scan(step, memory, jnp.arange(max(MARKS), dtype=jnp.int32))[1]

    margin_N, change_N = map(np.asarray, walk())
    of = {"margin": margin_N, "change": change_N}
    return {f"{name}/{n}": float(x_N[n - 1]) for name, x_N in of.items() for n in MARKS}


def grid(options: Options) -> list[Cell]:
    """Return all cells."""
    return [
        Cell({"model": label}, job(label, options.steps), options.seeds or 3, measure=measure)
        for label in MODELS
    ]


def report(options: Options, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the tables and the figure of the available records."""
    lengths, found = (*SHORT, *LONG), by_cell(records, "model")
    drawn = [n for n in lengths if n != 1005]  # its label would cover that of 1,000
    rows, curves = [], {}
    for label in MODELS:
        if not (runs := found.get(label)):
            continue
        success = {n: success_in(runs, n) for n in lengths}
        curves[label] = carried_on([success[n] for n in drawn])
        rows.append([label, *(entry(success_S) for success_S in success.values())])
    for label, known in PUBLISHED.items():
        rows.append([label, *(f"{known[n]:.2f}" if n in known else "" for n in lengths)])
    plot_success_against_horizon(
        curves,
        np.array(drawn),
        options.results / "tmaze_million.png",
        x_label="steps of an episode (trained on at most 30, 50 or 100)",
        chance=0.5,
    )
    followed = [
        [label, name, *(each(found[label], f"{name}/{n}") for n in MARKS)]
        for label in found
        for name in ("margin", "change")
        if f"{name}/{MARKS[0]}" in found[label][0]["scores"]
    ]
    return "T-Mazes of up to a million steps", [
        "Success after training on episodes of 10, 20 and 30 steps, with five segments up to 50, "
        f"with ten up to 100, on {EPISODES} episodes of each length, of {LONG[0]:,} and more on "
        f"{LONG_EPISODES}, as DT at 1,000; chance is 0.5. {ENTRIES} The "
        "median is of the runs that were played: those that have lost the cue in shorter of the "
        "long corridors were not, and keep their last success in the figure.",
        table(["model", *(f"{n:,}" for n in lengths)], rows),
        "The margin of the right turn, and the change of the memory, after segments of a corridor "
        f"without an end, of each seed; the margin is the smallest of {EPISODES} episodes:",
        table(["model", "", *(f"{n:,}" for n in MARKS)], followed),
    ]


def success_in(runs: Sequence[Record], length: int) -> np.ndarray:
    """Return the success of each run, NaN for those that were not played."""
    return np.array([float(run["scores"].get(f"success/{length}", np.nan)) for run in runs])


def carried_on(success_HS: Sequence[np.ndarray]) -> np.ndarray:
    """Return the success of each run by length, `[S, H]`; lengths that were not played have that of
    the longest that was.
    """
    for before_S, success_S in itertools.pairwise(success_HS):
        is_missing_S = np.isnan(success_S)
        success_S[is_missing_S] = before_S[is_missing_S]
    return np.stack(success_HS, axis=1)


def entry(success_S: np.ndarray) -> str:
    """Return the entry of a table, empty if no run was played."""
    if np.isnan(success_S).all():
        return ""
    return f"{solved_share(success_S)}, {median(success_S)}"


def each(runs: Sequence[Record], score: str) -> str:
    """Return the score of each run, in the order of the seeds."""
    return ", ".join(f"{value:.3g}" for value in scores(runs, score))


STUDY = Study(__file__, grid, report)

if __name__ == "__main__":
    STUDY.main()
