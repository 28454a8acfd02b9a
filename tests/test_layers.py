"""Layering: a package imports only packages of lower layers."""

import ast
from pathlib import Path

import pytest

import gtrxl_jax

PACKAGE = Path(gtrxl_jax.__file__).parent

LAYERS = (
    ("extras", "files", "formatting", "lazy", "machine", "platforms", "statistics", "validation"),
    ("custom", "plugins", "specs"),
    ("segments", "timestep"),
    ("ops", "parallel"),
    ("worlds",),
    ("data", "envs", "nn"),
    ("acting", "runs"),
    ("offline", "online"),
    ("plots",),
    ("loading",),
    ("collection", "exporting", "inspection", "studies"),
    ("cli", "testing"),
)
"""From lowest to highest; the root, `gtrxl_jax` itself, re-exports names of all layers."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

FILES = {
    ".".join(("gtrxl_jax", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
"""The file of each module."""


def part_of(module):
    """Return `nn` for `gtrxl_jax.nn.cores.gtrxl`; empty for the root."""
    return ([*module.split("."), ""])[1]


def imported(source):
    """Yield the modules that a file imports, including imports inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in FILES or node.module == "gtrxl_jax" else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_package_has_a_layer():
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    parts |= {path.stem for path in PACKAGE.glob("*.py")}
    assert parts - {"__init__"} == LEVEL.keys()


def files_of(part):
    file = PACKAGE / f"{part}.py"
    return [file] if file.exists() else list((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", ["specs", "timestep", "ops", "nn"])
def test_spaces_are_told_by_their_attributes(part):
    imports = {name.split(".")[0] for path in files_of(part) for name in imported(path.read_text())}
    assert not imports & {"gymnax", "gymnasium"}


@pytest.mark.parametrize("part", LEVEL)
def test_imports_are_from_lower_layers(part):
    upward = {
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in files_of(part)
        for module in imported(path.read_text())
        if (other := part_of(module)) in LEVEL and other != part and LEVEL[other] >= LEVEL[part]
    }
    assert not upward


def test_worlds_could_be_lifted_out():
    """They import nothing of this package but pure functions."""
    files = (PACKAGE / "worlds").rglob("*.py")
    parts = {part_of(m) for path in files for m in imported(path.read_text()) if "gtrxl_jax" in m}
    assert parts <= {"worlds", "ops"}


def reachable(module, imports):
    """Return the modules that one imports, directly or through others."""
    found, ahead = set(), [module]
    while ahead:
        new = imports[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def test_no_module_imports_itself_through_others():
    """Counts imports inside functions and for type checkers, except those of the root."""
    imports = {
        module: FILES.keys() & set(imported(path.read_text())) - {"gtrxl_jax"}
        for module, path in FILES.items()
    }
    assert not [module for module in FILES if module in reachable(module, imports)]
