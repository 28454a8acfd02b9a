"""The figures of a comparison: learning curves, and runs ranked by score."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gtrxl_jax.comparison.seeds import Seed, grouped
from gtrxl_jax.plots.curves import learning_curves
from gtrxl_jax.plots.ranking import ranking

STAGES = {"after a quarter": 0.25, "after half": 0.5, "at the end": 1.0}
"""The parts of training at which runs of a single task are ranked, as in GTrXL's figure 5."""
NAMES = {"success": "success rate", "return": "return", "normalized": "normalized score"}
"""The name of each score on an axis."""


def draw_curves(seeds: Sequence[Seed], path: Path) -> None:
    """Draw the learning curves of the seeds of one task."""
    curves, steps = {}, {}
    for label, group in grouped(seeds, lambda seed: seed.label).items():
        step_N = np.unique(np.concatenate([seed.step_N for seed in group]))
        value_SN = np.full((len(group), len(step_N)), np.nan)
        for value_N, seed in zip(value_SN, group, strict=True):
            value_N[np.searchsorted(step_N, seed.step_N)] = seed.value_N
        curves[label], steps[label] = value_SN, step_N
    score = seeds[0].score
    success = score == "success"
    learning_curves(
        curves,
        steps,
        path,
        y_label=NAMES[score] + (" in evaluations" if score == "normalized" else " in training"),
        y_limits=(-0.02, 1.02) if success else None,
        middle="median" if success else "IQM",
    )


def draw_ranking(by_task: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Rank the seeds of each agent, in all variants, for each task; for one task, at each stage."""
    if len(by_task) > 1:
        cells = {task: (seeds, 1.0) for task, seeds in by_task.items()}
    else:
        (seeds,) = by_task.values()
        cells = {stage: (seeds, share) for stage, share in STAGES.items()}
    panels, y_labels = {}, {}
    for title, (of_panel, share) in cells.items():
        agents = grouped(of_panel, lambda seed: seed.agent)
        panels[title] = {a: [s.score_after(share) for s in group] for a, group in agents.items()}
        y_labels[title] = NAMES[of_panel[0].score]
    ranking(panels, path, y_labels=y_labels)
