"""The command that installs the packages of an extra."""

import importlib.metadata

import pytest

from gtrxl_jax.extras import install_command

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
