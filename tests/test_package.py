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
        # Importing gymnax initializes JAX's backend; processes must join before that.
        ("import gtrxl_jax.cli.main", ["gymnax", "jax"]),
    ],
)
def test_dependencies_are_imported_lazily(code, unloaded):
    check = f"{code}\nimport sys\nprint(*sorted(set({unloaded!r}) & set(sys.modules)))"
    sources = Path(gtrxl_jax.__file__).parents[1]
    loaded = subprocess.check_output([sys.executable, "-c", check], cwd=sources, text=True)
    assert loaded.split() == []


# Packages that only environments, training, plots, data and the command line require.
UNNEEDED = [
    "PIL", "gymnasium", "gymnax", "grain", "h5py", "matplotlib", "minari", "optax", "orbax",
    "pyarrow", "safetensors", "tyro",
]  # fmt: skip
APPLY_CORE = f"""
import importlib.abc
import sys


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {UNNEEDED}:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())

import jax
import jax.numpy as jnp
from gtrxl_jax import make_core

core = make_core("gtrxl", width=8, layers=1, heads=1, head_width=8, memory_size=4)
memory, first_BT = core.initial_memory(2), jnp.zeros((2, 3), bool)
inputs = memory, jnp.ones((2, 3, 8)), first_BT
(_, y_BTD), _ = jax.eval_shape(core.init_with_output, jax.random.key(0), *inputs)
print(*y_BTD.shape)
"""


def test_core_needs_neither_environments_nor_plots():
    sources = Path(gtrxl_jax.__file__).parents[1]
    printed = subprocess.check_output([sys.executable, "-c", APPLY_CORE], cwd=sources, text=True)
    assert printed == "2 3 8\n"
