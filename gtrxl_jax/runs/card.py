"""Model cards: the scores, provenance and use of a trained model.

A card is the README.md of its folder, and begins with the YAML that the Hugging Face hub reads.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from gtrxl_jax.files import write_text
from gtrxl_jax.formatting import format_number
from gtrxl_jax.nn.normalizer import without_statistics
from gtrxl_jax.runs.results import NOT_EVALUATED, Score, main_scores
from gtrxl_jax.statistics import SOLVED

CARD = "README.md"
"""The name of a card's file."""
TYPES = {"return": "mean_reward"}
"""The hub's names of scores."""


def write_card(
    folder: str | os.PathLike[str],
    title: str,
    config: Mapping[str, Any],
    record: dict[str, Any],
    params: Any,
    notes: Sequence[str] = (),
) -> Path:
    """Write the card of a run into its folder.

    Args:
      folder: the folder of the run.
      title: what was trained, and on what.
      config: the run's config, as in config.json.
      record: its result, see `gtrxl_jax.runs.results.record_of`.
      params: its parameters, which are counted.
      notes: lines on how it reads its observations.
    """
    path, name = Path(folder, CARD), Path(folder).resolve().name
    parameters = sum(leaf.size for leaf in jax.tree.leaves(without_statistics(params)))
    seeds, diverged = record["seeds"], record["num_diverged"]
    several = len(seeds) > 1
    origin = record.get("init_from")
    scores = {name: Score.of(score) for name, score in record["evaluation"].items()}
    lines = [
        *metadata(config, scores, name),
        "",
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
    write_text(path, "\n".join(lines))
    return path


def set_card_address(folder: str | os.PathLike[str], address: str) -> None:
    """Let the card in a folder load its agent by an address, see `runs.addresses`."""
    path = Path(folder, CARD)
    call = re.sub(r'(?<=gtrxl_jax\.load\()".*"(?=\))', json.dumps(address), path.read_text("utf-8"))
    path.write_text(call, "utf-8")


def metadata(config: Mapping[str, Any], scores: Mapping[str, Score], name: str) -> list[str]:
    """Return the lines of YAML by which the hub lists and compares models.

    Args:
      config: the run's config, as in config.json.
      scores: the scores of its evaluation.
      name: name of the model.
    """
    env = config.get("env", {})
    environments = [task.get("name", env.get("name")) for task in env.get("tasks") or [{}]]
    environments = [name for name in dict.fromkeys(environments) if name]
    parts = [config.get(part, {}).get("name") for part in ("core", "model", "algorithm")]
    tags = ["reinforcement-learning", *(part for part in parts if part), *environments]
    task = ", ".join(environments) or str(config.get("data", {}).get("path") or "its own data")
    metrics = [
        {"type": TYPES.get(kind := score.partition("/")[0], kind), "name": score, "value": value}
        for score in main_scores(scores)
        if (value := _center(scores[score])) is not None
    ]
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": task, "type": task},
        "metrics": metrics,
    }
    index = [{"name": name, "results": [result]}]
    # YAML contains JSON.
    fields = {"library_name": "gtrxl_jax", "pipeline_tag": "reinforcement-learning", "tags": tags}
    fields |= {"model-index": index} if metrics else {}
    return ["---", *(f"{field}: {json.dumps(value)}" for field, value in fields.items()), "---"]


def _center(score: Score) -> float | None:
    """Return the mean of one seed, or the median of several, to three digits; None without."""
    value = score.median if score.mean is None else score.mean
    return round(value, 3) if value is not None and math.isfinite(value) else None


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
            *(map(format_number, scores[name].per_seed) for name in shown),
        ]
        return [
            "On held-out episodes, by seed, since each drew its own settings:",
            "",
            f"| {' | '.join(['seed', *drawn, *shown])} |",
            f"|{'---|' * len(columns)}",
            *(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)),
        ]
    # The record of one of several seeds has no interval.
    interval = " and 95 % interval" if any(score.interval for score in scores.values()) else ""
    over = f"On held-out episodes, mean{interval} over the episodes of one seed:"
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
