"""TensorBoard, and the services by stand-ins of their documented interfaces."""

import collections
import json
import re
import struct
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from gtrxl_jax.extras import install_command
from gtrxl_jax.runs.logging.loggers import (
    LOGGERS,
    MlflowWriter,
    TensorBoardWriter,
    TrackioWriter,
    WandbWriter,
    make_loggers,
    require_loggers,
)
from gtrxl_jax.runs.logging.writers import JsonLinesWriter, MetricWriter


def read_events(folder):
    """Return every scalar in a folder of event files, `{tag: [(step, value), ...]}`."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for path in folder.glob("*tfevents*"):
        content = path.read_bytes()
        while content:  # a record: length, checksum of it, payload, checksum of it
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    return scalars


def test_tensorboard_has_one_run_per_seed(tmp_path):
    with TensorBoardWriter(tmp_path, {"seed": 4}) as writer:
        writer.write(1, {"loss": 0.5, "return": jnp.array([1.0, 2.0])})
        writer.write(2, {"loss": np.nan, "return": jnp.array([3.0, np.inf])})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["seed_4", "seed_5"]
    assert read_events(tmp_path / "seed_4") == {"loss": [(1, 0.5)], "return": [(1, 1.0), (2, 3.0)]}
    assert read_events(tmp_path / "seed_5") == {"loss": [(1, 0.5)], "return": [(1, 2.0)]}


def test_single_seed_is_in_folder_itself(tmp_path):
    with TensorBoardWriter(tmp_path) as writer:
        writer.write(1, {"loss": 0.5})
    assert read_events(tmp_path) == {"loss": [(1, 0.5)]}


class Run:
    """A run of a stand-in: what was logged, and whether it was finished.

    What has arrived is in `server`, by id: what was logged when the run finishes.
    """

    def __init__(self, server=None, **options):
        self.options, self.rows, self.finished = options, [], False
        self.server = {} if server is None else server
        self.step = max(self.arrived, default=-1) + 1  # after a resumption, that of the server

    @property
    def arrived(self):
        return self.server.setdefault(self.options.get("id"), [])

    def log(self, data, step=None):
        assert not self.finished
        assert step >= self.step
        self.rows.append((step, data))

    def deliver(self, rows):
        self.arrived.extend(step for step, _ in self.rows[:rows])

    def finish(self):
        self.finished = True
        self.deliver(len(self.rows))


class Wandb(types.ModuleType):
    """wandb with or without a key and a network."""

    class Error(Exception):
        pass

    Settings = dict

    def __init__(self, key=True, network=True):
        super().__init__("wandb")
        self.key, self.network, self.runs, self.in_use, self.server = key, network, [], set(), {}

    def login(self, *, prompt, verify):
        assert not prompt
        return self.key

    def init(self, **options):
        if options["id"] in self.in_use:
            raise self.Error(f"run ID {options['id']} is in use")
        if options["mode"] != "offline" and not self.network:
            self.in_use.add(options["id"])
            raise self.Error("Run initialization has\ntimed out after 30.0 sec.")
        assert options["resume"] == "allow"
        assert options["reinit"] == "create_new"
        self.runs.append(Run(None if options["mode"] == "offline" else self.server, **options))
        return self.runs[-1]


class Trackio(types.ModuleType):
    """trackio, which prints to standard output."""

    def __init__(self, error=None):
        super().__init__("trackio")
        self.error, self.runs = error, []

    def init(self, project, *, name, group, config, resume, embed):
        print("* Created new run:", name)
        if self.error:
            raise self.error
        assert resume == "allow"
        assert not embed
        self.runs.append(Run(project=project, name=name, group=group, config=config))
        return self.runs[-1]


@pytest.fixture
def install(monkeypatch):
    for name in (
        "WANDB_MODE",
        "WANDB_PROJECT",
        "TRACKIO_PROJECT",
        "WANDB_INIT_TIMEOUT",
        "MLFLOW_EXPERIMENT_NAME",
    ):
        monkeypatch.delenv(name, raising=False)

    def put(module):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return put


SERVICES = {"wandb": (Wandb, WandbWriter), "trackio": (Trackio, TrackioWriter)}
CONFIG = {"seed": 3, "num_seeds": 2, "core": {"name": "gtrxl"}}


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_one_run_per_seed(name, install, tmp_path, capsys):
    module = install(SERVICES[name][0]())
    with SERVICES[name][1](tmp_path / "runs" / "mine", CONFIG) as writer:
        assert not (tmp_path / "runs").exists()
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        writer.start(0)
        assert len(module.runs) == 2
        writer.write(8, {"loss": jnp.array([0.5, np.nan]), "speed": 2.0})
    third, fourth = module.runs
    assert third.rows == [(8, {"loss": 0.5, "speed": 2.0})]
    assert fourth.rows == [(8, {"speed": 2.0})]
    assert third.options["project"] == "gtrxl_jax"
    assert third.options["config"] == CONFIG
    assert third.options["group"] == fourth.options["group"] == "mine"
    assert third.options["name"].startswith("mine-seed_3")
    assert third.finished
    assert fourth.finished
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", SERVICES)
def test_resumed_run_sends_no_row_twice(name, install, tmp_path):
    module = install(SERVICES[name][0]())

    def run(after, steps):
        with SERVICES[name][1](tmp_path) as writer:
            writer.start(after)
            for step in steps:
                writer.write(step, {"x": float(step)})

    run(0, [10, 20, 30])
    run(20, [30, 40])
    run(0, [10])
    first, resumed, other = module.runs
    assert [step for step, _ in resumed.rows] == [40]
    key = "id" if name == "wandb" else "name"
    assert first.options[key] == resumed.options[key] != other.options[key]


def run_to(folder, name, after, steps, kill=None):
    """Write the metrics after a checkpoint; all but the first `kill` are lost if it is killed."""
    service = SERVICES[name][1](folder, CONFIG)
    with JsonLinesWriter(folder / "metrics.jsonl") as lines:
        for writer in (lines, service):
            writer.start(after)
        for step in steps:
            for writer in (lines, service):
                writer.write(step, {"x": np.array([step, np.nan])})
    runs = sys.modules[name].runs[-2:]
    if kill is None:
        service.close()
    else:
        for run in runs:
            run.deliver(kill)
    return runs[0].options["id" if name == "wandb" else "name"]


def logged(run):
    return [step for step, _ in run.rows]


def test_wandb_gets_what_a_killed_process_had_queued(install, tmp_path):
    module = install(Wandb())
    first = run_to(tmp_path, "wandb", 0, [10, 20, 30], kill=1)
    assert run_to(tmp_path, "wandb", 20, [30, 40], kill=0) == first
    assert run_to(tmp_path, "wandb", 40, [50]) == first
    assert module.server[first] == [10, 20, 30, 40, 50]
    assert [row["x"] for _, row in module.runs[-2].rows] == [20, 30, 40, 50]


def test_trackio_gets_what_a_killed_process_had_queued(install, tmp_path):
    """What has arrived is not known: all since the last end is sent again."""
    module = install(Trackio())
    first = run_to(tmp_path, "trackio", 0, [10])
    assert run_to(tmp_path, "trackio", 10, [20, 30], kill=1) == first
    assert run_to(tmp_path, "trackio", 20, [30]) == first
    assert [logged(run) for run in module.runs[::2]] == [[10], [20, 30], [20, 30]]


class Mlflow(types.ModuleType):
    """mlflow and its server, which refuses more than a hundred parameters at once."""

    def __init__(self):
        super().__init__("mlflow")
        self.experiments, self.runs = {}, []
        self.MlflowClient = lambda: self
        names = {"Metric": "key value timestamp step", "Param": "key value", "RunTag": "key value"}
        self.entities = types.SimpleNamespace(
            **{name: collections.namedtuple(name, fields) for name, fields in names.items()}
        )

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return None if found is None else types.SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        assert name not in self.experiments
        return self.experiments.setdefault(name, f"experiment {len(self.experiments)}")

    def create_run(self, experiment, run_name, tags):
        info = types.SimpleNamespace(run_id=f"run {len(self.runs)}", status="RUNNING")
        data = types.SimpleNamespace(tags=dict(tags), params={}, metrics=[])
        self.runs.append(types.SimpleNamespace(info=info, data=data, name=run_name))
        return self.runs[-1]

    def search_runs(self, experiments, filter_string):
        key = re.fullmatch("tags.`gtrxl_jax.id` = '(.*)'", filter_string)[1]
        return [run for run in self.runs if run.data.tags["gtrxl_jax.id"] == key]

    def _of(self, run_id):
        (run,) = (run for run in self.runs if run.info.run_id == run_id)
        return run

    def update_run(self, run_id, status):
        self._of(run_id).info.status = status

    def set_terminated(self, run_id):
        self.update_run(run_id, "FINISHED")

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        assert len(params) <= 100
        run = self._of(run_id)
        assert run.info.status == "RUNNING"
        run.data.metrics.extend((metric.step, metric.key, metric.value) for metric in metrics)
        run.data.params.update(params)
        run.data.tags.update(tags)


def test_mlflow_has_a_run_with_parameters_for_each_seed(install, tmp_path):
    module = install(Mlflow())
    many = {"seed": 3, "num_seeds": 2, "core": {"name": "gtrxl"}, "env": dict.fromkeys("abc", 1)}
    many["sweep"] = {f"x{n}": n for n in range(200)}
    with MlflowWriter(tmp_path / "mine", many) as writer:
        (tmp_path / "mine").mkdir()
        writer.start(0)
        writer.write(8, {"loss": jnp.array([0.5, np.nan]), "speed": 2.0})
    third, fourth = module.runs
    assert module.experiments.keys() == {"gtrxl_jax"}
    assert third.data.metrics == [(8, "loss", 0.5), (8, "speed", 2.0)]
    assert fourth.data.metrics == [(8, "speed", 2.0)]
    assert third.data.params.items() >= {"core.name": "gtrxl", "sweep.x199": "199"}.items()
    assert third.name.endswith("mine-seed_3")
    groups = {run.data.tags["gtrxl_jax.group"] for run in module.runs}
    assert len(groups) == 1
    assert {run.info.status for run in module.runs} == {"FINISHED"}


def test_mlflow_gets_what_it_lacks_once(install, tmp_path):
    module = install(Mlflow())

    def run(after, steps, kill=False):
        service = MlflowWriter(tmp_path, {"seed": 3})
        with JsonLinesWriter(tmp_path / "metrics.jsonl") as lines:
            for writer in (lines, service):
                writer.start(after)
            for step in steps:
                lines.write(step, {"x": float(step)})
                if not kill:
                    service.write(step, {"x": float(step)})
        if not kill:
            service.close()

    run(0, [10, 20])
    run(20, [30], kill=True)
    run(30, [40])
    run(20, [30, 40, 50])
    (only,) = module.runs
    assert [step for step, *_ in only.data.metrics] == [10, 20, 30, 40, 50]
    run(0, [10])
    assert len(module.runs) == 2


@pytest.mark.parametrize("keys", [(True, False, True), (False, True, True), (False, False, True)])
def test_wandb_run_is_whole_wherever_it_ends(keys, install, tmp_path):
    """A run is whole on the server, and in the last offline folder, under one id."""
    module = install(Wandb())
    ids = set()
    for session, module.key in enumerate(keys):
        ids.add(run_to(tmp_path, "wandb", 10 * session, [10 * session + 10]))
        if not module.key:
            assert logged(module.runs[-2]) == [10 * n + 10 for n in range(session + 1)]
    assert module.server[ids.pop()] == [10, 20, 30]
    assert not ids


def test_wandb_without_key_is_offline(install, tmp_path, capsys):
    module = install(Wandb(key=False))
    with WandbWriter(tmp_path, CONFIG) as writer:
        writer.start(0)
        writer.write(1, {"x": [1.0, 2.0]})
    assert [run.options["mode"] for run in module.runs] == ["offline"] * 2
    assert [run.rows for run in module.runs] == [[(1, {"x": 1.0})], [(1, {"x": 2.0})]]
    assert capsys.readouterr().err == (
        "wandb: no key is configured (wandb login); logging offline: upload with wandb sync "
        f"{tmp_path}/wandb/offline-*\n"
    )


def test_wandb_without_network_is_offline(install, tmp_path, capsys):
    module, record = install(Wandb(network=False)), tmp_path / "wandb.json"
    with WandbWriter(tmp_path) as writer:
        writer.start(0)
        writer.write(1, {"x": 1.0})
    assert [run.options["mode"] for run in module.runs] == ["offline"]
    assert module.runs[0].options["id"] == f"{json.loads(record.read_text())['id']}-offline"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wandb: Run initialization has timed out after 30.0 sec.; logging off")


def test_mode_of_environment_is_kept(install, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    module = install(Wandb(key=False))
    with WandbWriter(tmp_path) as writer:
        writer.start(0)
    assert module.runs[0].options["mode"] is None
    assert capsys.readouterr().err == ""


def test_failing_service_does_not_end_run(install, tmp_path, capsys):
    install(Trackio(ConnectionError("no route\nto host")))
    with TrackioWriter(tmp_path) as writer:
        writer.start(0)
        writer.write(1, {"x": 1.0})
        writer.write(2, {"x": 1.0})
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "trackio: no route to host; the run continues without it\n"


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_missing_package_names_command(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, LOGGERS[name].package, None)
    with pytest.raises(ImportError, match=re.escape(f"{install_command(name)}, or omit {name}")):
        require_loggers([name])
    with pytest.raises(ImportError, match="pip install"):
        make_loggers([name], tmp_path, "{}")
    assert list(tmp_path.iterdir()) == []


def test_broken_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "wandb.py").write_text("import json\njson.no_such\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    message = (
        "the import of wandb raises AttributeError: .*no_such.*: install it again, or omit wand"
    )
    with pytest.raises(ImportError, match=message):
        require_loggers(["wandb"])


class Memory(MetricWriter):
    """A logger of one's own."""

    def __init__(self, folder, config):
        self.folder, self.config = folder, config

    def write(self, step, metrics):
        """Never called here."""


def test_loggers_are_made_once_each(tmp_path):
    own = f"{__name__}:Memory"
    names = ["csv", "tensorboard", "csv", own]
    require_loggers(names)
    *built_in, mine = make_loggers(names, tmp_path, json.dumps(CONFIG))
    assert [type(writer) for writer in built_in] == [LOGGERS["csv"], TensorBoardWriter]
    assert (type(mine).__name__, mine.folder, mine.config) == ("Memory", tmp_path, CONFIG)
