"""Model cards: the scores, provenance and use of a trained model."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from gtrxl_jax.files import atomic
from gtrxl_jax.formatting import number
from gtrxl_jax.nn.normalizer import weights
from gtrxl_jax.runs.results import NOT_EVALUATED, Score, main_scores
from gtrxl_jax.statistics import SOLVED


def write_card(
    folder: str | os.PathLike[str],
    title: str,
    record: dict[str, Any],
    params: Any,
    notes: Sequence[str] = (),
) -> Path:
    """Write card.md into the folder of a run.

    Args:
      folder: the folder of the run.
      title: what was trained, and on what.
      record: its result, see `gtrxl_jax.runs.results.record_of`.
      params: its parameters, which are counted.
      notes: lines on how it reads its observations.
    """
    path = Path(folder, "card.md")
    with atomic(path) as temporary:
        parameters = sum(leaf.size for leaf in jax.tree.leaves(weights(params)))
        text = card(title, record, parameters, Path(folder).name, notes)
        temporary.write_text(text, "utf-8", errors="backslashreplace")
    return path


def card(
    title: str, record: dict[str, Any], parameters: int, name: str, notes: Sequence[str] = ()
) -> str:
    """Return the text of a card.

    Args:
      title: as in `write_card`.
      record: as in `write_card`.
      parameters: number of parameters of the network.
      name: name of the folder.
      notes: as in `write_card`.
    """
    seeds, diverged = record["seeds"], record["num_diverged"]
    several = len(seeds) > 1
    origin = record.get("init_from")
    scores = {name: Score.of(score) for name, score in record["evaluation"].items()}
    lines = [
        f"# {title}",
        "",
        f"{parameters:,} parameters{' for each seed' if several else ''}.",
        "",
        *(f"{note[:1].upper()}{note[1:]}.\n" for note in notes),
        *(_table(scores, seeds, record["sampled"]) if scores else [f"It was {NOT_EVALUATED}."]),
        "",
        *([_OTHER_STEP.format(**record), ""] if "checkpoint" in record else []),
        *([f"{diverged} of {len(seeds)} seeds diverged.", ""] * bool(diverged)),
        *([f"It started from the parameters of {origin}.", ""] * bool(origin)),
        f"It was trained {'here ' * bool(origin)}only on this task, which its config.json "
        "specifies in full, and has not been tested on any other.",
        "",
        "## Use",
        "",
        "```python",
        "import gtrxl_jax",
        "",
        f"run = gtrxl_jax.load({json.dumps(name, ensure_ascii=False)})",
        "state = run.init(batch_size=8)",
        "state, action, extras = run.act(state, timestep, key)  # once per time step",
        "```",
        "",
        "## Provenance",
        "",
        f"`{record['command']}`, seed{'s' if several else ''} {', '.join(map(str, seeds))}; "
        f"{record['steps']:,} steps in {record['train_seconds']:.0f} s after "
        f"{record['compile_seconds']:.0f} s of compilation, on {record['device']}, "
        f"{record['date'][:10]}, commit {record['commit']}.",
        "",
    ]
    return "\n".join(lines)


_OTHER_STEP = (
    "The run was evaluated at its end, after {steps:,} steps. These parameters are of "
    "its checkpoint after {checkpoint:,} steps."
)


def _table(
    scores: Mapping[str, Score], seeds: Sequence[int], drawn: Mapping[str, Sequence[float]]
) -> list[str]:
    """Return the table of scores; by seed if the seeds differ in drawn settings."""
    if len(seeds) > 1 and drawn:
        shown = main_scores(scores)
        columns = [
            map(str, seeds),
            *(map("{:.3g}".format, settings) for settings in drawn.values()),
            *(map(number, scores[name].per_seed) for name in shown),
        ]
        return [
            "On held-out episodes, by seed, since each drew its own settings:",
            "",
            f"| {' | '.join(['seed', *drawn, *shown])} |",
            f"|{'---|' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)),
        ]
    over = "On held-out episodes, mean and 95 % interval over the episodes of one seed:"
    if len(seeds) > 1:
        over = (
            f"On held-out episodes, over {len(seeds)} seeds. A seed has solved the task with a "
            f"success of at least {SOLVED}. Intervals are 95 %: Wilson's for the number of such "
            "seeds, bootstrapped for the interquartile mean (IQM):"
        )
    ordered = sorted(scores.items(), key=_by_length)
    drew = ", ".join(f"{name} {value:.3g}" for name, (value, *_) in drawn.items())
    return [
        *([f"Its settings were drawn: {drew}.", ""] * bool(drawn)),
        over,
        "",
        "| score | value |",
        "|---|---|",
        *(f"| {name} | {score} |" for name, score in ordered),
    ]


def _by_length(score: tuple[str, Any]) -> tuple[str, int]:
    """Return a sort key that orders scores by name, then by length."""
    name, _, length = score[0].partition("/")
    return name, int(length) if length.isdecimal() else 0
