"""The card of a trained model: what it is, how good, where it comes from, how to use it."""

import json
import os
from pathlib import Path
from typing import Any

import jax

from gtrxl_jax.files import atomic


def write_card(folder: str | os.PathLike[str], title: str, network: Any) -> Path:
    """Write card.md into the folder of a run that has its result.

    Args:
      folder: the run, with config.json and result.json.
      title: what was trained, and on what.
      network: its parameters, to be counted.
    """
    result = json.loads(Path(folder, "result.json").read_text())
    path = Path(folder, "card.md")
    with atomic(path) as temporary:
        temporary.write_text(card(title, result, _count(network), Path(folder).name))
    return path


def card(title: str, result: dict[str, Any], parameters: int, name: str) -> str:
    """The text of a card.

    Args:
      title: as in `write_card`.
      result: what result.json holds.
      parameters: how many numbers the network has.
      name: of the folder.
    """
    seeds, diverged = result["seeds"], result["num_diverged"]
    several = len(seeds) > 1
    over = f"{len(seeds) - diverged} seeds" if several else "the episodes of one seed"
    scores = [
        f"| {score} | {_number(mean)} ± {_number(half)} |"
        for score, (mean, half) in sorted(result["evaluation"].items(), key=_by_length)
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
        f"`{result['command']}`, seed{'s' if several else ''} {', '.join(map(str, seeds))}; "
        f"{result['steps']:,} steps in {result['train_seconds']:.0f} s after "
        f"{result['compile_seconds']:.0f} s of compilation, on {result['device']}, "
        f"{result['date'][:10]}, commit {result['commit']}.",
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
