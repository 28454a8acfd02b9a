"""Agents in the package, by their address; those of the hub are in test_hub.py."""

from pathlib import Path

import jax
import numpy as np
import pytest

import gtrxl_jax
from gtrxl_jax.cli.main import main
from gtrxl_jax.collection import CollectionConfig, collect_dataset
from gtrxl_jax.runs.addresses import BUNDLED, bundled, local_folder
from tests.comparison import assert_same


@pytest.mark.parametrize("kind", [str, Path])
def test_bundled_agent_is_a_folder_of_the_package(kind):
    assert bundled() == ["tmaze"]
    assert local_folder(kind("bundled://tmaze")) == BUNDLED / "tmaze"


@pytest.mark.parametrize("kind", [str, Path])
def test_name_of_an_agent_is_a_folder_if_there_is_one(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder tmaze: try bundled://tmaze"):
        local_folder(kind("tmaze"))
    (tmp_path / "tmaze").mkdir()
    assert local_folder(kind("tmaze")) == Path("tmaze")


@pytest.mark.parametrize("name", ["", "tmase", "../runs", "tmaze/"])
def test_unknown_agent_is_refused_with_those_that_there_are(name):
    with pytest.raises(ValueError, match=r"unknown bundled agent .*Valid: tmaze$") as raised:
        gtrxl_jax.load(f"bundled://{name}")
    assert "\n" not in str(raised.value)


@pytest.mark.integration
def test_bundled_agent_plays_collects_and_is_exported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    there = set(BUNDLED.rglob("*"))
    main(["play", "bundled://tmaze"])
    assert capsys.readouterr().out == "success 1 of 1; return 1.000 | play.gif\n"
    main(["export", "bundled://tmaze", "--to", "agent"])
    exported, here = gtrxl_jax.load("agent"), gtrxl_jax.load("bundled://tmaze")
    assert_same(jax.device_get(exported.params), jax.device_get(here.params))
    # As the user's umask says.
    assert len({path.stat().st_mode for path in (tmp_path / "agent").iterdir()}) == 1
    config = CollectionConfig(policy="bundled://tmaze", episodes=4)
    assert np.all(collect_dataset(config, tmp_path / "data").success == 1)
    assert set(BUNDLED.rglob("*")) == there
