"""The README's code runs unchanged, with JAX's default settings; commands of all pages parse."""

import os
import re
import subprocess
import sys
from functools import partial

import pytest

from gtrxl_jax.cli.arguments import parse_plan, parse_train, parse_train_offline
from gtrxl_jax.cli.parsing import parse
from gtrxl_jax.cli.trained import Evaluate, Export, Inspect, Play
from gtrxl_jax.online.config import preset, to_json
from tests.pages import README, ROOT, code, commands, pages


def test_first_example_is_short():
    first = re.search(
        r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 15


TORN = "ignore:Error reading persistent compilation cache entry"  # as in pyproject.toml


# In a separate interpreter, since this one uses strict dtype promotion.
@pytest.mark.integration
@pytest.mark.parametrize("core", ["gtrxl", pytest.param("lstm", marks=pytest.mark.slow)])
def test_python_code_runs_with_either_core(core, tmp_path):
    written = code("python")
    assert 'make_core("gtrxl"' in written
    program = tmp_path / README.name
    program.write_text(written.replace('make_core("gtrxl"', f'make_core("{core}"'))
    subprocess.run(
        [sys.executable, "-W", "error", "-W", TORN, program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )


@pytest.mark.integration
@pytest.mark.slow
def test_python_code_of_trained_agents_runs(tmp_path):
    written = code("python", ROOT / "docs" / "trained.md")
    assert written.count("actor(observation, reward, first)") == 1
    program = tmp_path / "page.py"
    program.write_text(written)
    command = [sys.executable, "-W", "error", "-W", TORN, program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "500.0\n" * 3


PARSERS = {
    "train": parse_train,
    "train-offline": parse_train_offline,
    "plan": parse_plan,
    "evaluate": partial(parse, Evaluate, prog="gtrxl evaluate"),
    "play": partial(parse, Play, prog="gtrxl play"),
    "inspect": partial(parse, Inspect, prog="gtrxl inspect"),
    "export": partial(parse, Export, prog="gtrxl export"),
}


def test_commands_parse(tmp_path, monkeypatch):
    """In a folder with the run that some of them resume."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.json").write_text(to_json(preset()))
    found = dict.fromkeys(PARSERS, 0)
    parsed = set()
    for page in pages():
        for number, (program, *words) in commands(page):
            if program == "gtrxl" and words[0] in PARSERS and tuple(words) not in parsed:
                try:
                    PARSERS[words[0]](words[1:])
                except ValueError as error:
                    raise ValueError(f"{page.relative_to(ROOT)}:{number}: {error}") from None
                parsed.add(tuple(words))
                found[words[0]] += 1
    assert min(found.values()) > 1
    assert min(found["train"], found["train-offline"]) > 10


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_command_is_in_a_block_of_bash(page):
    """Others would not be tested."""
    shown = re.findall(r"^ *(?:gtrxl|python) .*$", page.read_text("utf-8"), re.MULTILINE)
    tested = [words for _, words in commands(page) if words[0] in ("gtrxl", "python")]
    assert len(tested) == len(shown)
