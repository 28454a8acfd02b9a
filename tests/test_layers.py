"""Imports go down only: a package knows those below it, and none beside it."""

import ast
from pathlib import Path

import pytest

import gtrxl_jax

PACKAGE = Path(gtrxl_jax.__file__).parent

LAYERS = (
    ("files", "lazy", "specs", "validation"),
    ("timestep",),
    ("ops", "parallel"),
    ("data", "envs", "nn"),
    ("acting", "runs"),
    ("offline", "online"),
    ("plots",),
    ("loading",),
    ("collection",),
    ("cli",),
)
"""From the lowest to the highest; the root, `gtrxl_jax` itself, offers names of all of them."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part_of(module):
    """`nn` of `gtrxl_jax.nn.cores.transformer`; empty for the root."""
    return ([*module.split("."), ""])[1]


def imported(source):
    """The modules of the package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "gtrxl_jax":
            yield from (f"gtrxl_jax.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_part_has_a_layer():
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    parts |= {path.stem for path in PACKAGE.glob("*.py")}
    assert parts - {"__init__"} == LEVEL.keys()


@pytest.mark.parametrize("part", LEVEL)
def test_imports_go_down(part):
    files = [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else []
    files += (PACKAGE / part).rglob("*.py")
    upward = {
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in files
        for module in imported(path.read_text())
        if (other := part_of(module)) in LEVEL and other != part and LEVEL[other] >= LEVEL[part]
    }
    assert not upward


def test_files_are_read_in_one_sitting():
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 350} == {}
