"""The card of a trained model: what it is, how good, where it comes from, how to use it."""

import os
from pathlib import Path
from typing import Any

import jax

from gtrxl_jax.files import atomic


def write_card(
    folder: str | os.PathLike[str], title: str, record: dict[str, Any], network: Any
) -> Path:
    """Write card.md into the folder of a run.

    Args:
      folder: the run.
      title: what was trained, and on what.
      record: its result, see `gtrxl_jax.training.results.record_of`.
      network: its parameters, to be counted.
    """
    path = Path(folder, "card.md")
    with atomic(path) as temporary:
        temporary.write_text(card(title, record, _count(network), Path(folder).name))
    return path


def card(title: str, record: dict[str, Any], parameters: int, name: str) -> str:
    """The text of a card.

    Args:
      title: as in `write_card`.
      record: as in `write_card`.
      parameters: how many numbers the network has.
      name: of the folder.
    """
    seeds, diverged = record["seeds"], record["num_diverged"]
    several = len(seeds) > 1
    over = f"{len(seeds) - diverged} seeds" if several else "the episodes of one seed"
    scores = [
        f"| {score} | {_number(mean)} ± {_number(half)} |"
        for score, (mean, half) in sorted(record["evaluation"].items(), key=_by_length)
    ]
    lines = [
        f"# {title}",
        "",
        f"{parameters:,} parameters{' for each seed' if several else ''}.",
        "",
        f"On held-out episodes, mean and 95 % interval over {over}:",
        "",
        "| score | value |",
        "|---|---|",
        *scores,
        "",
        *([f"{diverged} of {len(seeds)} seeds diverged and are not counted.", ""] * bool(diverged)),
        "It was trained on this one task, for which its config.json says everything, and has been "
        "tested on no other.",
        "",
        "## Use",
        "",
        "```python",
        "import gtrxl_jax",
        "",
        f'run = gtrxl_jax.load("{name}")',
        "state = run.start(batch_size=8)",
        "state, action = run.act(state, timestep, key)  # as often as there are time steps",
        "```",
        "",
        "## Where it comes from",
        "",
        f"`{record['command']}`, seed{'s' if several else ''} {', '.join(map(str, seeds))}; "
        f"{record['steps']:,} steps in {record['train_seconds']:.0f} s after "
        f"{record['compile_seconds']:.0f} s of compilation, on {record['device']}, "
        f"{record['date'][:10]}, commit {record['commit']}.",
        "",
    ]
    return "\n".join(lines)


def _count(network: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(network))


def _number(value: Any) -> str:
    """Of what result.json holds, in which NaN is a string."""
    return f"{float(value):.3f}"


def _by_length(score: tuple[str, Any]) -> tuple[str, int]:
    """Scores by name, those of several lengths by length."""
    name, _, length = score[0].partition("/")
    return name, int(length) if length.isdecimal() else 0
