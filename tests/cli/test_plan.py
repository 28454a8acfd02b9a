"""The command `gtrxl plan`, and its errors."""

import importlib.util
import json

import pytest

from gtrxl_jax.cli.arguments import PlanTrain, PlanTrainOffline, parse_plan
from gtrxl_jax.cli.main import main
from tests.topologies import needs_libtpu

LSTM = ["--preset", "debug", "--core.name", "lstm", "--topology", "v5e:2x2"]


def refused(capsys, *arguments, code=2):
    with pytest.raises(SystemExit) as caught:
        main(["plan", *arguments])
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (code, "")
    assert err.count("\n") == 1
    return err.removeprefix("gtrxl plan: error: ").removesuffix("\n")


def test_options_are_those_of_training():
    paper = ["--preset", "paper", "--topology", "v5e:4x4"]
    for words in (paper, ["train", *paper]):
        command = parse_plan(words)
        assert isinstance(command, PlanTrain)
        assert (command.topology, command.config.core.layers) == ("v5e:4x4", 12)
    offline = parse_plan(["train-offline", "--preset", "tmaze", "--topology", "v5e:2x2", "--json"])
    assert isinstance(offline, PlanTrainOffline)
    assert (offline.json, offline.config.segments) == (True, 5)


@pytest.mark.parametrize("topology", ["", "v5e", "h200", "v5e:4", "v5e:0x4", "v5e:4x4x4x4"])
def test_unknown_topologies(topology, capsys):
    message = refused(capsys, "--preset", "debug", "--topology", topology)
    assert message.startswith("topology must be a kind of TPU (v2, v3, v4, v5e, ")
    assert message.endswith(f"such as v5e:4x4 or v4:2x2x4, not {topology!r}")


def test_missing_compiler_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)  # libtpu, once imported, sets it
    message = refused(capsys, *LSTM)
    assert message.startswith("to compile for TPUs without a TPU requires libtpu: pip install ")
    assert "tpu" in message.rpartition("pip install")[2]


@needs_libtpu
def test_topologies_and_batches_that_do_not_divide(capsys):
    message = refused(capsys, *LSTM[:-1], "v5e:3x3")
    assert message.startswith("there is no topology v5e:3x3: use whole hosts, of 2 x 2 chips, ")
    message = refused(capsys, *LSTM[:-1], "v5e:4x4")
    assert message.startswith("env.num_envs 8 does not divide over 16 devices: make it a multiple")


@needs_libtpu
@pytest.mark.integration
def test_table_and_json(capsys):
    main(["plan", *LSTM])
    out, err = capsys.readouterr()
    assert err == "compiling for v5e:2x2, which may take minutes\n"
    first, *rows = out.splitlines()
    assert first == "lstm, trained by ppo in TMazePassive-v0: compiles for v5e:2x2, and fits"
    assert "devices                     4 x TPU v5 lite, 1 host, 2 environments a device" in rows
    # Every time that was not measured is called an estimate.
    timed = [row for row in rows if " ms" in row or "a second" in row]
    assert len(timed) == 6
    assert all("(estimate by " in row for row in timed)
    main(["plan", *LSTM, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["devices"] == 4
    assert plan["state"]["actor/memory"] > 0
