"""Run folders that are damaged, or of another run."""

import dataclasses
import fcntl
import json
import os
import shutil

import jax
import jax.numpy as jnp
import pytest

import gtrxl_jax
from gtrxl_jax.online.config import preset
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import checkpoint
from gtrxl_jax.runs.checkpoint import Saver
from gtrxl_jax.runs.directory import list_runs
from gtrxl_jax.runs.loop import Progress
from tests.bad_inputs.refusal import contents, refused
from tests.jobs import changed

STEP = 640


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was stopped at a checkpoint, whose state is zeros: nothing is compiled for it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trainer = OnlineTrainer(preset("debug"))
    folder.mkdir()
    (folder / "config.json").write_text(trainer.config_json)

    def zeros(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    with Saver(folder) as saver:
        state = jax.tree.map(zeros, jax.eval_shape(trainer.init, 0))
        saver.save(STEP, state, dataclasses.asdict(Progress(iteration=2)))
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def write(name, content):
    def damage(folder):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    return damage


def edit(name, **changes):
    def damage(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))

    return damage


def replace_by_folder(name):
    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def stored(folder):
    """Return the largest file of the checkpoint."""
    files = (folder / "checkpoints" / str(STEP)).rglob("*")
    return max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)


def cut_short(folder):
    os.truncate(stored(folder), 7)


def flip_bit(folder):
    content = bytearray(stored(folder).read_bytes())
    content[len(content) // 2] ^= 4
    stored(folder).write_bytes(content)


def lose_file(folder):
    stored(folder).unlink()


def file_for_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / str(STEP)).write_text("")


def empty_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints" / str(STEP)).mkdir(parents=True)


CONFIGS = {
    "not a text": (
        write("config.json", b"\xff\xfe{"),
        "config.json is not the config of a run: 'u",
    ),
    "zeros": (write("config.json", b"\0" * 64), "config.json is not JSON"),
    "empty": (write("config.json", b""), "config.json is not JSON"),
    "half": (write("config.json", b'{"kind": "on'), "config.json is not JSON"),
    "nested lists": (write("config.json", b"[" * 100_000), "config.json is nested too deeply"),
    "nested objects": (write("config.json", b'{"a":' * 100_000), "is nested too deeply"),
    "a list": (write("config.json", [1]), "config.json is not the config of a run: it is no JSON"),
    "newer": (edit("config.json", version="99.0"), "by gtrxl_jax 99.0, and this is"),
    "older": (
        edit("config.json", version="0.1.0", optimiser={"learning_rate": 0.1}),
        f"was written by gtrxl_jax 0.1.0, and this is {gtrxl_jax.__version__}, which reads runs of "
        "0.3.0 and later: install 0.1.0, or train again in another folder",
    ),
}


@pytest.mark.parametrize("damage", CONFIGS)
@pytest.mark.parametrize("command", ["evaluate", "train --preset debug --folder"])
def test_config_is_no_config(damage, command, run, tmp_path):
    change, message = CONFIGS[damage]
    change(run)
    line = refused(tmp_path, *command.split(), run)
    assert message in line
    assert str(run) in line


OF_OTHERS = {
    "no kind": ({"seed": 1}, 'it has no "kind"'),
    "number as kind": ({"kind": 3}, 'it has no "kind"'),
    "other kind": ({"kind": "onlin"}, "unknown kind of run 'onlin': did you mean 'online'"),
    "sizes": (
        {"kind": "online", "core": {"width": 10, "heads": 4}},
        "core.width 10 does not divide into core.heads 4",
    ),
    "field": (
        {"kind": "online", "core": {"with": 10}},
        "unknown config field 'core.with': did you mean 'core.width'",
    ),
    "type": ({"kind": "online", "unroll": "many"}, "unroll must be a whole number, not 'many'"),
    "no fields": ({"kind": "online", "core": 3}, "core must have fields, not be 3"),
    "environment": (
        {"kind": "online", "env": {"name": "TMazePasive-v0"}},
        "unknown environment 'TMazePasive-v0': did you mean 'TMazePassive-v0'",
    ),
    "module": (
        {"kind": "online", "env": {"name": "not_imported:Env"}},
        "environment 'not_imported:Env' needs the module not_imported: import it first, with "
        "--modules not_imported on the command line",
    ),
}


@pytest.mark.parametrize("config", OF_OTHERS)
def test_config_is_invalid(config, tmp_path):
    content, message = OF_OTHERS[config]
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert message in refused(tmp_path, "evaluate", tmp_path)


@pytest.mark.parametrize("command", ["evaluate", "evaluate --best"])
def test_config_is_folder(command, run, tmp_path):
    replace_by_folder("config.json")(run)
    assert "holds no run: it has no config.json" in refused(tmp_path, *command.split(), run)


def nest_checksums(folder):
    (folder / "checkpoints" / str(STEP) / "default" / "checksums.json").write_text("[" * 100_000)


CHECKPOINTS = {
    "nested checksums": (nest_checksums, "its checksums.json cannot be read"),
    "cut short": (cut_short, "has 7 bytes instead of"),
    "flipped bit": (flip_bit, "has changed"),
    "lost file": (lose_file, "is missing"),
    "empty": (empty_checkpoint, "it was not written by this library"),
    "of another config": (edit("config.json", seed=5), "it is of another run (seed is 0 there, 5"),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_checkpoint_is_damaged(damage, run, capsys):
    change, reason = CHECKPOINTS[damage]
    change(run)
    before = contents(run)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used, of \[640\]: choose"):
        gtrxl_jax.load(run)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"the checkpoint of step {STEP} in {run} cannot be used: ")
    assert reason in line
    assert contents(run) == before


def test_checkpoint_is_file(run, tmp_path):
    file_for_checkpoint(run)
    assert "holds no checkpoint: pass the folder of a run" in refused(tmp_path, "evaluate", run)
    (overview,) = list_runs(run)
    assert (overview.state, overview.step) == ("empty", 0)


def test_checkpoint_is_of_another_core(run):
    other = OnlineTrainer(changed(preset("debug"), core__layers=2))
    before = contents(run)
    with pytest.raises(
        ValueError, match=r"another architecture in \d+ of \d+ arrays: .*core/blocks/"
    ) as error:
        checkpoint.restore(run, jax.eval_shape(other.init, 0))
    assert "build the agent from" in str(error.value)
    assert contents(run) == before


SETTINGS = {
    "--env.name CartPole-v1": "env.name CartPole-v1 has other actions than the environment in",
    "--env.name MemoryChain-v0": "has other observations than the environment in which the agent",
    "--env.name TMazePasive-v0": "did you mean 'TMazePassive-v0'",
    "--env.params corridor 3": "did you mean 'corridor_length'",
    "--env.params corridor_length 0": "corridor_length must be at least 1, got 0",
    "--env.name nothing:Env": "there is no module nothing",
    "--core.memory-size -1": "core.memory_size must be at least 0, not -1",
    "--core.layers 2": "Unrecognized options: --core.layers",
    "--evaluation.target-return 1": "evaluation.target_return is a setting of offline runs",
    "--plots --core.memory-size 3": "plots are of the run's own settings: omit it for others",
}


@pytest.mark.parametrize("arguments", SETTINGS)
def test_settings_that_a_run_cannot_have(arguments, run, tmp_path):
    assert SETTINGS[arguments] in refused(tmp_path, "evaluate", run, *arguments.split())


@pytest.mark.parametrize(("command", "name"), [("play", "play.gif"), ("inspect", "inspect.html")])
def test_files_of_other_kinds(command, name, run, tmp_path):
    assert f"file, as {name}, not x.mp5" in refused(tmp_path, command, run, "--to", "x.mp5")


def test_an_export_has_no_metrics_to_plot(tmp_path):
    line = refused(tmp_path, "evaluate", "bundled://tmaze", "--plots")
    assert "plots are of the metrics of a run, which an export lacks: omit it" in line


def test_best_checkpoint_is_unknown(run, tmp_path):
    line = refused(tmp_path, "evaluate", run, "--best")
    assert "has no best checkpoint: its config names no score" in line


RESULTS = {
    "half": b'{"evaluation"',
    "without fields": b"{}",
    "a list": b"[1]",
    "not a text": b"\xff",
    "nested": b"[" * 100_000,
    "other types": b'{"evaluation": 3, "steps": 1, "compile_seconds": 1, "train_seconds": 1, '
    b'"steps_per_second": 1, "diverged": [], "sampled": {}}',
}


@pytest.mark.parametrize("damage", RESULTS)
def test_result_is_damaged(damage, run, tmp_path):
    write("result.json", RESULTS[damage])(run)
    line = refused(tmp_path, "train", "--preset", "debug", "--folder", run)
    assert line.startswith(f"{run / 'result.json'} is damaged: delete it, and train again")
    (overview,) = list_runs(tmp_path)
    assert (overview.state, overview.step) == ("damaged", STEP)


OTHER_RUNS = {
    "--seed 1": "(seed is 0 there, 1 here): choose another folder",
    "--core.name lstm": 'core.name is "gtrxl" there, "lstm" here',
    "--total-steps 100": "and a run cannot be shortened",
    "--checkpoint.best evaluation/success": "checkpoint.best is",
}


@pytest.mark.parametrize("arguments", OTHER_RUNS)
def test_folder_of_another_run(arguments, run, tmp_path):
    line = refused(tmp_path, "train", "--preset", "debug", "--folder", run, *arguments.split())
    assert f"{run} holds another run" in line
    assert OTHER_RUNS[arguments] in line


def test_folder_is_in_use(run, tmp_path):
    with open(run / "config.json") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        line = refused(tmp_path, "train", "--preset", "debug", "--folder", run)
    assert "is in use by a running process: wait for it, or choose another folder" in line


def test_foreign_table_is_in_the_way(tmp_path):
    (tmp_path / "metrics.csv").write_text("name,age\n")
    line = refused(tmp_path, "train", "--preset", "debug", "--folder", tmp_path, "--log", "csv")
    assert "metrics.csv is not a table of metrics: move it elsewhere" in line
