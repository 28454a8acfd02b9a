"""Bad arguments of each command."""

import json
import sys

import pytest

from gtrxl_jax.extras import install_command
from gtrxl_jax.nn.sequence.model import register_model
from tests.bad_inputs.refusal import refused
from tests.nn.models import Shallow

TRAIN = {
    # presets and names
    "--preset debgu": "unknown preset 'debgu': did you mean 'debug'",
    "--core.name gtrlx": "unknown core.name 'gtrlx': did you mean 'gtrxl'",
    "--core.gate gur": "unknown core.gate 'gur': did you mean 'gru'",
    "--core-preset papper": "unknown preset of gtrxl 'papper': did you mean 'paper'",
    "--core.name lstm --core-preset thin": "unknown preset of lstm 'thin'",
    "--agent.encoder mpl": "unknown agent.encoder 'mpl': did you mean 'mlp'",
    "--agent.encoder no_such:Encoder": "there is no module no_such",
    "--agent.encoders eye mpl": "unknown agent.encoders eye 'mpl': did you mean 'mlp'",
    "--agent.encoders eye mlp": "encoders has the key 'eye', but observation_space has no keys",
    "--algorithm.name pppo": "unknown algorithm.name 'pppo': did you mean 'ppo'",
    "--evaluation.actions best": "unknown evaluation.actions 'best'",
    "--on-divergence go": "unknown on_divergence 'go'",
    "--checkpoint.best-is least": "unknown checkpoint.best_is 'least'",
    # numbers
    "--unroll -1 --folder here": "unroll must be at least 1, not -1",
    "--core.layers 0": "core.layers must be at least 1, not 0",
    "--core.width 18 --core.heads 4": "core.width 18 does not divide into core.heads 4",
    "--core.heads 1 --core.recency 2": "core.recency 2 has no effect",
    "--core.recency -1": "core.recency",
    "--core.width 1 --core.heads 2 --core.head_width 4 --core.recency 1": "core.width is 1",
    "--agent.reconstruction -1": "agent.reconstruction must be at least 0 and finite, not -1",
    "--agent.pixel-control 0.1": "pixel_control needs an image, which the observation has not",
    "--agent.head-width 0": "agent.head_width must be at least 1, not 0",
    "--env.num-envs 12": "env.num_envs 12 does not divide over 8 devices",
    "--env.num-envs 0": "env.num_envs must be at least 1, not 0",
    "--env.num-envs -8": "env.num_envs must be at least 1, not -8",
    "--devices 9": "devices is 9, but only 8 are available",
    "--devices -1": "devices must be at least 0, not -1",
    "--num-seeds 0": "num_seeds must be at least 1, not 0",
    "--total-steps 0": "total_steps must be at least 1, not 0",
    "--updates-per-iteration 0": "updates_per_iteration must be at least 1, not 0",
    "--evaluation.episodes 0": "evaluation.episodes must be at least 1, not 0",
    "--checkpoint.keep 0": "checkpoint.keep must be at least 1, not 0",
    "--checkpoint.interval -1": "checkpoint.interval must be at least 0, not -1",
    "--seed -1": "seed must be at least 0, not -1",
    "--seed 4e9": "seed must be at most 2147483647, not 4000000000",
    "--optimizer.learning-rate nan": "optimizer.learning_rate must be above 0 and finite",
    "--optimizer.learning-rate 0": "optimizer.learning_rate must be above 0 and finite",
    "--algorithm.gamma 1.5": "algorithm.gamma must be at most 1, not 1.5",
    "--algorithm.gamma inf": "algorithm.gamma must be",
    "--sweep clip_epsilon 1 0.1": "sweep.clip_epsilon must be (low, high)",
    # environments
    "--env.name TMazePasive-v0": "unknown environment 'TMazePasive-v0': did you mean 'TMazeP",
    "--env.name Cartpole": "unknown environment 'Cartpole': did you mean 'CartPole-v1' or",
    "--env.name xyzzyq": "it is like none of the",
    "--env.params corridor_lenght 3": "corridor_lenght': did you mean 'corridor_length'",
    "--env.params corridor_length 0": "corridor_length must be at least 1, got 0",
    "--env.params corridor_length far": "corridor_length must be a whole number, got 'far'",
    "--env.params corridor_length 4e9": "corridor_length must be at most 2147483647",
    "--env.params penalty behid": "unknown penalty 'behid': did you mean 'behind'",
    "--env.tasks penalty forward": "unknown penalty 'forward': choose one of them. Valid: be",
    "--env.tasks corridor_length 2 --env.tasks corridor_length 2.5": (
        "corridor_length must be a whole number, got 2.5"
    ),
    "--env.tasks corridor_length 1 --env.tasks step_penalty 2": (
        "env.num_envs 8 does not divide over 8 devices and 2 tasks"
    ),
    "--env.name MiniGrid-MemoryS9-v0 --env.tasks observation rgb --env.tasks view_size 3": (
        "do not fit together: only vectors are padded"
    ),
    "--env.wrappers limit 9": "env.wrappers are of environments on the host, unlike TMazePassive",
    "--actors.count 3": (
        "actors.count 3 is of environments on the host, unlike TMazePassive-v0: leave it at 1"
    ),
    # settings of other cores and algorithms
    "--core.name lstm --core.memory-size 10": (
        "core lstm has no setting memory_size, unlike trxl, trxl-i, gtrxl: its settings are layers,"
    ),
    "--core.name lstm --core.gate gru": "core lstm has no setting gate, unlike trxl, trxl-i, gtrxl",
    "--core.name lstm --core.heads=2": "core lstm has no setting heads, unlike trxl",
    "--core.memroy-size 9": "Unrecognized options: --core.memroy-size, 9; Perhaps you meant: --",
    "--algorithm.name vmpo --algorithm.clip-epsilon 0.1": (
        "algorithm vmpo has no setting clip_epsilon, unlike ppo: its settings are gamma, "
    ),
    "--algorithm.name vmpo --algorithm.no-normalize-advantages": (
        "algorithm vmpo has no setting no_normalize_advantages, unlike ppo"
    ),
    # flags
    "--agent.clock false": "agent.clock is a flag: use --agent.clock or --agent.no-clock",
    "--core.name lstm --core.remat=True": "core.remat is a flag: use --core.remat or --core.no-re",
    "--agent.clock 1": "agent.clock is a flag: use --agent.clock or --agent.no-clock",
    "--no-plots true": "plots is a flag: use --plots or --no-plots",
    # what cannot be parsed
    "--unroll many": "Error parsing --unroll: it must be a whole number, not 'many'; Number of st",
    "--unrol 3": "Unrecognized options: --unrol, 3; Perhaps you meant: --unroll",
    "--optimizer.clip-norm": "Missing value for argument '--optimizer.clip-norm",
    "--optimizer.clip-norm x": "Error parsing --optimizer.clip-norm: it must be a number, not 'x'",
    "--core gtrxl": "Unrecognized options: --core, gtrxl; Perhaps you meant: --core.name",
    "--lr 1e-3": "Unrecognized options: --lr, 1e-3; Perhaps you meant: --optimizer.learning-rate",
    "--steps 9": "Unrecognized options: --steps, 9; Perhaps you meant: --total-steps",
    "--data.path x": "--data.path, x; --data.path is an option of gtrxl train-offline",
    "--layers 3": "Unrecognized options: --layers, 3; Perhaps you meant: --core.layers",
    "--env.params corridor_length": "Error parsing --env.params: Failed to parse key-value pa",
    "--total-steps 1e-3": "Error parsing --total-steps: it must be a whole number, not '1e-3'",
    "--core.name": "argument --core.name: expected one argument",
    "extra": "Unrecognized options: extra",
    # folders and loggers
    "--folder .": "folder must be a new folder or one with a run, not the current one",
    "--folder file": "folder file: file is a file: choose another folder",
    "--folder file/run": "folder file/run: file is a file: choose another folder",
    "--profile file": "profile file: file is a file: choose another folder",
    "--distributed": "distributed needs --folder, on a disk that all processes share",
    "--init-from nothing": "init_from: nothing holds no run: it has no config.json",
    "--init-only core/*": "init_from to its folder",
    "--log csw": "unknown log 'csw': did you mean 'csv'",
    "--log csv nothing:Writer": "there is no module nothing: use an installed module, or a file in",
    "--log tests.bad_inputs.refusal:contents": "has no MetricWriter named 'contents'",
    # custom parts
    "--core.name nothing:Config": "'nothing:Config': there is no module nothing: use an installed",
    "--core.name :Config": "':Config' does not begin with the name of a module: use module:Name",
    "--core.name my-module:Config": "does not begin with the name of a module: use module:Name",
    "--core.name string:Config": "core.name 'string:Config': string has no CoreConfig named 'Confi",
    "--core.name test:Config": "test has no CoreConfig named 'Config', in {inside}/test.py",
    "--core.name json:Config": "'json:Config': json is {json}, not {inside}/json.py: rename the la",
    "--core.name time:Config": "time is a built-in module, not {inside}/time.py: rename the latter",
    "--core.name json.mine:Config": "there is no module json.mine in {json}: use an installed modu",
    "--env.name broken:Env": "'broken:Env': the module broken raises SyntaxError: invalid syntax",
    "--env.name raising:Env": "the module raising raises ZeroDivisionError: division by zero",
    "--env.name needing:Env": "the module needing raises ModuleNotFoundError: No module named 'no",
    "--env.name leaving:Env": "the module leaving raises SystemExit: 3",
    "--env.name string:Env": "environment 'string:Env': string has no Environment named 'Env'",
    "--env.name TMazePassive-v0 broken:Env": "the module broken raises SyntaxError",
    "--env.tasks name broken:Env": "the module broken raises SyntaxError",
}


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    """Work in a folder with a file, and modules that cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "raising.py").write_text("1 / 0\n")
    (tmp_path / "needing.py").write_text("import no_such_package\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    # Of the standard library, too: the first has not been imported, the others have.
    for name in ("test", "json", "time"):
        (tmp_path / f"{name}.py").write_text("")
    yield
    sys.modules.pop("test", None)


@pytest.mark.parametrize("arguments", TRAIN)
def test_train(arguments, tmp_path, monkeypatch):
    if "--distributed" in arguments:
        monkeypatch.setattr("gtrxl_jax.parallel.hosts.join", lambda: None)
    options = arguments.split()
    if "--preset" not in options:
        options = ["--preset", "debug", *options]
    line = TRAIN[arguments].format(inside=tmp_path, json=json.__file__)
    assert line in refused(tmp_path, "train", *options)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ("--unroll many", "Error parsing --unroll: "),
        ("--unrol 3", "Unrecognized options: --unrol, 3; "),
        ("--optimizer.clip-norm", "Missing value for argument '--optimizer.clip-norm'"),
        ("--agent.clock false", "agent.clock is a flag: "),
    ],
)
def test_line_begins_with_what_is_wrong(arguments, start, tmp_path):
    assert refused(tmp_path, "train", *arguments.split()).startswith(start)


def test_empty_folder_name(tmp_path):
    assert "folder must be a new folder" in refused(tmp_path, "train", "--folder", "")


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb", "trackio"])
def test_loggers_whose_package_is_missing(name, tmp_path, monkeypatch):
    package = {"tensorboard": "tensorboardX"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, None)
    for command in ("train", "train-offline"):
        line = refused(tmp_path, command, "--preset", "debug", "--log", name)
        assert f"requires {package}: {install_command(name)}, or omit {name}" in line


TRAIN_OFFLINE = {
    "--preset tmase": "unknown preset 'tmase': did you mean 'tmaze'",
    "--model-preset smal": "did you mean 'small'",
    "--model.name rates": "did you mean 'rate'",
    "--baselines dtt": "unknown model in baselines 'dtt': did you mean 'dt'",
    "--baselines nothing:Model": "there is no module nothing",
    "--model.valve-heads 3": "model.valve_heads 3",
    "--model.hidden 4": "model rate has no setting hidden, unlike shallow: its settings are la",
    "--model.valve gruu": "unknown model.valve 'gruu': did you mean 'gru'",
    "--env.name TMazePassive": "TMazePassive-v0",
    "--env.params penalty behid": "unknown penalty 'behid': did you mean 'behind'",
    "--env.name CartPole-v1 --evaluation.lengths 9": "evaluation.lengths is not supported by CartP",
    "--env.params corridor_length 5": "env.params corridor_length 5 gives all episodes the same",
    "--data.path nowhere/at/all": "nowhere/at/all holds no dataset",
    "--data.path file": "file holds no dataset",
    "--data.start uniforn": "unknown data.start 'uniforn': did you mean 'uniform'",
    "--data.episodes 0": "data.episodes must be at least 1, not 0",
    "--data.stream": "data.stream requires a dataset on disk: set data.path",
    "--data.skip-bad": "data.skip_bad requires a dataset on disk: set data.path",
    "--data.keys a": "data.keys requires a dataset on disk: set data.path",
    "--data.drop a": "data.drop requires a dataset on disk: set data.path",
    "--data.clip-actions 0.1": "data.clip_actions requires a dataset on disk: set data.path",
    "--data.clip-actions -1": "data.clip_actions must be at least 0",
    "--unroll 0": "unroll must be at least 1, not 0",
    "--algorithm.name iqll": "unknown algorithm.name 'iqll': did you mean 'iql'",
    "--algorithm.name td3-bc": "td3-bc needs continuous actions, not Discrete(4",
    "--algorithm.name cql --algorithm.expectile 0.6": "cql has no setting expectile, unlike iql",
    "--algorithm.name iql --algorithm.gamma 1.5": "algorithm.gamma must be at most 1, not 1.5",
    "--model.name elmur --model.blend 0": "model.blend must be above 0 and finite, not 0.0",
    "--model.name core --model.core mlstn": "unknown core.name 'mlstn': did you mean 'mlstm'",
    "--segments 0": "segments must be at least 1, not 0",
    "--bptt -1": "bptt must be at least 0, not -1",
    "--segments 3 --bptt 1": "bptt 1 groups segments by 2, which must divide segments 3",
    "--total-updates 4 --updates-per-iteration 2 --optimizer.accumulate 5": (
        "optimizer.accumulate 5 exceeds the number of gradients of the run, 4, so that no step"
    ),
    "--total-updates 0": "total_updates must be at least 1, not 0",
    "--batch-size 63": "batch_size 63 does not divide over 8 devices",
    "--log csw": "unknown log 'csw': did you mean 'csv'",
    "--folder file": "folder file: file is a file: choose another folder",
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("arguments", TRAIN_OFFLINE)
def test_train_offline(arguments, tmp_path):
    register_model("shallow", Shallow)
    options = arguments.split()
    if "--preset" not in options:
        options = ["--preset", "debug", *options]
    assert TRAIN_OFFLINE[arguments] in refused(tmp_path, "train-offline", *options)


def test_offline_without_task_or_data(tmp_path):
    line = refused(tmp_path, "train-offline", "--env.name", "")
    assert "env.name and data.path are both empty" in line
    line = refused(tmp_path, "train-offline", "--env.name", "", "--evaluation.lengths", "9")
    assert "evaluation.lengths requires an env" in line


OTHERS = {
    "": "name a command: gtrxl --help says what each does",
    "trian": "unknown command 'trian': did you mean 'train'",
    "--unroll 3": "are required: {train,train-offline,repeat,",
    "evaluate": "Missing from gtrxl evaluate",
    "evaluate nothing": "nothing holds no run: it has no config.json",
    "evaluate file": "file holds no run: it has no config.json",
    "evaluate nothing --episodes 0": "episodes must be at least 1, not 0",
    "evaluate nothing --episodes few": "Error parsing --episodes: it must be a whole number, not",
    "evaluate nothing --core.memory-size few": "it must be a whole number, not 'few'; Number of",
    "evaluate nothing --core.name lstm": "--core.name is an option of gtrxl train, gtrxl repeat, ",
    "evaluate nothing --frobnicate 3": "Unrecognized options: --frobnicate, 3",
    "evaluate nothing --episods 3": "Unrecognized options: --episods, 3; Perhaps you meant: --",
    "evaluate nothing --seed 4e9": "seed must be at most 2147483647, not 4000000000",
    "evaluate nothing --actions best": "unknown actions 'best'",
    "evaluate nothing --modules no_such": "there is no module no_such",
    "evaluate nothing --modules broken": "the module broken raises SyntaxError",
    "play nothing": "nothing holds no run: it has no config.json",
    "play nothing --episodes 0": "episodes must be at least 1, not 0",
    "play nothing --seed -1": "seed must be at least 0, not -1",
    "play nothing --actions best": "unknown actions 'best'",
    "play nothing --to film.avi": "to must be the name of a GIF or an MP4 file, as play.gif, not",
    "inspect": "Missing from gtrxl inspect",
    "inspect nothing": "nothing holds no run: it has no config.json",
    "inspect nothing --episode-steps 0": "episode_steps must be at least 1, not 0",
    "inspect nothing --seed -1": "seed must be at least 0, not -1",
    "inspect nothing --actions best": "unknown actions 'best'",
    "inspect nothing --to page.pdf": "to must be the name of an HTML or a GIF file, as inspect",
    "inspect nothing file --to a.gif": "a GIF shows a single run: name one, or set --to to a name",
    "export nothing": "to must be a new folder: set --to",
    "export nothing --to new": "nothing holds no run: it has no config.json",
    "compare": "compare needs the folder of a run, or one that contains some",
    "compare nothing": "there is no folder nothing",
    "compare .": ". holds no online run with metrics",
    "sweep": "Missing from gtrxl sweep",
    "sweep nothing": "a sweep needs a TOML file: nothing: No such file or directory",
    "sweep .": "a sweep needs a TOML file: .: Is a directory",
    "runs nothing": "there is no folder nothing",
    "runs file": "there is no folder file",
    "runs a b": "Unrecognized options: b",
    "runs --jsn": "Unrecognized options: --jsn; Perhaps you meant: --json",
    "list all": "Unrecognized options: all",
    "doctor all": "Unrecognized options: all",
    "--print-completion": "unknown shell '': choose one of them. Valid: bash, fish, zsh",
    "--print-completion bsh": "unknown shell 'bsh': did you mean 'bash'",
    "collect": "Missing from gtrxl collect",
    "collect set": "env.name must be given, since policy oracle names none",
    "collect set --env.name CartPole-v1": "CartPole has no oracle_action",
    "collect set --env.name TMazePassive": "did you mean 'TMazePassive-v0'",
    "collect set --policy orakel": "policy 'orakel' is neither oracle, explorer nor",
    "collect set --policy file": "file holds no run: it has no config.json",
    "collect set --episodes 0": "episodes must be at least 1, not 0",
    "collect set --seed -1": "seed must be at least 0, not -1",
    "collect set --policy . --env.wrappers grey true": "env.wrappers are those of the run .: omit",
    "collect set --env.name TMazePassive-v0 --env.wrappers grey true": "on the host, unlike TMaze",
    "collect file --env.name TMazePassive-v0": "file exists already: choose another folder",
}


@pytest.mark.parametrize("arguments", OTHERS)
def test_other_commands(arguments, tmp_path):
    assert OTHERS[arguments] in refused(tmp_path, *arguments.split())
