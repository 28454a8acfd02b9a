"""The code and commands of the README run unchanged, with JAX's default settings."""

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


def code(language):
    """Return all code blocks of a language, at their line numbers in the README."""
    text = README.read_text(encoding="utf-8")
    blocks = list(re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert blocks, f"the README shows no {language}"
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


@pytest.mark.parametrize(
    ("command", "parse"), [("train", parse_train), ("train-offline", parse_train_offline)]
)
def test_training_commands_parse(command, parse):
    text = code("bash").replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    training = [line[2:] for line in lines if line[:2] == ["gtrxl", command]]
    assert training
    for arguments in training:
        parse(arguments)
