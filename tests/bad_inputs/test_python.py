"""Bad arguments of the Python interface: one type of exception, one line, nothing written."""

import errno
import os

import jax
import numpy as np
import pytest

import gtrxl_jax
from gtrxl_jax.data import Sampling, check, concatenate, datasets, held_out, minari, select
from gtrxl_jax.data.datasets import DatasetReader
from gtrxl_jax.data.loader import load_segments
from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.envs.stream import Stream
from gtrxl_jax.offline import config as offline_config
from gtrxl_jax.offline.trainer import OfflineTrainer
from gtrxl_jax.online import config as online_config
from gtrxl_jax.online.config import from_json, preset
from gtrxl_jax.online.host import make_trainer
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.logging.loggers import make_loggers
from gtrxl_jax.runs.logging.writers import JsonLinesWriter
from gtrxl_jax.validation import require_number, validate
from tests.bad_inputs.refusal import contents
from tests.data.sets import NESTED, make_set, with_value
from tests.jobs import small_job
from tests.runs.counter import Counter

pytestmark = pytest.mark.usefixtures("unchecked")


def raises(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


MAZE = make_env("TMazePassive-v0")

CALLS = {
    "core": (lambda: gtrxl_jax.make_core("gtrlx"), ValueError, "did you mean 'gtrxl'"),
    "width": (
        lambda: gtrxl_jax.make_core("gtrxl", width=10, heads=4),
        ValueError,
        "width 10 does not divide into .*heads 4",
    ),
    "field of core": (
        lambda: gtrxl_jax.make_core("gtrxl", with_=10),
        (TypeError, ValueError),
        "with_",
    ),
    "name of others": (
        lambda: gtrxl_jax.make_core("gtrxl", hidden_size=64),
        ValueError,
        r"unknown setting of gtrxl 'hidden_size': did you mean 'width'\?",
    ),
    "parameter of an environment and its constructor": (
        lambda: make_env("MiniGrid-Memory", sise=9),
        ValueError,
        "Valid: max_steps_in_episode, num_actions, observation, random_length, size, tile_size, vi",
    ),
    "numpy's number": (
        lambda: validate(online_config.PPOConfig(epochs=np.int64(4)), "algorithm."),
        TypeError,
        r"algorithm\.epochs must be a whole number, not np\.int64\(4\): convert it with its item",
    ),
    "number of hundreds of digits": (
        lambda: validate(online_config.PPOConfig(value_clip=10**309), "algorithm."),
        ValueError,
        r"algorithm\.value_clip must be at most 2147483647, not 10000",
    ),
    "argument of hundreds of digits": (
        lambda: require_number("goal", 10**309),
        ValueError,
        "goal must be above 0 and finite, not inf",
    ),
    "environment": (lambda: make_env("TMazePassive"), ValueError, "did you mean 'TMazePassive-v0'"),
    "environment on the host": (
        lambda: make_env("gymnasium:CartPole-v1"),
        ValueError,
        "CartPole-v1 steps on the host: create it by make_host_env of gtrxl_jax.envs.host",
    ),
    "trainer of an environment on the host": (
        lambda: OnlineTrainer(small_job(env__name="gymnasium:CartPole-v1")),
        ValueError,
        "CartPole-v1 steps on the host: create the trainer by make_trainer of gtrxl_jax.online",
    ),
    "several are near": (
        lambda: make_env("TMaze"),
        ValueError,
        r"did you mean '[^']+' or '[^']+' or '[^']+'\?$",
    ),
    "parameter": (
        lambda: make_env("TMazePassive-v0", corridor_lenght=3),
        ValueError,
        "did you mean 'corridor_length'",
    ),
    "not imported": (lambda: make_env("nothing:Env"), ValueError, "import it first"),
    "stream of a class": (
        lambda: Stream(type(MAZE[0]), MAZE[1], 2),
        TypeError,
        "env must be a gymnax Environment, not the class PassiveTMaze: create it with make_env",
    ),
    "no environments": (
        lambda: Stream(*MAZE, 0),
        ValueError,
        "num_envs must be at least 1, got 0",
    ),
    "half an environment": (
        lambda: Stream(*MAZE, 2.5),
        TypeError,
        "num_envs must be a whole number, got 2.5",
    ),
    "registered core": (
        lambda: gtrxl_jax.register_core("lstm", online_config.CoreConfig),
        ValueError,
        "'lstm' is already registered: choose another name",
    ),
    "registered environment": (
        lambda: gtrxl_jax.register_env("CartPole-v1", type(MAZE[0])),
        ValueError,
        "'CartPole-v1' is already registered: choose another name",
    ),
    "preset": (lambda: preset("debgu"), ValueError, "unknown preset 'debgu': did you mean 'debug'"),
    "offline preset": (
        lambda: offline_config.preset("tmase"),
        ValueError,
        "unknown preset 'tmase': did you mean 'tmaze'",
    ),
    "config": (lambda: from_json("{"), ValueError, "the config is not JSON"),
    "nested config": (lambda: from_json("[" * 100_000), ValueError, "nested too deeply"),
    "config of another kind": (
        lambda: from_json('{"kind": "offline"}'),
        ValueError,
        "is not of an online run",
    ),
    "name of a config": (
        lambda: OnlineTrainer("debug"),
        TypeError,
        "config must be of type OnlineConfig, not str: preset.NAME. of gtrxl_jax.online returns",
    ),
    "offline config of an online run": (
        lambda: make_trainer(offline_config.preset("debug")),
        TypeError,
        "config must be of type OnlineConfig, not OfflineConfig: preset",
    ),
    "online config of an offline run": (
        lambda: OfflineTrainer(preset("debug")),
        TypeError,
        "config must be of type OfflineConfig, not OnlineConfig: preset.NAME. of gtrxl_jax.off",
    ),
    "config instead of a trainer": (
        lambda: loop.train(preset("debug")),
        TypeError,
        r"trainer must be a trainer, such as OnlineTrainer\(config\), not OnlineConfig",
    ),
    "folder": (lambda: gtrxl_jax.load("nowhere"), FileNotFoundError, "nowhere holds no run"),
    "empty folder": (lambda: gtrxl_jax.load(""), FileNotFoundError, "holds no run"),
    "data set": (lambda: datasets.load("nowhere"), FileNotFoundError, "nowhere holds no dataset"),
    "no sets": (lambda: concatenate([]), ValueError, "no trajectories to concatenate: pass at"),
    "arrays instead of a set": (
        lambda: minari.save(vars(make_set()), "set"),
        TypeError,
        "a set of trajectories must be of type Trajectories, not str: one_episode returns one",
    ),
    "other spaces": (
        lambda: concatenate([make_set(), make_set(spaces=NESTED)]),
        ValueError,
        "only trajectories with the same spaces can be concatenated",
    ),
    "fraction": (
        lambda: held_out(make_set().length, 1.0, seed=0),
        ValueError,
        "fraction must be at least 0 and below 1, got 1.0",
    ),
    "logger": (
        lambda: make_loggers(["csw"], "run", "{}"),
        ValueError,
        "unknown log 'csw': did you mean 'csv'",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raises(*CALLS[call])
    assert contents(tmp_path) == {}


def cast(field, dtype):
    return lambda x: x.replace(**{field: getattr(x, field).astype(dtype)})


def without(field, *rest):
    return lambda x: x.replace(**{field: rest[0] if rest else None})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (without("observations"), TypeError, "observations must be an array, not NoneType"),
        (without("rewards"), TypeError, "rewards must be an array, not NoneType"),
        (without("actions", [0, 1]), TypeError, "actions must be an array, not list"),
        (lambda x: select(x, []), ValueError, "there are no episodes"),
        (with_value("length", 1, 0), ValueError, r"length\[1\] is 0: .* at least 1 action"),
        (with_value("length", 1, 13), ValueError, r"length\[1\] is 13: .* at most 12"),
        (cast("length", np.int64), TypeError, "length must be of type int32, not int64"),
        (cast("rewards", np.float64), TypeError, "rewards must be of type float32, not float64"),
        (cast("terminated", np.int32), TypeError, "terminated must be of type bool, not int32"),
        (cast("actions", np.float32), TypeError, "actions must be of type int32, not float32"),
        (cast("observations", np.float64), TypeError, "observations must be of type float32"),
        (lambda x: x.replace(rewards=x.rewards[0]), ValueError, "rewards have shape .12,., not"),
        (
            lambda x: x.replace(rewards=x.rewards[..., None]),
            ValueError,
            r"pass one number for each step, such as rewards\[..., 0\]",
        ),
        (lambda x: x.replace(length=x.length[:, None]), ValueError, "length must have shape"),
        (lambda x: x.replace(terminated=x.terminated[1:]), ValueError, "terminated must have"),
        (
            lambda x: x.replace(observations=x.observations[:, 1:]),
            ValueError,
            r"observations must have shape \(5, 13, 2\), not \(5, 12, 2\)",
        ),
        (
            lambda x: x.replace(observations={"a": x.observations}),
            TypeError,
            "observations must be an array, not dict",
        ),
        (
            with_value("rewards", (1, 8), np.nan),
            ValueError,
            r"episode 1, step 8: rewards is nan: .* finite",
        ),
        (
            with_value("observations", (1, 9), np.inf),
            ValueError,
            r"episode 1, step 9: observations\[0\] is inf, not finite",
        ),
        (
            with_value("actions", (0, 2), 5),
            ValueError,
            r"episode 0, step 2: actions is 5, outside Discrete\(5",
        ),
        (with_value("actions", (0, 2), -1), ValueError, r"episode 0, step 2: actions is -1"),
    ],
)
def test_trajectories(change, error, message):
    whole = make_set()
    check(whole)
    raises(lambda: check(change(whole)), error, message)


def test_entries_of_dicts_are_named():
    whole = make_set(spaces=NESTED)
    check(whole)
    parts = whole.observations
    body = {"place": parts["body"]["place"].copy(), "room": parts["body"]["room"]}
    body["place"][0, 1, 2] = np.nan
    with pytest.raises(
        ValueError, match=r"episode 0, step 1: observations\['body'\]\['place'\]\[2\] is nan"
    ):
        check(whole.replace(observations={**parts, "body": body}))
    with pytest.raises(ValueError, match=r"observations must have the entries \['body', 'codes'"):
        check(whole.replace(observations={"image": parts["image"]}))
    actions = whole.actions.copy()
    actions[3, 11, 1] = -0.1
    with pytest.raises(
        ValueError, match=r"episode 3, step 11: actions\[1\] is -0.1.*, outside Box"
    ):
        check(whole.replace(actions=actions))
    codes = parts["codes"].copy()
    codes[2, 0, 1] = 4
    with pytest.raises(ValueError, match=r"\['codes'\]\[1\] is 4, outside MultiDiscrete\(\[3, 4"):
        check(whole.replace(observations={**parts, "codes": codes}))


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "set"
    minari.save(make_set(), path)
    with DatasetReader(path) as reader:
        yield reader


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((0, 2, 3), {}, ValueError, "batch must be at least 1, got 0"),
        ((4, 2, 0), {}, ValueError, "unroll must be at least 1, got 0"),
        ((4, 2.0, 3), {}, TypeError, "segments must be a whole number, got 2.0"),
        ((4, 2, 3), dict(threads=0), ValueError, "threads must be at least 1, got 0"),
        ((4, 2, 3), dict(ahead=0), ValueError, "ahead must be at least 1, got 0"),
        ((4, 2, 3), dict(sampling=Sampling("uniforn")), ValueError, "unknown start 'uniforn'"),
        ((4, 2, 3), dict(sampling=Sampling(weight="x")), ValueError, "unknown weight 'x'"),
    ],
)
def test_streaming(reader, arguments, options, error, message):
    raises(lambda: load_segments(reader, jax.random.key(0), *arguments, **options), error, message)


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ({"x": np.zeros((2, 3))}, ValueError, r"'x' has shape \(2, 3\)"),
        ({"x": "high"}, TypeError, "'x' must be a real number"),
        ({"x": 1j}, TypeError, "'x' must be a real number"),
        ({"x": None}, TypeError, "'x' must be a real number"),
        ({"step": 3}, ValueError, "'step' has a reserved name"),
    ],
)
def test_metrics(tmp_path, metrics, error, message):
    path = tmp_path / "metrics.jsonl"
    with JsonLinesWriter(path) as writer:
        raises(lambda: writer.write(1, metrics), error, message)
    assert path.read_bytes() == b""


class Full:
    """A file on a disk without space."""

    def __init__(self, file):
        self.file = file

    def write(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_full_disk_is_named(tmp_path, monkeypatch):
    """By the writers, the checkpoints and the files that are written at the end."""
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer._file = Full(writer._file)
    raises(lambda: writer.write(1, {"x": 1.0}), OSError, f"No space left on device: '{path}'")
    writer.close()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        run = tmp_path / "run"
        raises(lambda: loop.train(Counter(), folder=run), OSError, f"on device: '{run}/config.json")
    assert contents(tmp_path / "run") == {}
