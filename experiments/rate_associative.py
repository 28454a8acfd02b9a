"""Action Associative Retrieval: does a model remember its own first action? (RATE, section 5.)

    python experiments/rate_associative.py

The first action, 0 or 1, must be repeated at the end. While RATE and the Decision Transformer train
on the oracle's episodes of N * K = 90 steps, the probability of the correct last action is measured
on fresh oracle episodes: p0 is its mean over episodes that began with 0, p1 over those that began
with 1. A model that remembers has p0 = p1 = 1. Without memory p0 + p1 = 1, so their correlation
over training is -1. For episodes longer than the context, the paper reports correlations of +0.80
for RATE and -0.97 for the Decision Transformer.

Both are measured at the training length, which is DT's whole context, and at twice that length. As
in the paper, the correlation excludes the beginning of training, here the first fifth. Since it is
uninformative once the probabilities are constant, the report also has their final values and the
success in episodes played with sampled actions.

Writes rate_associative.jsonl, .md and .png to experiments/results/.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gtrxl_jax.data import Segments, cut_segments
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.offline.config import (
    DataConfig,
    OfflineConfig,
    OfflineEnvConfig,
    OfflineEvaluationConfig,
)
from gtrxl_jax.offline.environments import trajectories_of
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.plots.style import COLORS, GREY, new_figure, save_figure, style_axes
from gtrxl_jax.runs.programs import Programs
from gtrxl_jax.studies import Cell, Options, Record, Study, by_cell, scores
from gtrxl_jax.studies.report import ENTRIES, Paragraph, solved_entry, table

MODELS = {"RATE": "rate", "DT": "dt"}
PUBLISHED = {"RATE": 0.80, "DT": -0.97}
EPISODES = 128


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What to run, and the training length."""

    unroll: int = 30
    segments: int = 3


def job(settings: Settings, model: str, seed: int = 0) -> OfflineConfig:
    """Return the config of a run."""
    length = settings.unroll * settings.segments
    return OfflineConfig(
        env=OfflineEnvConfig("AssociativeRetrieval-v0"),
        # With two layers, both DT and RATE may stay at chance for hundreds of updates.
        model=model_config(model, layers=3),
        # Sampled, so that both first actions occur.
        evaluation=OfflineEvaluationConfig(lengths=(length, 2 * length), actions="sample"),
        unroll=settings.unroll,
        segments=settings.segments,
        curriculum=True,
        total_updates=settings.steps or 600,
        updates_per_iteration=10,
        seed=seed,
    )


def fresh_episodes(config: OfflineConfig, times: int) -> Segments:
    """Return held-out oracle episodes of `times` the training length."""
    data = DataConfig(episodes=EPISODES, seed=config.data.seed + 1)
    segments = times * config.segments
    longer = dataclasses.replace(config, segments=segments, curriculum=False, data=data)
    unroll = config.shape[1]
    return cut_segments(trajectories_of(longer), segments * config.unroll // unroll, unroll)


def last_action_probabilities(trainer: OfflineTrainer, episodes: Segments) -> Callable[..., Any]:
    """Return the function from parameters to (p0, p1)."""
    model: Any = trainer.model
    by_segment = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), episodes)
    length_B = jnp.sum(episodes.mask, axis=(1, 2))
    rows = jnp.arange(len(length_B))

    def last(x_NBK: Any) -> Any:
        return jnp.moveaxis(x_NBK, 0, 1).reshape(len(rows), -1)[rows, length_B - 1]

    target_B = last(by_segment.actions)

    @jax.jit
    def probabilities(params: Any) -> Any:
        def one(memory: Any, segment: Segments) -> Any:
            memory, policy = model.apply({"params": params}, memory, segment)
            return memory, policy.log_prob(segment.actions)

        start = model.apply({"params": params}, len(rows), method="initial_memory")
        _, log_prob_NBK = jax.lax.scan(one, start, by_segment)
        right_B = jnp.exp(last(log_prob_NBK))
        return jnp.stack([jnp.mean(right_B, where=target_B == goal) for goal in (0, 1)])

    return probabilities


def measure(settings: Settings, label: str, seed: int) -> Record:
    """Train one model, measuring the two probabilities after each iteration."""
    began = time.monotonic()
    trainer = OfflineTrainer(job(settings, MODELS[label], seed))
    measures = {
        name: last_action_probabilities(trainer, fresh_episodes(trainer.config, times))
        for name, times in (("training", 1), ("twice", 2))
    }
    programs = Programs(trainer)
    state = programs.init()
    points: dict[str, list[list[float]]] = {name: [] for name in measures}
    for stage, data in trainer.feed(1, trainer.mesh()):
        state, _ = programs.iteration(stage, data)(state, data)
        for name, measure in measures.items():
            points[name].append(np.asarray(measure(state.params)).tolist())
    played = jax.jit(trainer.evaluate)(state.params, jax.random.key(seed))
    length = settings.unroll * settings.segments
    success = {"training": f"success/{length}", "twice": f"success/{2 * length}"}
    return {
        "steps": trainer.num_iterations * trainer.steps_per_iteration,
        "seconds": round(time.monotonic() - began, 1),
        "points": points,
        "correlation": {name: correlation(np.array(p)) for name, p in points.items()},
        "scores": {name: float(np.mean(played[score])) for name, score in success.items()},
    }


def correlation(points_V2: np.ndarray) -> float:
    """Return Pearson's correlation of p0 and p1 over training, without its first fifth."""
    kept_V2 = points_V2[len(points_V2) // 5 :]
    return float(np.corrcoef(kept_V2.T)[0, 1])


def draw(records: Sequence[Record], lengths: dict[str, int], path: Path) -> None:
    """Plot p1 against p0 in training, a panel per model and length; later points are darker."""
    figure = new_figure(6.5, 5.6)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, label in zip(panels, MODELS, strict=True):
        for axes, (name, length) in zip(row, lengths.items(), strict=True):
            for record in records:
                if record["labels"]["model"] == label:
                    p_V2 = np.array(record["points"][name])
                    alpha_V = np.linspace(0.1, 0.9, len(p_V2))
                    axes.scatter(*p_V2.T, s=12, color=COLORS[0], alpha=alpha_V, linewidths=0)
            axes.plot([0, 1], [1, 0], color=GREY, linestyle=(0, (4, 3)), linewidth=1.0)
            axes.set_title(f"{label}, {length} steps", fontsize=9)
            axes.set_xlim(-0.03, 1.03)
            axes.set_ylim(-0.03, 1.03)
            style_axes(axes)
    figure.supxlabel("p0: probability of repeating 0 where it is right", fontsize=9)
    figure.supylabel("p1: probability of repeating 1 where it is right", fontsize=9)
    save_figure(figure, path)


def report(options: Settings, records: Sequence[Record]) -> tuple[str, list[Paragraph]]:
    """Write the table and the figure."""
    length = options.unroll * options.segments
    lengths = {"training": length, "twice": 2 * length}
    rows = []
    for label, mine in by_cell(records, "model").items():
        for name, steps in lengths.items():
            entries = [
                each(record["correlation"][name] for record in mine),
                f"{PUBLISHED[label]:+.2f}" if name == "twice" else "",
                *(each(record["points"][name][-1][goal] for record in mine) for goal in (0, 1)),
                solved_entry(scores(mine, name)),
            ]
            rows.append([label, steps, *entries])
    columns = ("model", "steps", "correlation", "published", "p0 at the end", "p1 at the end")
    draw(records, lengths, options.results / "rate_associative.png")
    return "Action Associative Retrieval", [
        f"Trained on {length} steps ({options.segments} segments of {options.unroll}, which "
        f"are DT's context), {records[0]['steps']} updates. p0 and p1 are the probabilities "
        f"of the correct last action on {EPISODES} fresh oracle episodes, and the correlation "
        "is between them over training; all three for each seed. Success by chance is 0.5.",
        ENTRIES,
        table([*columns, "success"], rows),
    ]


def each(values: Iterable[Any]) -> str:
    """Format the values of all seeds; JSON stores NaN as a string."""
    return ", ".join(f"{float(value):.2f}" for value in values)


def grid(options: Settings) -> list[Cell]:
    """Return all cells."""
    return [
        Cell({"model": label}, functools.partial(measure, options, label), options.seeds or 3)
        for label in MODELS
    ]


def name_of(options: Settings) -> str:
    """Return the name of the study."""
    size = (options.segments, options.unroll)
    is_default = size == (Settings.segments, Settings.unroll)
    return "rate_associative" + ("" if is_default else "_{}x{}".format(*size))


STUDY = Study(__file__, grid, report, Settings, name_of)

if __name__ == "__main__":
    STUDY.main()
