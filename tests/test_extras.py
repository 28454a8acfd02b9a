"""The packages of an extra: which are missing, and the command that installs them."""

import importlib.metadata

import pytest

from gtrxl_jax.extras import extras, install_command, missing

REQUIREMENTS = [
    "numpy>=2.0",
    'grain>=0.2.18; extra == "offline"',
    "minari<0.6,>=0.5.4 ; extra == 'offline'",
    'safetensors>=0.5; extra == "offline-too"',
]


@pytest.mark.parametrize(
    ("requirements", "command"),
    [
        (REQUIREMENTS, "pip install 'grain>=0.2.18' 'minari<0.6,>=0.5.4'"),
        (REQUIREMENTS[:1], "pip install '.[offline]' in the clone of gtrxl_jax"),
        (None, "pip install '.[offline]' in the clone of gtrxl_jax"),
    ],
)
def test_command_names_packages_or_clone(requirements, command, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: requirements)
    assert install_command("offline") == command


def test_package_without_metadata_is_a_clone(monkeypatch):
    def requires(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert install_command("wandb") == "pip install '.[wandb]' in the clone of gtrxl_jax"


@pytest.fixture
def installed(monkeypatch):
    """Packages with their versions and requirements."""
    versions = {"gtrxl_jax": "0.2.0", "numpy": "1.26.4", "grain": "0.2.20", "jax": "0.10.2"}
    requires = {
        "gtrxl_jax": [
            *REQUIREMENTS,
            'jax[cuda12]; extra == "cuda12"',
            'gtrxl_jax[offline]; extra == "all"',
        ],
        "jax": ["numpy>=1.20", 'jax-cuda12-plugin<=0.10.2; extra == "cuda12"'],
    }

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires.get(name))
    return versions


def test_missing_packages(installed):
    assert missing() == ["numpy>=2.0 (1.26.4)"]
    installed["numpy"] = "2.1"
    assert missing() == []
    assert missing("offline") == missing("all") == ["minari<0.6,>=0.5.4"]
    installed["minari"] = "0.6.1"
    assert missing("offline") == ["minari<0.6,>=0.5.4 (0.6.1)"]
    assert missing("cuda12") == ["jax-cuda12-plugin<=0.10.2"]
    del installed["gtrxl_jax"]
    assert missing() is None


def test_extras_are_those_of_the_package():
    assert {"offline", "tensorboard", "wandb"} <= {*extras()}
