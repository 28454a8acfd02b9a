"""The README's code runs unchanged, with JAX's default settings; commands of all pages parse."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gtrxl_jax.cli.arguments import parse_train, parse_train_offline

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def code(language, page=README):
    """Return all code blocks of a language, at their line numbers in the page."""
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    lines = [""] * len(text.splitlines())
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        body = block[1].splitlines()
        lines[first : first + len(body)] = body
    return "\n".join(lines)


def test_first_example_is_short():
    first = re.search(
        r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 15


# In a separate interpreter, since this one uses strict dtype promotion.
@pytest.mark.integration
@pytest.mark.parametrize("core", ["gtrxl", "lstm"])
def test_python_code_runs_with_either_core(core, tmp_path):
    written = code("python")
    assert 'make_core("gtrxl"' in written
    program = tmp_path / README.name
    program.write_text(written.replace('make_core("gtrxl"', f'make_core("{core}"'))
    subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )


PARSERS = {"train": parse_train, "train-offline": parse_train_offline}


def test_training_commands_parse():
    found = dict.fromkeys(PARSERS, 0)
    for page in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        for line in code("bash", page).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["gtrxl"] and words[1] in PARSERS:
                PARSERS[words[1]](words[2:])
                found[words[1]] += 1
    assert min(found.values()) > 10
