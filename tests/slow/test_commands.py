"""Every command of the README and of the documentation works as written, on smaller jobs.

The commands are typed in the order of the pages, in one folder, since later ones use the runs, the
agents and the datasets of earlier ones: run the whole file. Options that shrink the jobs are
appended, and commands in SKIPPED are left out. The code in Python of each page runs after its
commands.
"""

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.ops.promotion import standard_dtype_promotion
from tests.conftest import free_programs
from tests.pages import README, ROOT, code, commands, pages

pytestmark = pytest.mark.slow

SKIPPED = {
    "make": "the targets run the tests, the tools of development, or the default job",
    "pip": "it would change the environment of the tests",
    "source": "the tests run in the environment",
    "bazel": "it would build DeepMind Lab",
    "./bazel-bin/python/pip_package/build_pip_package": "it would build DeepMind Lab",
    "gtrxl push": "it would write to the hub",
    "gtrxl play hf://me/remembers": "tests/runs/test_hub.py plays such an agent",
    "gtrxl train --init-from hf://me/remembers": "tests/runs/test_hub.py loads such an agent",
    "gtrxl plan": "tests/runs/test_plan.py compiles such programs",
    "gtrxl train --folder /shared/runs/mine --distributed": "it waits for the other hosts",
    "gtrxl train --preset paper --core.dtype bfloat16 --folder /shared/runs/paper --distributed": (
        "it waits for the other hosts"
    ),
    "python experiments/kill_and_resume.py": "tests/runs/test_resume.py runs it",
}
"""The programs and commands that are not typed, with the reason."""

SMALL = {
    "gtrxl train ": "--total-steps 1 --updates-per-iteration 1 --unroll 8 --no-plots "
    "--evaluation.episodes 2",
    "gtrxl train-offline ": "--total-updates 1 --updates-per-iteration 1 --no-plots --unroll 4 "
    "--batch-size 4 --data.episodes 8 --evaluation.episodes 2 --model-preset debug --devices 1",
    "gtrxl collect ": "--episodes 4 --env.num-envs 4",
    "gtrxl evaluate ": "--episodes 2",
    "python examples/ppo_from_scratch.py ": "--total-steps 1 --num-envs 8 --rollout 8 --window 4",
    "python experiments/": "--report-only --results experiments/results",
}
"""Options that are appended to the commands that begin so."""

PACKAGES = {
    "brax-": "brax",
    "dmlab": "deepmind_lab",
    "envpool:": "envpool",
    "Craftax-": "craftax",
    "jumanji:": "jumanji",
    "vizdoom:": "vizdoom",
    "xminigrid:": "xminigrid",
}
"""Packages without which a command is skipped, by a part of it."""

SHORT = ["max_steps_in_episode", "20"]
"""Parameters of environments with images, whose episodes are long."""

SMALL_SWEEP = {
    "seeds = 5": "seeds = 1",
    "total_steps = 1_000_000": """total_steps = 1
        updates_per_iteration = 1
        unroll = 8
        evaluation.episodes = 2
        core_preset = "debug"
        devices = 1""",
    "[50, 100]": "[50]",
}
"""Replacements in the file of the sweep."""


def small(words):
    """Return a command with the options that make its job small."""
    line = shlex.join(words) + " "
    words = [*words]
    for begin, options in SMALL.items():
        if line.startswith(begin):
            words += options.split()
    if line.startswith("gtrxl train "):
        if "checkpoints/" not in line:
            words += ["--core-preset", "debug"]
        if not {"--devices", "--parameter-shards"} & {*words}:
            words += ["--devices", "1"]
    if words[0] == "gtrxl" and re.search(
        "MemoryMaze|TwoColors|AppleMaze|(?<!xminigrid:)MiniGrid|vizdoom|minigrid|memory-maze", line
    ):
        if "--env.params" not in words:
            words += ["--env.params"]
        values = words.index("--env.params") + 1
        end = next((n for n in range(values, len(words)) if words[n][:2] == "--"), len(words))
        # Those of gymnasium have another name for it.
        words[end:end] = ["max_steps", "20"] if "gymnasium:MiniGrid" in line else SHORT
    if line.startswith("gtrxl train-offline --env.name MiniGrid-Memory "):
        # The curriculum needs episodes that fit into one segment.
        words += ["--unroll", "20"]
    if "--data.validation" in words:
        # Some of the few episodes, and some that are as long as the curriculum's first stage.
        words += ["--data.validation", "0.5"]
    if line.startswith("gtrxl train-offline ") and not {"--preset", "--env.name"} & {*words}:
        words += ["--evaluation.lengths", "12"]
    return words


def program_of(page):
    """Return the name of the file with the page's code in Python."""
    return f"code_of_{page.stem}.py"


def typed():
    """Return each page, line and command, once, and each page with code in Python.

    The README is last, since the pages write the data that its commands read.
    """
    found = {}
    for page in sorted(pages(), key=lambda page: page == README):
        for number, words in commands(page):
            if SKIPPED.keys().isdisjoint((words[0], " ".join(words[:2]), shlex.join(words))):
                found.setdefault(shlex.join(words), (page, number, words))
        written = code("python", page)
        # The README's code has a test of its own.
        if written.strip() and page != README:
            found[page] = page, "code", ["python", program_of(page)]
    return [
        pytest.param(page, words, id=f"{page.relative_to(ROOT)}:{number} {shlex.join(words)}")
        for page, number, words in found.values()
    ]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with what a clone has, and the files that the pages ask to write."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("checkpoints", "examples", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    sweep = code("toml", ROOT / "docs" / "studies.md")
    for usual, less in SMALL_SWEEP.items():
        assert usual in sweep
        sweep = sweep.replace(usual, less)
    (folder / "horizon.toml").write_text(sweep)
    for page in pages():
        (folder / program_of(page)).write_text(code("python", page))
    return folder


@pytest.mark.parametrize(("page", "words"), typed())
def test_command(page, words, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    # Processes that the command starts import the package from here.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for part, package in PACKAGES.items():
        if part in shlex.join(words):
            pytest.importorskip(package)
    program, *arguments = small(words)
    monkeypatch.setattr(sys, "argv", arguments)
    free_programs()
    if program == "gtrxl":
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                main(arguments)
            except SystemExit as ended:
                assert not ended.code, said.getvalue()  # noqa: PT017, --help exits with 0
    else:
        assert program == "python"
        monkeypatch.syspath_prepend(Path(arguments[0]).parent)
        with standard_dtype_promotion():  # which optax's Adam requires
            runpy.run_path(arguments[0], run_name="__main__")
