"""Agents on the hub, on a server of the test's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import gtrxl_jax
from gtrxl_jax.cli.main import main
from gtrxl_jax.exporting import push
from gtrxl_jax.runs import hub
from tests.comparison import assert_same
from tests.hub import TOKEN, Hub

constants = pytest.importorskip("huggingface_hub.constants")

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "checkpoints" / "tmaze"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The hub, for the library in this process, which reads its address when it is imported."""
    with Hub() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.mark.parametrize("address", ["hf://me/tmaze", "hf://me/tmaze@main", Path("hf://me/tmaze")])
def test_uploaded_export_is_loaded(address, server):
    commit = hub.upload(AGENT, "me/tmaze", private=True)
    assert commit.startswith(f"{server.address}/me/tmaze/commit/")
    assert server.private == {"me/tmaze": True}
    assert server.models["me/tmaze"].keys() == {path.name for path in AGENT.iterdir()}
    loaded, here = gtrxl_jax.load(address), gtrxl_jax.load(AGENT)
    assert_same(jax.device_get(loaded.params), jax.device_get(here.params))
    assert loaded.config == here.config


@pytest.mark.integration
def test_push_command(server, capsys):
    main(["push", str(AGENT), "me/mine", "--private"])
    assert server.private == {"me/mine": True}
    assert "hf://me/mine" in capsys.readouterr().out


def test_only_files_of_an_export_are_downloaded(server):
    others = {"setup.py": b"raise SystemExit", "weights.pkl": b"\x80", "replay.mp4": b""}
    server.models["me/tmaze"] = {path.name: path.read_bytes() for path in AGENT.iterdir()} | others
    folder = hub.download("me/tmaze")
    assert {path.name for path in folder.iterdir()} == set(hub.FILES)
    asked = len(server.requests)
    assert hub.download("me/tmaze") == folder
    repeated = [path for method, path in server.requests[asked:] if method == "GET"]
    assert not any("resolve" in path for path in repeated)  # they are here already


def test_config_of_the_hub_imports_nothing(server, tmp_path, monkeypatch):
    (tmp_path / "imported_by_config.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {path.name: path.read_bytes() for path in AGENT.iterdir()}
    config = json.loads(files["config.json"])
    config["core"]["name"] = "imported_by_config:Config"
    server.models["me/custom"] = files | {"config.json": json.dumps(config).encode()}
    with pytest.raises(ValueError, match="imported_by_config"):
        gtrxl_jax.load("hf://me/custom")
    assert "imported_by_config" not in sys.modules


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("hf://tmaze", ValueError, "hf://tmaze is no address of an agent: use hf://owner/name"),
        (
            "hf://me/none",
            FileNotFoundError,
            "hf://me/none does not exist, or is private .*HF_TOKEN",
        ),
        ("hf://me/empty", FileNotFoundError, "hf://me/empty holds no agent: it has no params"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(address, error, message, server):
    server.models["me/empty"] = {"README.md": b"nothing"}
    with pytest.raises(error, match=message) as raised:
        gtrxl_jax.load(address)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("repository", "token", "error", "message"),
    [
        ("tmaze", TOKEN, ValueError, "repository must be owner/name, not 'tmaze'"),
        ("me/tmaze", "", PermissionError, "needs a token .*: run hf auth login, or set HF_TOKEN"),
        ("me/tmaze", "hf_other", PermissionError, "hf://me/tmaze: .*401.*: use a token that may"),
        ("me/closed", TOKEN, PermissionError, "hf://me/closed: .*403.*: use a token that may"),
    ],
)
def test_what_cannot_be_uploaded_is_one_line(
    repository, token, error, message, server, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(error, match=message) as raised:
        hub.upload(AGENT, repository)
    assert "\n" not in str(raised.value)
    assert not server.models.get("me/tmaze")


def test_without_network_the_line_says_so(server, monkeypatch):
    address = server.address.rpartition(":")[0] + ":9"  # nobody listens there
    monkeypatch.setattr(constants, "ENDPOINT", address)
    for act in (lambda: gtrxl_jax.load("hf://me/tmaze"), lambda: hub.upload(AGENT, "me/tmaze")):
        with pytest.raises(ConnectionError, match="hf://me/tmaze: the hub cannot be reached") as e:
            act()
        assert "\n" not in str(e.value)


def test_without_the_package_the_line_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    with pytest.raises(SystemExit):
        main(["play", "hf://me/tmaze"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "an address on the hub requires huggingface_hub: pip install" in line


@pytest.mark.integration
def test_pushed_agent_has_card_and_replay(server):
    push(AGENT, "me/remembers")
    files = server.models["me/remembers"]
    assert files.keys() == {*hub.FILES, "replay.mp4"}
    assert b'gtrxl_jax.load("hf://me/remembers")' in files["README.md"]
    assert files["replay.mp4"][4:8] == b"ftyp"


@pytest.mark.integration
@pytest.mark.slow
def test_agent_of_the_hub_is_played_by_its_address(tmp_path):
    with Hub() as server:
        server.models["me/tmaze"] = {path.name: path.read_bytes() for path in AGENT.iterdir()}
        environment = os.environ | {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "hf")}
        environment["PYTHONPATH"] = str(ROOT)
        play = [sys.executable, "-m", "gtrxl_jax.cli", "play", "hf://me/tmaze"]
        played = subprocess.run(play, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "success 1 of 1" in played.stdout, played.stderr
    assert (tmp_path / "play.gif").exists()
