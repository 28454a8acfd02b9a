"""Action Associative Retrieval: does a model remember its own first action? (RATE, section 5.)

    python experiments/rate_associative.py

The first action, 0 or 1, must be repeated at the end. While RATE and the Decision Transformer train
on the oracle's episodes of N * K = 90 steps, the probability that each gives to the right last
action is taken on fresh oracle episodes: p0 over those that began with 0, p1 over those with 1.
A model that remembers has both at 1. One that does not shares one probability between the two, so
that p0 + p1 = 1: along training the two are correlated by -1. The paper reports, for episodes
longer than the context, +0.80 for RATE and -0.97 for the Decision Transformer.

Here at the training length, which is DT's whole context, and at twice that length, beyond it. The
correlation is over the points of training after its first fifth, as the paper leaves the first
ones out; where neither probability moves any more it says little, so that the last points are
given with it, and the success of episodes played, by actions that are drawn.

Writes experiments/results/rate_associative.json, .md and .png.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from gtrxl_jax.data.segments import Segments, cut_segments
from gtrxl_jax.files import atomic
from gtrxl_jax.nn.models import model_config
from gtrxl_jax.ops.statistics import mean_and_interval
from gtrxl_jax.pictures.style import COLOURS, GREY, new_figure, save_figure, style_axes
from gtrxl_jax.training.offline import OfflineTrainer
from gtrxl_jax.training.offline_config import (
    DataConfig,
    OfflineConfig,
    OfflineEvaluationConfig,
    TaskConfig,
)
from gtrxl_jax.training.programs import Programs
from gtrxl_jax.training.results import provenance
from gtrxl_jax.training.tasks import trajectories_of

RESULTS = Path(__file__).parent / "results"
MODELS = {"RATE": "rate", "DT": "dt"}
PUBLISHED = {"RATE": 0.80, "DT": -0.97}
EPISODES = 128


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run."""

    num_seeds: int = 3
    updates: int = 600
    context: int = 30
    segments: int = 3
    again: bool = False
    """Run also what is in the results already."""


def job(settings: Settings, model: str, seed: int) -> OfflineConfig:
    """One run."""
    length = settings.context * settings.segments
    return OfflineConfig(
        task=TaskConfig("AssociativeRetrieval-v0"),
        # With two layers a run may stay at a guess for hundreds of updates, be it DT or RATE.
        model=model_config(model, layers=3),
        # Drawn, so that both first actions occur.
        evaluation=OfflineEvaluationConfig(lengths=(length, 2 * length), policy="sample"),
        context=settings.context,
        segments=settings.segments,
        curriculum=True,
        total_updates=settings.updates,
        updates_per_visit=10,
        seed=seed,
    )


def fresh_episodes(config: OfflineConfig, times: int) -> Segments:
    """Whole oracle episodes, `times` the training length, that no model learns from."""
    data = DataConfig(episodes=EPISODES, seed=config.data.seed + 1)
    segments = times * config.segments
    longer = dataclasses.replace(config, segments=segments, curriculum=False, data=data)
    context = config.shape[1]
    return cut_segments(trajectories_of(longer), segments * config.context // context, context)


def last_action_probabilities(trainer: OfflineTrainer, episodes: Segments) -> Callable[..., Any]:
    """The function of parameters that gives (p0, p1)."""
    model: Any = trainer.model
    by_segment = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), episodes)
    length_B = jnp.sum(episodes.mask, axis=(1, 2))
    rows = jnp.arange(len(length_B))

    def last(x_NBK: Any) -> Any:
        return jnp.moveaxis(x_NBK, 0, 1).reshape(len(rows), -1)[rows, length_B - 1]

    target_B = last(by_segment.actions)

    @jax.jit
    def probabilities(network: Any) -> Any:
        def one(memory: Any, segment: Segments) -> Any:
            memory, policy = model.apply({"params": network}, memory, segment)
            return memory, policy.log_prob(segment.actions)

        start = model.apply({"params": network}, len(rows), method="initial_memory")
        _, log_prob_NBK = jax.lax.scan(one, start, by_segment)
        right_B = jnp.exp(last(log_prob_NBK))
        return jnp.stack([jnp.mean(right_B, where=target_B == goal) for goal in (0, 1)])

    return probabilities


def run(settings: Settings, label: str, seed: int) -> dict[str, Any]:
    """Train one model, taking the two probabilities at each visit."""
    trainer = OfflineTrainer(job(settings, MODELS[label], seed))
    measures = {
        name: last_action_probabilities(trainer, fresh_episodes(trainer.config, times))
        for name, times in (("training", 1), ("twice", 2))
    }
    programs = Programs(trainer)
    state = programs.init()
    points: dict[str, list[list[float]]] = {name: [] for name in measures}
    for stage, data in trainer.feed(1, trainer.mesh()):
        state, _ = programs.visit(stage, data)(state, data)
        for name, measure in measures.items():
            points[name].append(np.asarray(measure(state.network)).tolist())
    scores = jax.jit(trainer.evaluate)(state.network, jax.random.key(seed))
    length = settings.context * settings.segments
    success = {"training": f"success/{length}", "twice": f"success/{2 * length}"}
    return provenance() | {
        "label": label,
        "seed": seed,
        "updates": settings.updates,
        "points": points,
        "correlation": {name: correlation(np.array(p)) for name, p in points.items()},
        "success": {name: float(np.mean(scores[score])) for name, score in success.items()},
    }


def correlation(points_V2: np.ndarray) -> float:
    """Pearson's, of p0 and p1 over the points of training but its first fifth."""
    kept_V2 = points_V2[len(points_V2) // 5 :]
    return float(np.corrcoef(kept_V2.T)[0, 1])


def draw(records: list[dict[str, Any]], lengths: dict[str, int]) -> None:
    """p1 over p0 along training, one panel for each model and length; late points are dark."""
    figure = new_figure(6.5, 5.6)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, label in zip(panels, MODELS, strict=True):
        for axes, (name, length) in zip(row, lengths.items(), strict=True):
            for record in records:
                if record["label"] == label:
                    p_V2 = np.array(record["points"][name])
                    alpha_V = np.linspace(0.1, 0.9, len(p_V2))
                    axes.scatter(*p_V2.T, s=12, color=COLOURS[0], alpha=alpha_V, linewidths=0)
            axes.plot([0, 1], [1, 0], color=GREY, linestyle=(0, (4, 3)), linewidth=1.0)
            axes.set_title(f"{label}, {length} steps", fontsize=9)
            axes.set_xlim(-0.03, 1.03)
            axes.set_ylim(-0.03, 1.03)
            style_axes(axes)
    figure.supxlabel("p0: probability of repeating 0 where it is right", fontsize=9)
    figure.supylabel("p1: probability of repeating 1 where it is right", fontsize=9)
    save_figure(figure, RESULTS / "rate_associative.png")


def report(settings: Settings, records: list[dict[str, Any]]) -> str:
    """Write the table and the figure."""
    length = settings.context * settings.segments
    lengths = {"training": length, "twice": 2 * length}
    rows = [
        "| model | steps | correlation | published | p0 at the end | p1 at the end | success |",
        "|---|---|---|---|---|---|---|",
    ]
    for label in MODELS:
        mine = [record for record in records if record["label"] == label]
        for name, steps in lengths.items():
            columns = [
                [record["correlation"][name] for record in mine],
                *([record["points"][name][-1][goal] for record in mine] for goal in (0, 1)),
                [record["success"][name] for record in mine],
            ]
            cells = []
            for values in columns:
                mean, half = mean_and_interval(np.array(values), axis=0)
                cells.append(f"{mean:.2f} ± {half:.2f}")
            published = f"{PUBLISHED[label]:+.2f}" if name == "twice" else ""
            rows.append(f"| {label} | {steps} | " + " | ".join([cells[0], published, *cells[1:]]))
            rows[-1] += " |"
    some = records[-1]
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    text = "\n".join(
        [
            "# Action Associative Retrieval",
            "",
            f"Trained on {length} steps ({settings.segments} segments of {settings.context}; all "
            f"of them DT's context), {some['updates']} updates; mean and 95 % interval over "
            f"{len({record['seed'] for record in records})} seeds. p0 and p1 are the probabilities "
            f"of the right last action on {EPISODES} fresh oracle episodes, their correlation is "
            "along training. Chance of success is 0.5.",
            "",
            *rows,
            "",
            f"`python experiments/rate_associative.py` on {some['device']}, {some['date'][:10]}, "
            f"commits {commits}.",
            "",
        ]
    )
    with atomic(RESULTS / "rate_associative.md") as temporary:
        temporary.write_text(text)
    draw(records, lengths)
    return text


def main(settings: Settings) -> None:
    """Run what is missing, keeping each run as soon as it is done."""
    path = RESULTS / "rate_associative.json"
    records = json.loads(path.read_text()) if path.exists() and not settings.again else []
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        for label in MODELS:
            for seed in range(settings.num_seeds):
                if any((r["label"], r["seed"]) == (label, seed) for r in records):
                    continue
                records.append(run(settings, label, seed))
                print(label, seed, records[-1]["correlation"], records[-1]["success"], flush=True)
                with atomic(path) as temporary:
                    temporary.write_text(json.dumps(records, indent=1) + "\n")
    print(report(settings, records))


if __name__ == "__main__":
    main(tyro.cli(Settings))
