import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gtrxl_jax
from gtrxl_jax import offline, online, runs


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in (gtrxl_jax, offline, online, runs) for name in package.__all__],
)
def test_exported_names(package, name):
    public = getattr(package, name)
    assert public.__name__ == name
    assert getattr(importlib.import_module(public.__module__), name) is public
    assert inspect.getdoc(public)
    assert name in dir(package)


def test_citation_and_changes_have_version():
    root = Path(gtrxl_jax.__file__).parents[1]
    assert f"\nversion: {gtrxl_jax.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"\n## {gtrxl_jax.__version__}" in (root / "CHANGELOG.md").read_text()


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="'gtrxl_jax' has no attribute 'make_cores'"):
        _ = gtrxl_jax.make_cores


@pytest.mark.parametrize(
    ("code", "unloaded"),
    [
        ("import gtrxl_jax", ["jax", "flax", "gymnax", "matplotlib"]),
        ("from gtrxl_jax import make_core", ["gymnax", "gymnasium", "matplotlib"]),
        ("from gtrxl_jax.online import preset", ["gymnax", "gymnasium", "matplotlib"]),
        # Importing gymnax initialises JAX's backend; processes must join before that.
        ("import gtrxl_jax.cli.main", ["gymnax"]),
    ],
)
def test_dependencies_are_imported_lazily(code, unloaded):
    check = f"{code}\nimport sys\nprint(*sorted(set({unloaded!r}) & set(sys.modules)))"
    sources = Path(gtrxl_jax.__file__).parents[1]
    loaded = subprocess.check_output([sys.executable, "-c", check], cwd=sources, text=True)
    assert loaded.split() == []
