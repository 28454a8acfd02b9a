"""The released agents are complete, small, and as good as their cards say."""

import os
import re
from pathlib import Path

import pytest

from gtrxl_jax.loading import evaluate, load
from gtrxl_jax.runs.addresses import BUNDLED

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
FOLDERS = [
    path.parent for home in (CHECKPOINTS, BUNDLED) for path in sorted(home.glob("*/README.md"))
]


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
def test_released_agent_is_complete(folder):
    # Everybody downloads a bundled agent with the package.
    assert size(folder) < (3e5 if folder.parent == BUNDLED else 5e6)
    loaded = load(folder)
    card = (folder / "README.md").read_text()
    assert f"\n# {loaded.trainer.title}\n" in card
    seed = loaded.config.seed
    assert re.search(rf"`gtrxl train.*`, seed {seed}; .* on .*, commit [0-9a-f]+\.", card)
    table = (CHECKPOINTS / "README.md").read_text()
    assert f"({os.path.relpath(folder, CHECKPOINTS)}/README.md)" in table


@pytest.mark.integration
def test_smallest_agent_reaches_its_score():
    cards = {folder: (folder / "README.md").read_text() for folder in FOLDERS}
    # Sequence models have a score for each length of episodes instead.
    folder = min((folder for folder in FOLDERS if "| return |" in cards[folder]), key=size)
    card = cards[folder]
    name = "success" if "| success |" in card else "return"
    low, _ = map(float, re.search(rf"\| {name} \| \S+ \[(\S+), (\S+)\]", card).groups())
    scores, _ = evaluate(folder, episodes=16)
    assert scores[name].mean >= low
