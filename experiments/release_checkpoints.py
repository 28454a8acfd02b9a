"""Train, evaluate and export the released agents, in checkpoints/, and the bundled one.

    python experiments/release_checkpoints.py
    python experiments/release_checkpoints.py --only cartpole

This trains agents by the command line, in runs/released/NAME, unless that run has ended; then
exports each to checkpoints/NAME, or for bundled://NAME to gtrxl_jax/agents/NAME, in place of an
earlier export; and evaluates it on fresh episodes.
The command, commit, device, date and seed are in the card of each. Expected: a success of 1, and
returns of 500 in CartPole, above 90 in Numpad and above 0.9 in RepeatPrevious and Autoencode, after
about a minute each on two cores, up to five with long episodes.

Prints the rows of the table in checkpoints/README.md.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tyro

from gtrxl_jax.exporting import export
from gtrxl_jax.loading import evaluate
from gtrxl_jax.runs.addresses import BUNDLED, is_address
from gtrxl_jax.runs.card import CARD, set_card_address
from gtrxl_jax.validation import require_choice

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
AGENTS = {
    "bundled://tmaze": [
        *("train", "--core.width", "32", "--agent.encoder-width", "32", "--agent.head-width", "64"),
        *("--total-steps", "400000"),
    ],
    "tmaze": ["train"],
    "cartpole": ["train", "--env.name", "CartPole-v1", "--total-steps", "300000"],
    "associative": ["train", "--env.name", "AssociativeRetrieval-v0", "--total-steps", "1000000"],
    "memory_chain": [
        *("train", "--env.name", "MemoryChain-v0"),
        *("--env.params", "memory_length", "100", "num_bits", "3"),
        *("--core.memory-size", "104", "--total-steps", "2000000"),
    ],
    "numpad": [
        "train",
        *("--env.name", "NumpadDiscrete-v0", "--env.params", "size", "2", "--env.num-envs", "16"),
        *("--core.memory-size", "64", "--unroll", "64", "--total-steps", "1000000"),
        *("--algorithm.name", "vmpo"),
    ],
    "minigrid": [
        "train",
        *("--env.name", "MiniGrid-MemoryS9-v0", "--env.params", "view_size", "3"),
        *("--core.memory-size", "64", "--algorithm.name", "ppo", "--total-steps", "2000000"),
    ],
    "repeat_previous": [
        "train",
        *("--env.name", "RepeatPreviousHard-v0", "--core.memory-size", "64", "--unroll", "64"),
        # As in popgym_baselines.py.
        *("--algorithm.name", "ppo", "--algorithm.gae-lambda", "0.5"),
        *("--optimizer.learning-rate", "0.001", "--total-steps", "700000"),
    ],
    "autoencode": [
        "train",
        *("--env.name", "AutoencodeEasy-v0", "--env.num-envs", "20"),
        *("--core.memory-size", "104", "--unroll", "104", "--agent.clock"),
        # As in popgym_baselines.py, for longer.
        *("--algorithm.name", "ppo", "--algorithm.gae-lambda", "0.5"),
        *("--algorithm.minibatches", "4", "--algorithm.entropy-final", "1"),
        *("--optimizer.learning-rate", "0.001", "--total-steps", "1500000"),
    ],
    "memory_maze": [
        "train",
        *("--env.name", "MemoryMaze-9x9-v0", "--env.params", "height", "64", "width", "64"),
        *("--env.num-envs", "256", "--env.stagger", "--agent.encoder", "nature"),
        *("--core.width", "128", "--core.memory-size", "512", "--unroll", "64"),
        *("--algorithm.epochs", "2", "--algorithm.minibatches", "16"),
        *("--evaluation.episodes", "64", "--total-steps", "25000000"),
    ],
    "rate": ["train-offline", "--segments", "5", "--model.cache-size", "90"],
}
"""The command that trains each released agent."""
ON_GPU = {"memory_maze"}
"""Agents that take a GPU five minutes, and a CPU hours; only if they are named."""
EPISODES = {"train": 1024, "train-offline": 64}
"""Episodes of the evaluation, fewer where they are played at five lengths of up to 900 steps."""
LARGEST = 5_000_000
"""The largest size of a file in bytes."""
LARGEST_BUNDLED = 300_000
"""The same for one that everybody downloads with the package."""


@dataclasses.dataclass(frozen=True)
class Release:
    """Which agents to release."""

    only: tuple[str, ...] = tuple(name for name in AGENTS if name not in ON_GPU)
    """Names of agents; by default all that are trained on CPUs."""


def folder(name: str) -> Path:
    """Return the folder of the run of an agent."""
    return Path("runs", "released", name.replace("://", "-"))


def train(name: str) -> None:
    """Train an agent if necessary."""
    command = [*AGENTS[name], "--folder", str(folder(name)), "--no-plots"]
    subprocess.run([Path(sys.executable).with_name("gtrxl"), *command], check=True)


def release(name: str) -> str:
    """Export and evaluate a trained agent; return its row of the table."""
    run, to, command = folder(name), CHECKPOINTS / name, AGENTS[name]
    if is_address(name):
        to = BUNDLED / name.removeprefix("bundled://")
    if command[0] == "train-offline":
        run = run / "rate"
    if to.exists():
        shutil.rmtree(to)
    export(run, to)
    if is_address(name):
        set_card_address(to, name)
    sizes = {path.name: path.stat().st_size for path in to.iterdir()}
    largest = LARGEST_BUNDLED if is_address(name) else LARGEST
    if max(sizes.values()) > largest:
        raise ValueError(f"{to} has a file of more than {largest:,} bytes: {sizes}")
    scores, _ = evaluate(to, 64 if name in ON_GPU else EPISODES[command[0]])
    # A sequence model has a success for each length of episodes.
    lengths = sorted(int(score[8:]) for score in scores if score.startswith("success/"))
    longest = f"success/{lengths[-1]}" if lengths else ""
    shown = [score for score in ("success", "return", longest) if score in scores]
    cells = (
        f"[{name}]({os.path.relpath(to / CARD, CHECKPOINTS)})",
        f"`{' '.join(['gtrxl', *AGENTS[name]])}`",
        (to / CARD).read_text("utf-8").partition(" parameters.")[0].rpartition("\n")[2],
        f"{sum(sizes.values()) / 1e6:.2f} MB",
        "; ".join(f"{score} {scores[score]}" for score in shown),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    chosen = tyro.cli(Release, description=__doc__).only
    for name in chosen:
        require_choice("agent", name, AGENTS)
    for name in chosen:  # before any export, which would differ from the commit in the cards
        train(name)
    rows = [release(name) for name in chosen]
    print("\n".join(rows))
