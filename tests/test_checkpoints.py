"""The released agents are complete, small, and as good as their cards say."""

import re
from pathlib import Path

import pytest

from gtrxl_jax.loading import evaluate, load

FOLDERS = sorted(path.parent for path in Path(__file__).parents[1].glob("checkpoints/*/README.md"))


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_released_agent_is_complete(folder):
    assert (folder / "params.safetensors").stat().st_size < 5e6
    loaded = load(folder)
    card = (folder / "README.md").read_text()
    assert f"\n# {loaded.trainer.title}\n" in card
    seed = loaded.config.seed
    assert re.search(rf"`gtrxl train.*`, seed {seed}; .* on .*, commit [0-9a-f]+\.", card)
    table = (folder.parent / "README.md").read_text()
    assert f"({folder.name}/README.md)" in table


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
