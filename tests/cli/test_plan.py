"""The command `gtrxl plan`, and its errors."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from gtrxl_jax.cli.arguments import PlanTrain, PlanTrainOffline, parse_plan
from gtrxl_jax.cli.main import main
from gtrxl_jax.cli.plan import rows_of
from gtrxl_jax.runs.plan import Exchange, NeedsMemoryError, Plan
from tests.pages import ROOT
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
    assert message.endswith(f"such as h100:8, not {topology!r}")


def test_missing_compiler_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)  # libtpu, once imported, sets it
    message = refused(capsys, *LSTM)
    assert message.startswith("to compile for TPUs requires libtpu: pip install ")
    assert "tpu" in message.rpartition("pip install")[2]


@needs_libtpu
def test_topologies_and_batches_that_do_not_divide(capsys):
    message = refused(capsys, *LSTM[:-1], "v5e:3x3")
    assert message.startswith("there is no topology v5e:3x3: use whole hosts, of 2 x 2 chips, ")
    message = refused(capsys, *LSTM[:-1], "v5e:4x4")
    assert message.startswith("env.num_envs 8 does not divide over 16 devices: make it a multiple")


PLAN = Plan(
    topology="v5e:2x2",
    kind="TPU v5 lite",
    devices=4,
    hosts=1,
    steps=64.0,
    state={"learner/trainable": 2**30, "learner/optimizer": 2**31, "key": 8, "actor/memory": 2**20},
    data=0,
    arguments=2**30 + 2**31 + 2**21,
    temporaries=2**29,
    code=2**25,
    memory=2**34,
    exchanges=[Exchange("learn", "all-reduce", 3.2, 2**30)],
    lower_seconds=2.1,
    compile_seconds=31.0,
    kernels={},
    cycles={"act": 1.5e7, "env": 1.5e6, "learn": 3e7, "": 3e5},
    seconds={"act": 1e-2, "env": 1e-3, "learn": 2e-2, "": 2e-4},
    exchange_seconds=5e-3,
    steps_per_second=1768.0,
)
TABLE = """\
lstm, trained by ppo in TMazePassive-v0: compiles for v5e:2x2, and fits
devices                     4 x TPU v5 lite, 1 host, 2 environments a device
memory of a device          3.53 GiB of 16.00 GiB
  parameters                1.00 GiB
  optimizer                 2.00 GiB
  small arrays, padding     2 MiB
  temporaries               512 MiB, of which 0 B for acting's caches
  code                      32 MiB
exchange in an update
  learning                  all-reduce, 1.00 GiB in 3.2 operations
lowering, compilation       2 s, 31 s here
an update
  acting                    10 ms, 1.25 ms a step (estimate by XLA)
  environments              1 ms, 0.125 ms a step (estimate by XLA)
  learning                  20 ms (estimate by XLA)
  the rest                  0.2 ms (estimate by XLA)
  exchange                  5 ms (estimate by bandwidth)
steps a second              1,768 (estimate by these)
"""


@needs_libtpu
def test_table_and_json(capsys, monkeypatch):
    monkeypatch.setattr("gtrxl_jax.runs.plan.plan", lambda trainer, topology: PLAN)
    main(["plan", *LSTM])
    assert capsys.readouterr() == (TABLE, "compiling for v5e:2x2, which may take minutes\n")
    main(["plan", *LSTM, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == dataclasses.asdict(PLAN) | {"environments": 2, "caches": 0}


def test_table_of_a_gpu(capsys):
    """It has kernels instead of estimates; an offline run has data, and trajectories."""
    made = dataclasses.replace(
        PLAN, kernels={"learn": 150.0}, cycles={}, seconds={}, code=0, data=2**20, exchanges=[]
    )
    rows = dict(rows_of(made, "4 trajectories", "updates"))
    assert rows["  data"] == "1 MiB"
    assert rows["exchange in an update"] == "none"
    assert rows["  learning"] == "150"
    assert rows.keys().isdisjoint({"  code", "an update", "updates a second"})


@needs_libtpu
def test_program_that_does_not_fit(capsys, monkeypatch):
    def plan(trainer, topology):
        raise NeedsMemoryError("the program needs 17.00 GiB of each TPU v5 lite")

    monkeypatch.setattr("gtrxl_jax.runs.plan.plan", plan)
    with pytest.raises(SystemExit) as caught:
        main(["plan", *LSTM, "--quiet"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith(
        "gtrxl plan: error: the program needs 17.00 GiB of each TPU v5 lite: reduce env.num_envs, "
    )


@needs_libtpu
@pytest.mark.integration
@pytest.mark.parametrize(
    "program",
    [
        ["-m", "gtrxl_jax.cli", "list"],
        pytest.param(["experiments/default_settings.py", "--help"], marks=pytest.mark.slow),
    ],
)
def test_programs_are_quiet_about_tpus_that_are_not_there(program):
    """With libtpu, JAX would look for one, and warn."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    del own["JAX_PLATFORMS"]
    own["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *program]
    ended = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
